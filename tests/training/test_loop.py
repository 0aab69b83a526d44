"""The step on every mesh, refused updates, and the rhythm of the loop."""

import contextlib
import functools
import os
import signal
import types
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt_jax.batch import Mean
from gpt_jax.errors import InputError
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import local_rows, to_device
from gpt_jax.training import loop as train
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.step import TrainState, compile_init, init_state, make_step, restore_or_init

TRANSFORMER = TransformerConfig(
  vocab_size=60, context=8, layers=1, width=16, heads=4
)  # one: compilation is what takes time
LSTM = LSTMConfig(vocab_size=60, context=8, width=16, units=8)
BATCH, LENGTH, STEPS = 16, 8, 5
ONE = MeshConfig(data=1)
OPTIM = OptimConfig(learning_rate=1e-2, warmup_steps=2)


compiled = []
jax.monitoring.register_event_duration_secs_listener(
  lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None
)


def rows_at(step):
  """Text with something to learn: each id follows from the one before."""
  start = np.random.default_rng(step).integers(0, 60, (BATCH, 1))
  rows = ((start + 7 * np.arange(LENGTH + 1)) % 60).astype(np.int32)
  rows[3, 5:] = -1  # so that microbatches and devices differ in weight
  return rows


class Parts(NamedTuple):
  state: TrainState
  step: Any
  batch_at: Any
  mesh: Any


def build(trunk=TRANSFORMER, mesh=ONE, microbatches=1):
  """A step and its first state, on as many devices as the mesh names."""
  devices = jax.devices()[: mesh.data * mesh.model]
  where = make_mesh(mesh, devices)
  model = language_model(trunk)
  optimizer, schedule = make_optimizer(OPTIM, total_steps=20)
  example = causal_batch(rows_at(0))
  make_state = init_state(lambda key: model.init(key, example)["params"], optimizer)
  empty = types.SimpleNamespace(steps=lambda: [])  # checkpoints of a new run
  make_state, shardings = compile_init(make_state, where, trunk.TENSOR_PARALLEL, mesh.fsdp)
  state, first = restore_or_init(make_state, shardings, 3, empty)
  assert first == 0
  step = make_step(
    model_loss(model),
    optimizer,
    schedule,
    where,
    shardings,
    microbatches=microbatches,
    backend=mesh.backend,
  )
  rows = local_rows(BATCH, where, microbatches)
  return Parts(
    state,
    step,
    lambda i: to_device(causal_batch(rows_at(i)[rows]), where, microbatches, mesh.backend),
    where,
  )


def losses_of(parts, steps=STEPS):
  """The loss of each step, and the last state on the host; only the first step compiles."""
  state, found = parts.state, []
  for i in range(steps):
    compiled.clear()
    state, metrics = parts.step(state, parts.batch_at(i), 3)
    assert i == 0 or not compiled
    assert metrics["finite"]
    found.append(float(jax.device_get(metrics["loss"]).value))
  return np.array(found), jax.device_get(state)


@pytest.fixture(scope="module")
def transformer():
  return losses_of(build())


FSDP = MeshConfig(data=4, model=2, fsdp=True)


@pytest.mark.parametrize(
  "mesh, microbatches",
  [
    (ONE, 4),
    (MeshConfig(data=8), 1),
    (FSDP, 2),
    (MeshConfig(data=2, model=4), 1),
    (MeshConfig(data=2, model=4, fsdp=True), 1),
    (MeshConfig(data=8, backend="pmap"), 2),
  ],
  ids=lambda x: (
    f"{x.data}x{x.model}{' fsdp' * x.fsdp} {x.backend}"
    if isinstance(x, MeshConfig)
    else f"{x} microbatches"
  ),
)
def test_every_mesh_agrees(transformer, mesh, microbatches):
  """Dropout on. Adam divides by its second moment, so parameters are compared more loosely than
  losses.
  """
  expected, expected_state = transformer
  found, state = losses_of(build(mesh=mesh, microbatches=microbatches))
  np.testing.assert_allclose(found, expected, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), state.params, expected_state.params
  )


def test_lstm_on_two_meshes():
  expected, _ = losses_of(build(LSTM))
  found, _ = losses_of(build(LSTM, FSDP))
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_golden_step(transformer):
  """The first losses of a tiny model, dropout on."""
  np.testing.assert_allclose(
    transformer[0][:3],
    [4.0990, 4.0941, 4.0704],
    atol=2e-4,
    err_msg="initialization, dropout, loss or update rule changed. Where that was meant (and the tests against NumPy "
    "hold), write the new numbers here and say so in the commit: runs begun before it will not resume exactly",
  )


def test_text_is_learned(transformer):
  assert transformer[0][-1] < transformer[0][0] - 0.05


# Refused updates, on a loss of one parameter whose batch makes it what is wanted.


class ScalarLoss:
  """Its value is the batch's mean, its gradient with respect to w as well."""

  def denominators(self, batch):
    return jnp.float32(batch.size)

  def __call__(self, params, batch, key, denominators=None):
    total = (params["w"]["bias"][None] * batch).sum()
    return total / denominators, {"loss": Mean(total, jnp.float32(batch.size))}


@pytest.fixture(scope="module")
def scalar():
  """(state, step, batch_at) where a batch is a number."""
  mesh = make_mesh(ONE, jax.devices()[:1])
  optimizer, schedule = make_optimizer(
    OptimConfig(warmup_steps=0, learning_rate=0.1, schedule="constant"), 100
  )
  make_state = init_state(lambda key: {"w": {"bias": jnp.ones(2)}}, optimizer)
  make_state, shardings = compile_init(make_state, mesh, ())
  state = make_state(np.uint32(0))
  step = functools.partial(make_step(ScalarLoss(), optimizer, schedule, mesh, shardings), seed=0)

  def start():
    return jax.tree.map(jnp.copy, state)  # a step takes its state's memory

  return start, step, lambda value: to_device(np.full((1, 2), value, np.float32), mesh)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.6e38])
def test_a_bad_step_changes_nothing_but_its_number(scalar, bad):
  """1.6e38 is finite and so is the loss; the norm of the gradient is not."""
  start, step, batch = scalar
  state, _ = step(start(), batch(1.0))
  before = jax.device_get(state)
  state, metrics = step(state, batch(bad))
  after = jax.device_get(state)
  assert not metrics["finite"]
  assert after.step == before.step + 1
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32)),
    before[1:],
    after[1:],
  )
  state, metrics = step(state, batch(1.0))
  assert metrics["finite"]
  assert (np.asarray(state.params["w"]["bias"]) < before.params["w"]["bias"]).all()


class Diary:
  """A reporter that writes down what it is told."""

  def __init__(self):
    self.entries = []

  def progress(self, step, values, tokens):
    self.entries.append(("progress", step, values, tokens))

  def results(self, step, values):
    self.entries.append(("results", step, values))

  def say(self, text):
    self.entries.append(("say", text))

  @contextlib.contextmanager
  def paused(self):
    yield


def score(params):
  return {"score": 1.0}


def fit(
  start,
  step,
  batch_at,
  total_steps,
  log_every=3,
  evaluate_every=4,
  save_every=5,
  watch=lambda *_: None,
  evaluate=score,
):
  diary = Diary()
  try:
    result = train.fit(
      start,
      step,
      batch_at,
      total_steps,
      reporter=diary,
      tokens_per_step=10,
      save=lambda step, state, metrics: diary.entries.append(
        ("save", step, int(state.step), metrics)
      ),
      evaluate=evaluate,
      log_every=log_every,
      evaluate_at=lambda step: train.due(step, evaluate_every),
      save_at=lambda step: train.due(step, save_every),
      watch=watch,
    )
  except (InputError, SystemExit) as error:
    return error, diary.entries
  return result, diary.entries


def test_rhythm(scalar):
  start, step, batch = scalar
  watched = []
  (state, evaluation), entries = fit(
    start(),
    step,
    lambda i: batch(i),
    11,
    watch=lambda step, means: watched.append((step, means["loss"])),
  )
  assert state.step == 11
  assert evaluation == {"score": 1.0}
  assert [entry[1] for entry in entries if entry[0] == "progress"] == [3, 6, 9, 11]
  assert [entry[3] for entry in entries if entry[0] == "progress"] == [30, 30, 30, 20]
  assert [entry[1] for entry in entries if entry[0] == "results"] == [4, 8, 11]
  saved = [entry[1:] for entry in entries if entry[0] == "save"]
  assert saved == [(5, 5, None), (10, 10, None), (11, 11, {"score": 1.0})]
  assert [step for step, _ in watched] == [3, 6, 9, 11]
  # Losses: the parameters of a step times its number; the first is 0 and the next two are averaged
  # with it.
  first = next(entry[2] for entry in entries if entry[0] == "progress")
  assert first["loss"] == pytest.approx((0 + 1 * 1 + 2 * 0.9) / 3, abs=0.2)
  assert first["learning_rate"] == pytest.approx(0.1)


def test_the_gradient_is_that_of_the_mean(scalar):
  start, step, batch = scalar
  _, metrics = step(start(), batch(1.0))
  np.testing.assert_allclose(
    metrics["gradient_norm"], np.sqrt(2 * 0.5**2), rtol=1e-6
  )  # two elements, weight 2


@pytest.mark.parametrize("value, gradient", [(0.5, 0.25), (100.0, np.sqrt(0.5))])
def test_the_mean_gradient_is_what_is_clipped(scalar, value, gradient):
  """Its global norm is at most 1; Adam's first moment holds a tenth of what it was given."""
  start, step, batch = scalar
  state, _ = step(start(), batch(value))
  moment = optax.tree.get(state.opt_state, "mu")["w"]["bias"]
  np.testing.assert_allclose(moment, 0.1 * np.full(2, gradient), rtol=1e-5)


def test_terminated_in_the_last_evaluation_it_saves_and_no_other_run_follows(scalar):
  start, step, batch = scalar

  def killed(params):
    os.kill(os.getpid(), signal.SIGTERM)
    return score(params)

  ended, entries = fit(start(), step, lambda i: batch(1.0), 2, evaluate=killed)
  assert isinstance(ended, SystemExit) and ended.code == 0
  assert entries[-1][:3] == ("save", 2, 2)


def test_a_finished_run_is_only_evaluated(scalar):
  start, step, batch = scalar
  state = start()._replace(step=jnp.int32(7))
  result, entries = fit(state, step, lambda i: pytest.fail("no batch is needed"), 7)
  assert result[1] == {"score": 1.0}
  assert entries == []


def test_a_resumed_run_keeps_the_rhythm(scalar):
  start, step, batch = scalar
  asked = []
  _, entries = fit(
    start()._replace(step=jnp.int32(4)), step, lambda i: asked.append(i) or batch(1), 7
  )
  assert asked == [4, 5, 6]
  assert [(entry[1], entry[3]) for entry in entries if entry[0] == "progress"] == [(6, 20), (7, 10)]


def test_refused_updates_are_counted(scalar):
  start, step, batch = scalar
  _, entries = fit(start(), step, lambda i: batch(np.nan if i in (1, 2, 4) else 1.0), 6)
  means = [entry[2] for entry in entries if entry[0] == "progress"]
  assert [m.get("refused_updates") for m in means] == [2, 1]
  assert all(np.isfinite(m["loss"]) for m in means)


def test_ten_refused_updates_in_a_row_end_the_run(scalar):
  start, step, batch = scalar
  error, entries = fit(
    start(), step, lambda i: batch(np.nan if i >= 12 or i < 9 else 1.0), 40, save_every=1
  )
  assert isinstance(error, InputError)
  message = str(error)
  assert "\n" not in message
  for part in (
    "step 22",
    "10 updates in a row",
    "loss nan",
    "optim.learning_rate",
    "optim.warmup_steps",
  ):
    assert part in message
  assert max(entry[1] for entry in entries if entry[0] == "save") == 21  # nine were only counted


def test_sigterm_saves_and_exits_0(scalar):
  start, step, batch = scalar

  def batch_at(i):
    if i == 6:
      os.kill(os.getpid(), signal.SIGTERM)
    return batch(1.0)

  before = signal.getsignal(signal.SIGTERM)
  error, entries = fit(start(), step, batch_at, 40)
  assert isinstance(error, SystemExit) and error.code == 0
  assert entries[-2:] == [
    ("save", 7, 7, None),
    ("say", "stopped at step 7 of 40 and saved; the same command resumes"),
  ]
  assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_exits_at_once(monkeypatch):
  def exit(code):
    raise KeyboardInterrupt(code)

  monkeypatch.setattr(train.os, "_exit", exit)
  with train._Termination(), pytest.raises(KeyboardInterrupt) as found:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
  assert found.value.args == (1,)


def test_warn_if_stuck():
  with pytest.warns(
    UserWarning, match="loss 6.600 is not below the unigram entropy 6.500.*optim.learning_rate"
  ):
    assert train.warn_if_stuck(6.6, 6.5)
  with pytest.warns(UserWarning, match="loss nan"):
    assert train.warn_if_stuck(float("nan"), 6.5)
  with warnings.catch_warnings(action="error"):
    assert not train.warn_if_stuck(4.0, 6.5)


def test_doublings():
  assert [step for step in range(50) if train.is_power_of_two_multiple(step, 3)] == [
    3,
    6,
    12,
    24,
    48,
  ]
  assert not any(train.is_power_of_two_multiple(step, 0) for step in range(9))


def test_exactly_one_of_steps_and_epochs():
  assert train.TrainConfig(steps=7).total_steps(5) == 7
  assert train.TrainConfig(epochs=3).total_steps(5) == 15
  for config in (train.TrainConfig(), train.TrainConfig(steps=1, epochs=1)):
    with pytest.raises(InputError, match="exactly one of them must be above 0"):
      config.total_steps(5)
