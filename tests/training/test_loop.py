"""The step on every mesh, refused updates, the loop and its hooks."""

import contextlib
import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bert_trunk import bert_trunk
from refused import refused

from gpt_jax.batch import Batch, Labels, Mean, Predictions, Rows
from gpt_jax.errors import InputError
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.masked import MaskedHead, SentencePairHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import Model, ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.objectives.span_corruption import encoder_decoder_batch
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import local_rows
from gpt_jax.training import hooks, loop
from gpt_jax.training.hooks import Interval
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.signals import SAVING
from gpt_jax.training.trainer import Trainer

# One configuration for all tests, since compiling takes most of the time.
TRANSFORMER = TransformerConfig(vocab_size=60, context=8, layers=1, width=16, heads=4)
LSTM = LSTMConfig(vocab_size=60, context=8, width=16, units=8)
STACK = LSTMStackConfig(60, context=8, embedding_width=16, units=(16, 24), projection=16)
# Characters stand for ids, so that each piece is another one.
CHARACTERS = CharacterConfig(4, (4, 4), places=8, highways=1, pieces=tuple(map(str, range(63))))
ELMO = dataclasses.replace(
  STACK, units=(16, 16), directions="separate", residual=True, characters=CHARACTERS, tied=False
)
TRANSLATOR = LSTMEncoderDecoderConfig(60, context=8, embedding_width=16, layers=2, units=8)
T5 = T5Config(60, context=8, layers=1, width=16, heads=4, head_width=6, units=24, version="1.1")
# Every kind of parameter that BERT has, and the map from its narrower embeddings.
ALBERT = bert_trunk(60, special_tokens=0, embedding_width=8, shared_layers=True)
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


def both_directions_batch(rows):
  tokenizer: Any = types.SimpleNamespace(special={"start": 60, "extract": 62})
  return BidirectionalLM().bind(tokenizer, LENGTH)(rows[:, : LENGTH - 2], None)


def translation_batch(rows):
  return encoder_decoder_batch(rows[:, :-1], rows[:, 1:], LENGTH, pad=60)


def pairs_batch(rows):
  """Pairs of texts: two tokens to predict in each, and its class."""
  ids = np.maximum(rows[:, :LENGTH], 0)
  places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids.shape)
  segments, types = (x.astype(np.int32) for x in (places < LENGTH - 1, places > 3))
  at, ones = np.tile(np.int32([1, 4]), (len(rows), 1)), np.ones((len(rows), 2), np.float32)
  labels = Labels(LENGTH * np.arange(len(rows), dtype=np.int32)[:, None], ones / 2, ones[:, 0])
  predictions = Predictions(ids[:, [1, 4]], ones, at)
  return Batch(Rows(ids, places, segments, types), predictions=predictions, labels=labels)


OBJECTIVES = {  # trunk -> model and batch; of others a causal language model's
  ELMO: (
    ModelConfig(ELMO, make_heads(BidirectionalLM().heads), "bidirectional"),
    both_directions_batch,
  ),
  TRANSLATOR: (ModelConfig(TRANSLATOR), translation_batch),
  T5: (ModelConfig(T5), translation_batch),
  ALBERT: (ModelConfig(ALBERT, (MaskedHead(), SentencePairHead()), "bidirectional"), pairs_batch),
}


class Run(NamedTuple):
  trainer: Trainer
  start: Any  # () -> its first state, whose memory a step reuses
  batch_at: Any


@functools.cache
def build(trunk=TRANSFORMER, mesh=ONE, microbatches=1):
  """A trainer on as many devices as the mesh names."""
  devices = make_mesh(mesh, jax.devices()[: mesh.data * mesh.model])
  spec, batch_of = OBJECTIVES.get(trunk) or (ModelConfig(trunk), causal_batch)
  model = Model(spec)
  trainer = Trainer.build(
    model,
    model_loss(model),
    batch_of(rows_at(0)),
    make_optimizer(OPTIM, total_steps=20),
    devices,
    rules=trunk.TENSOR_PARALLEL,
    fsdp=mesh.fsdp,
    backend=mesh.backend,
    microbatches=microbatches,
  )
  rows = local_rows(BATCH, devices, microbatches)
  return Run(
    trainer, lambda: first_state(trainer), lambda i: trainer.to_device(batch_of(rows_at(i)[rows]))
  )


def first_state(trainer):
  state, first = trainer.restore_or_init(3, types.SimpleNamespace(steps=lambda: []))
  assert first == 0
  return state


def losses_of(run, steps=STEPS):
  """The loss of each step, and the last state on the host; only the first step compiles."""
  state, losses = run.start(), []
  for i in range(steps):
    compiled.clear()
    state, metrics = run.trainer.step(state, run.batch_at(i), 3)
    assert i == 0 or not compiled
    assert metrics["finite"]
    losses.append(float(jax.device_get(metrics["loss"]).value))
  return np.array(losses), jax.device_get(state)


@pytest.fixture(scope="module")
def transformer():
  return losses_of(build())


FSDP = MeshConfig(data=4, model=2, fsdp=True)


def mesh_id(mesh):
  return f"{mesh.data}x{mesh.model} {'fsdp ' if mesh.fsdp else ''}{mesh.backend}"


@pytest.mark.parametrize(
  "mesh, microbatches",
  [(ONE, 4), (FSDP, 2), (MeshConfig(data=2, model=4), 1), (MeshConfig(data=8, backend="pmap"), 2)],
  ids=lambda x: mesh_id(x) if isinstance(x, MeshConfig) else f"{x} microbatches",
)
def test_every_mesh_agrees(transformer, mesh, microbatches):
  """Dropout on. Adam divides by its second moment, so parameters are compared loosely."""
  expected, expected_state = transformer
  losses, state = losses_of(build(mesh=mesh, microbatches=microbatches))
  np.testing.assert_allclose(losses, expected, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), state.params, expected_state.params
  )


def test_microbatches_are_computed_one_after_the_other():
  temporaries = []
  for microbatches in (1, 4):
    compiled = build(microbatches=microbatches).trainer.compile(causal_batch(rows_at(0)))
    temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
  assert temporaries[1] < 0.6 * temporaries[0]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  "trunk, mesh, microbatches",
  [
    pytest.param(LSTM, FSDP, 2, id="lstm"),
    pytest.param(STACK, FSDP, 2, id="stack", marks=SLOW),
    pytest.param(ELMO, FSDP, 2, id="elmo", marks=SLOW),
    pytest.param(ELMO, MeshConfig(data=2), 1, id="elmo-2", marks=SLOW),
    pytest.param(TRANSLATOR, FSDP, 2, id="translator", marks=SLOW),
    pytest.param(TRANSLATOR, MeshConfig(data=2), 1, id="translator-2", marks=SLOW),
    pytest.param(T5, FSDP, 2, id="t5", marks=SLOW),
    pytest.param(T5, MeshConfig(data=8, backend="pmap"), 1, id="t5-pmap", marks=SLOW),
    pytest.param(ALBERT, MeshConfig(data=2, model=4, fsdp=True), 1, id="albert", marks=SLOW),
  ],
)
def test_other_trunks_on_meshes(trunk, mesh, microbatches):
  """Dropout on: of kernels and the vocabulary, whose masks microbatches share; of characters, which
  are read once for both directions; of sources and targets.
  """
  expected, _ = losses_of(build(trunk))
  losses, _ = losses_of(build(trunk, mesh, microbatches))
  np.testing.assert_allclose(losses, expected, atol=1e-5)


def test_golden_step(transformer):
  """The first losses of a tiny model, dropout on."""
  assert transformer[0][-1] < transformer[0][0] - 0.05
  np.testing.assert_allclose(
    transformer[0][:3],
    [4.0990, 4.0941, 4.0704],
    atol=2e-4,
    err_msg="initialization, dropout, loss or optimizer changed. If that was meant (and the tests "
    "against NumPy pass), write the new numbers here and say so in the commit: runs begun before "
    "it will not resume exactly",
  )


# Refused updates, on a model of one parameter whose loss and gradient are the batch's numbers.


class Weight:
  """A model with one parameter, which needs no example."""

  def init(self, key, example):
    return {"params": {"w": {"bias": jnp.ones(2)}}}


class ScalarLoss:
  """Its value is the batch's mean, and so is its gradient with respect to w."""

  def denominators(self, batch):
    return jnp.float32(batch.size)

  def __call__(self, params, batch, key, denominators=None):
    total = (params["w"]["bias"][None] * batch).sum()
    return total / denominators, {"loss": Mean(total, jnp.float32(batch.size))}


@pytest.fixture(scope="module")
def scalar():
  """(first state, trainer)."""
  optim = OptimConfig(warmup_steps=0, learning_rate=0.1, schedule="constant")
  mesh = make_mesh(ONE, jax.devices()[:1])
  trainer = Trainer.build(Weight(), ScalarLoss(), None, make_optimizer(optim, 100), mesh)
  return lambda: trainer.init(0), trainer


def batch(value):
  """A host batch of the scalar model."""
  return np.full((1, 2), value, np.float32)


def ones(step):
  return batch(1.0)


def advance(trainer, state, batch):
  return trainer.step(state, trainer.to_device(batch), 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.6e38])
def test_a_bad_step_changes_nothing_but_its_number(scalar, bad):
  """1.6e38 is finite and so is the loss; the norm of the gradient is not."""
  start, trainer = scalar
  state, _ = advance(trainer, start(), batch(1.0))
  before = jax.device_get(state)
  state, metrics = advance(trainer, state, batch(bad))
  after = jax.device_get(state)
  assert not metrics["finite"]
  assert after.step == before.step + 1
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32)),
    before[1:],
    after[1:],
  )
  state, metrics = advance(trainer, state, batch(1.0))
  assert metrics["finite"]
  assert (np.asarray(state.params["w"]["bias"]) < before.params["w"]["bias"]).all()


class Diary:
  """A reporter and checkpoints that record their calls."""

  def __init__(self):
    self.entries = []
    self.is_paused = False

  def progress(self, step, values, tokens):
    self.entries.append(("progress", step, values, tokens))

  def results(self, step, values):
    self.entries.append(("results", step, values))

  def say(self, text):
    self.entries.append(("say", text))

  def sync(self):
    pass

  def save(self, step, state, meta, metrics):
    assert self.is_paused and meta == {"a": 1}
    self.entries.append(("save", step, int(state.step), metrics))

  @contextlib.contextmanager
  def paused(self):
    self.is_paused = True
    yield
    self.is_paused = False


def score(params):
  return {"score": 1.0}


def fit(scalar, batch_at, total_steps, state=None, save_every=5, more_hooks=(), measure=score):
  """(fit's result or the error that ended it, what was reported and saved)."""
  start, trainer = scalar
  diary = Diary()

  def measure_paused(params):
    assert diary.is_paused
    return measure(params)

  run_hooks = [
    *more_hooks,
    hooks.log_progress(diary, 10, hooks.every(3)),
    hooks.evaluate(diary, measure_paused, hooks.every(4)),
    hooks.save(diary, diary, {"a": 1}, hooks.every(save_every)),
  ]
  try:
    result = trainer.fit(state or start(), batch_at, total_steps, 0, run_hooks)
  except (InputError, SystemExit) as error:
    return error, diary.entries
  return result, diary.entries


def test_hooks_run_when_they_are_due(scalar):
  watched = []
  watch = hooks.Hook(
    lambda moment: watched.append((moment.step, moment.interval.means()["loss"])), hooks.every(3)
  )
  (state, evaluation), entries = fit(scalar, lambda i: batch(i), 11, more_hooks=[watch])
  assert state.step == 11
  assert evaluation == {"score": 1.0}
  assert [entry[1] for entry in entries if entry[0] == "progress"] == [3, 6, 9, 11]
  assert [entry[3] for entry in entries if entry[0] == "progress"] == [30, 30, 30, 20]
  assert [entry[1] for entry in entries if entry[0] == "results"] == [4, 8, 11]
  saved = [entry[1:] for entry in entries if entry[0] == "save"]
  assert saved == [(5, 5, {}), (10, 10, {}), (11, 11, {"score": 1.0})]
  assert [step for step, _ in watched] == [3, 6, 9, 11]
  # The loss is the parameter times the batch's number: 0, then two more that are averaged with it.
  first = next(entry[2] for entry in entries if entry[0] == "progress")
  assert first["loss"] == pytest.approx((0 + 1 * 1 + 2 * 0.9) / 3, abs=0.2)
  assert first["learning_rate"] == pytest.approx(0.1)


def test_metrics_are_fetched_after_the_next_step_is_dispatched(scalar, monkeypatch):
  start, trainer = scalar
  events, add = [], Interval.add
  monkeypatch.setattr(
    Interval, "add", lambda self, step, m: (events.append(("fetch", step)), add(self, step, m))
  )

  def step(state, batch):
    events.append(("dispatch", int(state.step) + 1))
    return trainer.step(state, batch, 0)

  log = hooks.log_progress(Diary(), 10, hooks.every(100))
  loop.fit(start(), step, lambda i: trainer.to_device(batch(1.0)), 3, [log])
  order = [("dispatch", 1), ("dispatch", 2), ("fetch", 1), ("dispatch", 3), ("fetch", 2)]
  assert events == [*order, ("fetch", 3)]


def test_a_hook_sees_the_evaluation_of_its_own_step_only(scalar):
  seen = []
  watch = hooks.Hook(lambda moment: seen.append(moment.evaluation), hooks.every(1))
  start, trainer = scalar
  evaluate = hooks.evaluate(Diary(), score, hooks.every(2))
  trainer.fit(start(), ones, 4, 0, [evaluate, watch])
  assert seen == [{}, {"score": 1.0}, {}, {"score": 1.0}]


@pytest.mark.parametrize("value, gradient", [(0.5, 0.25), (100.0, np.sqrt(0.5))])
def test_the_mean_gradient_is_clipped(scalar, value, gradient):
  """Its global norm is at most 1; Adam's first moment holds a tenth of the gradient."""
  start, trainer = scalar
  state, metrics = advance(trainer, start(), batch(value))
  # Two elements of weight 2 together.
  np.testing.assert_allclose(metrics["gradient_norm"], value * np.sqrt(0.5), rtol=1e-6)
  moment = optax.tree.get(state.opt_state, "mu")["w"]["bias"]
  np.testing.assert_allclose(moment, 0.1 * np.full(2, gradient), rtol=1e-5)


def kill(*_):
  os.kill(os.getpid(), signal.SIGTERM)
  return {"score": 1.0}


def killed_after(step):
  """A hook that sends SIGTERM between a step and the next one."""
  return hooks.Hook(lambda _: kill() and None, lambda number: number == step)


def test_terminated_at_an_evaluation_it_is_made_and_saved(scalar):
  """Also at the last one, after which no other run follows."""
  ended, entries = fit(scalar, ones, 2, measure=kill)
  assert isinstance(ended, SystemExit) and ended.code == 143
  assert entries[-1][:3] == ("save", 2, 2)
  ended, entries = fit(scalar, ones, 40, more_hooks=[killed_after(3)])
  assert isinstance(ended, SystemExit) and ended.code == 143
  assert [entry[0] for entry in entries[-4:]] == ["progress", "results", "save", "say"]
  assert entries[-2] == ("save", 4, 4, {"score": 1.0})


def test_a_finished_run_trains_no_step(scalar):
  state = scalar[0]()._replace(step=jnp.int32(7))
  result, entries = fit(scalar, lambda i: pytest.fail("no batch is needed"), 7, state)
  assert result[1] == {}
  assert entries == []


def test_a_resumed_run_keeps_the_rhythm(scalar):
  requested, state = [], scalar[0]()._replace(step=jnp.int32(4))
  _, entries = fit(scalar, lambda i: requested.append(i) or batch(1), 7, state)
  assert requested == [4, 5, 6]
  assert [(entry[1], entry[3]) for entry in entries if entry[0] == "progress"] == [(6, 20), (7, 10)]


def refusing(scalar, refused, total_steps=40, **options):
  """The error of a run whose updates after these steps are refused; its entries by kind."""
  error, entries = fit(
    scalar, lambda i: batch(np.nan if i in refused else 1.0), total_steps, **options
  )
  kinds = {kind: [entry[1:] for entry in entries if entry[0] == kind] for kind, *_ in entries}
  return error, kinds


def test_refused_updates_are_counted_and_the_last_state_is_saved(scalar):
  _, kinds = refusing(scalar, (1, 2, 4), 6)
  means = [values for _, values, _ in kinds["progress"]]
  assert [m.get("refused_updates") for m in means] == [2, 1]
  assert all(np.isfinite(m["loss"]) for m in means)
  _, kinds = refusing(scalar, range(9, 12), 12)
  assert [step for step, *_ in kinds["save"]] == [5, 12]
  assert ("step 10: not saved, since its update was refused",) in kinds["say"]


@pytest.mark.parametrize(
  "accepted, saves, fault",
  [
    # Before the first of them, nine were only counted.
    (range(9, 12), [10, 12], "step 22: 10 updates in a row .*loss nan.* the last sound step is 11"),
    (range(9), [2, 4, 6, 8], "the last sound step is 8; a checkpoint of a later one may be bad"),
    ((), [], "no update since step 0 was accepted.*optim.learning_rate.*optim.warmup_steps"),
  ],
)
def test_ten_refused_updates_in_a_row_end_the_run_and_nothing_is_saved(
  scalar, accepted, saves, fault
):
  error, kinds = refusing(scalar, {*range(40)} - {*accepted}, save_every=2)
  assert isinstance(error, InputError) and re.search(fault, str(error))
  assert [step for step, *_ in kinds.get("save", ())] == saves


def test_terminated_while_updates_are_refused_it_does_not_save(scalar):
  error, entries = fit(
    scalar, lambda i: batch(np.nan if i == 6 else 1.0), 40, more_hooks=[killed_after(6)]
  )
  assert error.code == 143
  assert entries[-2:] == [
    ("say", "step 7: not saved, since its update was refused"),
    ("say", "stopped at step 7 of 40; the same command resumes"),
  ]
  assert ("save", 7, 7, {}) not in entries


def hang_up_twice(_):
  os.kill(os.getpid(), signal.SIGHUP)
  os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
  "stop, code",
  [
    (kill, 143),
    (hang_up_twice, 128 + signal.SIGHUP),  # as from a terminal that closes, and from its shell
    (lambda _: os.kill(os.getpid(), signal.SIGUSR1), 128 + signal.SIGUSR1),
    (lambda _: os.kill(os.getpid(), signal.SIGUSR1) or kill(), 143),  # Slurm's, then the limit
  ],
)
def test_signals_save_and_exit(scalar, stop, code):
  before = [signal.getsignal(number) for number in SAVING]
  stopping = hooks.Hook(lambda moment: stop(moment) and None, lambda number: number == 6)
  error, entries = fit(scalar, ones, 40, more_hooks=[stopping])
  assert isinstance(error, SystemExit) and error.code == code
  assert entries[-2:] == [
    ("save", 7, 7, {}),
    ("say", "stopped at step 7 of 40 and saved; the same command resumes"),
  ]
  assert [entry[1] for entry in entries if entry[0] == "progress"] == [3, 6, 7]
  assert [signal.getsignal(number) for number in SAVING] == before


def test_what_nohup_ignores_stays_ignored(monkeypatch):
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with loop.Termination() as termination:
      os.kill(os.getpid(), signal.SIGHUP)
      assert not termination.asked
  finally:
    signal.signal(signal.SIGHUP, before)


HANGS_UP = """import os, time
from gpt_jax.training import loop

with loop.Termination() as termination:
  print("ready", flush=True)
  while not termination.asked:
    time.sleep(0.01)
  print("stopped", flush=True)
  os.write(2, b"stopped")
  open("saved", "w").close()
  termination.exit()
"""


def test_output_to_a_closed_terminal_loses_no_checkpoint(tmp_path):
  leader, terminal = os.openpty()
  command = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{HANGS_UP}"
  process = subprocess.Popen(
    [sys.executable, "-c", command],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    start_new_session=True,
    **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
  )
  os.close(terminal)
  shown = b""
  while b"ready" not in shown:
    shown += os.read(leader, 1000)
  os.close(leader)
  assert process.wait(60) == 128 + signal.SIGHUP
  assert (tmp_path / "saved").exists()


def test_a_second_interrupt_or_sigterm_ends_at_once(capfd, monkeypatch):
  with loop.Termination() as termination:
    os.kill(os.getpid(), signal.SIGINT)
    assert termination.asked
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert capfd.readouterr().err == "stopping after this step; repeat to stop at once\n"

  def exit(code):
    raise KeyboardInterrupt(code)

  monkeypatch.setattr(loop.os, "_exit", exit)
  with loop.Termination(), pytest.raises(KeyboardInterrupt) as error:
    kill()
    kill()
  assert error.value.args == (143,)


UNIGRAM = "loss 6.600 is not below the unigram entropy 6.500.*optim.learning_rate"


@pytest.mark.parametrize(
  "metric, losses, warning",
  [
    # Still warming up; below; stuck; one warning is enough.
    ("loss", [(20, 6.6), (30, 4.0), (40, 6.6), (50, 6.6)], UNIGRAM),
    ("loss", [(30, float("nan"))], "loss nan"),
    # Beside the loss per token `loss` is that of two heads.
    ("masked_loss", [(30, 6.6, 5.9), (40, 7.2, 6.51)], "masked_loss 6.510 is not below"),
  ],
)
def test_a_stuck_run_warns_once(metric, losses, warning):
  hook = hooks.warn_when_stuck(6.5, after=20, due=hooks.every(10), metric=metric)
  with pytest.warns(UserWarning, match=warning) as warned:
    for step, *values in losses:
      interval = Interval()
      means = (Mean(np.float32(value), np.float32(1)) for value in values)
      names = ("loss", "masked_loss")[: len(values)]
      interval.add(step, {"finite": True, **dict(zip(names, means, strict=True))})
      hook.run(hooks.StepContext(step, 100, False, None, interval, {}))
  assert len(warned) == 1


def test_when_hooks_are_due():
  doubling = hooks.powers_of_two_times(3)
  assert [step for step in range(50) if doubling(step)] == [3, 6, 12, 24, 48]
  never = (hooks.powers_of_two_times(0), hooks.every(0))
  assert not any(due(step) for due in never for step in range(9))
  either = hooks.any_of(hooks.every(4), hooks.every(6))
  assert [step for step in range(1, 13) if either(step)] == [4, 6, 8, 12]


def test_exactly_one_of_steps_and_epochs():
  assert TrainConfig(steps=7).total_steps(5) == 7
  assert TrainConfig(epochs=3).total_steps(5) == 15
  with pytest.raises(InputError, match="epochs"):  # each of them is planned before the first step
    TrainConfig(epochs=10**9)
  for config in (TrainConfig(), TrainConfig(steps=1, epochs=1)):
    refused("exactly one of them must be above 0", config.total_steps, 5)
