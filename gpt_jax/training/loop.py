"""The training loop: given a state, a loss and a batch per step. It knows no model, task or
objective.
"""

import dataclasses
import functools
import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Mean
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import option, validate
from gpt_jax.errors import InputError
from gpt_jax.models.losses import Loss
from gpt_jax.ops import dropout
from gpt_jax.parallel import sharding
from gpt_jax.training.reporter import Reporter

MOST_BAD_STEPS = 10  # in a row, before a run gives up


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Length and rhythm of a run."""

  steps: int = option(0, "updates; 0 where epochs decide", unit="steps", low=0)
  epochs: int = option(0, "passes over the data; 0 where steps decide", low=0)
  seed: int = option(0, "of initialisation, batches and dropout", low=0, high=2**32 - 1)
  microbatches: int = option(
    1, "parts of a batch whose gradients are accumulated, to save memory", low=1
  )
  log_every: int = option(20, "between lines of progress and metrics", unit="steps", low=1)
  evaluate_every: int = option(0, "between evaluations; 0: at the end only", unit="steps", low=0)
  checkpoint_every: int = option(
    1000, "between checkpoints; 0: where evaluated only", unit="steps", low=0
  )
  milestone: int = option(
    0,
    "keep for good the checkpoint of this step and of its doublings; 0: of none",
    unit="steps",
    low=0,
  )

  def __post_init__(self):
    validate(self)

  def total_steps(self, steps_per_epoch: int) -> int:
    """Raises InputError unless exactly one of steps and epochs is given."""
    if bool(self.steps) == bool(self.epochs):
      raise InputError(
        f"train.steps={self.steps} and train.epochs={self.epochs}: exactly one of them must be above 0"
      )
    return self.steps or self.epochs * steps_per_epoch


class TrainState(NamedTuple):
  """All that a step changes; arrays only. `step` counts batches, also those whose update was
  refused.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def due(step: int, every: int) -> bool:
  """Whether something done every so many steps is done after this one."""
  return bool(every) and step % every == 0


def doubling(step: int, first: int) -> bool:
  """Whether step is first, 2 first, 4 first, …: points evenly apart on a logarithmic axis. Never
  where first is 0.
  """
  times, rest = divmod(step, first) if first else (0, 0)
  return times > 0 and rest == 0 and times & (times - 1) == 0


def init_state(
  init: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], TrainState]:
  """The function from a seed to the first state: jitted with its shardings, no host ever holds more
  than its share.

  The order: (1) parameters from key(seed); (2) the optimizer's moments from the parameters; (3)
    step 0.
  """

  def make(seed: jax.Array) -> TrainState:
    params = init(jax.random.key(seed))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  return make


def lay_out(
  make_state: Callable[[jax.Array], TrainState],
  mesh: Mesh,
  rules: sharding.Rules,
  fsdp: bool = False,
) -> tuple[Callable[[jax.Array], TrainState], Any]:
  """make_state compiled for the mesh, and the shardings of what it makes."""
  shardings = sharding.partition(jax.eval_shape(make_state, np.uint32(0)), rules, mesh, fsdp)
  return jax.jit(make_state, out_shardings=shardings), shardings


def begin(
  make_state: Callable[[jax.Array], TrainState], shardings: Any, seed: int, checkpoints: Checkpoints
) -> tuple[TrainState, int]:
  """The newest checkpoint's state, or the first state where there is none; and its step. See
  lay_out.
  """
  seed = np.uint32(
    seed
  )  # an argument of the compiled programs: runs that differ in it alone share them
  if not checkpoints.steps():
    return make_state(seed), 0
  abstract = jax.eval_shape(make_state, seed)
  placed = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
  )
  state, _, step = checkpoints.restore(placed)
  return state, step


def make_step(
  loss: Loss,
  optimizer: optax.GradientTransformation,
  schedule: optax.Schedule,
  mesh: Mesh,
  state_shardings: Any,
  *,
  microbatches: int = 1,
  via: str = "jit",
) -> Callable[[TrainState, Any, int], tuple[TrainState, dict[str, Any]]]:
  """(state, batch of [M, B / M, ...], seed) -> (state, metrics), compiled; the state's memory is
  given to the new one.

  The gradient is that of the objective's total, summed over microbatches and devices, then divided
  by the summed
  weight: the same for any split of the batch. An update with an infinite or undefined loss or
  gradient is refused: the state stays as it was but for its step.
  """
  axis = sharding.PMAP_AXIS if via == "pmap" else None

  def gradient(params, batch, key):
    def total(params):
      objective, metrics = loss(params, batch, key)
      return objective.total, (objective, metrics)

    grads, (objective, metrics) = jax.grad(total, has_aux=True)(params)
    return grads, objective, metrics

  def step(state: TrainState, batch, seed) -> tuple[TrainState, dict[str, Any]]:
    device, devices = (jax.lax.axis_index(axis), jax.lax.axis_size(axis)) if axis else (0, 1)

    def part(index, batch):
      return gradient(state.params, batch, dropout.key(seed, state.step, index * devices + device))

    sums = part(0, jax.tree.map(lambda x: x[0], batch))
    if microbatches > 1:

      def add(sums, at):
        index, batch = at
        return jax.tree.map(jnp.add, sums, part(index, batch)), None

      rest = (jnp.arange(1, microbatches), jax.tree.map(lambda x: x[1:], batch))
      sums, _ = jax.lax.scan(add, sums, rest)
    grads, objective, metrics = jax.lax.psum(sums, axis) if axis else sums
    norm = optax.tree.norm(grads) / objective.weight
    finite = jnp.isfinite(norm) & jnp.isfinite(objective.total)

    def update(params, opt_state):
      # In here, and as a product, so that it fuses with the update: dividing before took a pass
      # over all memory more.
      mean = jax.tree.map(lambda g: g * (1 / objective.weight), grads)
      updates, opt_state = optimizer.update(mean, opt_state, params, norm=norm)
      return optax.apply_updates(params, updates), opt_state

    # A select of every leaf instead would copy the old moments first: 8 % of a step on a CPU.
    params, opt_state = jax.lax.cond(
      finite, update, lambda *same: same, state.params, state.opt_state
    )
    metrics = {
      **metrics,
      "gradient_norm": norm,
      "learning_rate": schedule(optax.tree.get_all_with_path(state.opt_state, "count")[0][1]),
      "finite": finite,
    }
    return TrainState(state.step + 1, params, opt_state), metrics

  if axis:
    alone = jax.process_count() == 1
    # With several processes a donated, replicated state is deleted while peers still read it.
    donate = (0,) if alone else ()
    mapped = jax.pmap(
      step, axis_name=axis, in_axes=(None, 0, None), out_axes=(None, None), donate_argnums=donate
    )
    here, everywhere = (
      NamedSharding(Mesh(np.array(jax.local_devices()), axis), P()),
      NamedSharding(mesh, P()),
    )

    def step_on_processes(state, batch, seed):
      # Always the sharding that pmap returns, or it would compile a second time for its own output.
      # Among several processes those arrays are of one process; evaluation and checkpoints need
      # what all share.
      state, metrics = mapped(_relabelled(state, here), batch, np.uint32(seed))
      return state if alone else _relabelled(state, everywhere), metrics

    return step_on_processes
  compiled = jax.jit(
    step,
    in_shardings=(state_shardings, NamedSharding(mesh, P(None, "data")), NamedSharding(mesh, P())),
    out_shardings=(state_shardings, NamedSharding(mesh, P())),
    donate_argnums=0,
  )

  def step_on_mesh(state, batch, seed):
    with jax.set_mesh(mesh):
      return compiled(state, batch, np.uint32(seed))

  return step_on_mesh


def _relabelled(tree: Any, sharding: NamedSharding) -> Any:
  """Replicated arrays under another sharding; nothing is copied."""

  def of_leaf(x: jax.Array) -> jax.Array:
    if x.sharding == sharding:
      return x
    return jax.make_array_from_single_device_arrays(
      x.shape, sharding, [s.data for s in x.addressable_shards]
    )

  return jax.tree.map(of_leaf, tree)


def fit(
  state: TrainState,
  step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]],
  batch_at: Callable[[int], Any],
  total_steps: int,
  *,
  reporter: Reporter,
  tokens_per_step: float,
  save: Callable[[int, TrainState, dict[str, float] | None], None],
  evaluate: Callable[[Any], dict[str, float]],
  log_every: int,
  evaluate_at: Callable[[int], bool],
  save_at: Callable[[int], bool],
  watch: Callable[[int, dict[str, float]], None] = lambda step, means: None,
) -> tuple[TrainState, dict[str, float]]:
  """Runs from the state's step to `total_steps`; the last step is always evaluated and saved.

  Metrics of a step are read while the next one runs, so that the device never waits for the host.

  Args:
    state: the first state; its memory is given up.
    step: from make_step, its seed given.
    batch_at: step -> device batch, a pure function.
    save: called with (step, state, the evaluation made at this step or None).
    evaluate: params -> named numbers.
    watch: called with the means of the steps since the last report, every `log_every` steps.

  Returns:
    The last state and its evaluation.

  Raises:
    InputError: after 10 refused updates in a row.
    SystemExit: with code 0 after a SIGTERM, the state saved.
  """
  first = int(state.step)
  if first >= total_steps:
    return state, evaluate(state.params)
  window, pending, evaluation = _Window(), None, {}
  with _Termination() as termination:
    for done in range(first + 1, total_steps + 1):
      state, metrics = step(state, batch_at(done - 1))
      if pending:
        window.add(*pending)
      pending = done, metrics
      stopping = termination.requested(done)
      last = done == total_steps
      logging = last or stopping or due(done, log_every)
      # Also when stopping, or the evaluation of this very step would never be made.
      evaluating, saving = last or evaluate_at(done), last or stopping or save_at(done)
      if logging or evaluating or saving:  # a state that is evaluated or saved is known to be sound
        window.add(*pending)
        pending = None
      if logging:
        means = window.means()
        reporter.progress(done, means, tokens_per_step * window.steps)
        watch(done, means)
        window.clear()
      with reporter.paused():
        if evaluating:
          evaluation = evaluate(state.params)
          reporter.results(done, evaluation)
        if saving:
          save(done, state, evaluation if evaluating else None)
      if stopping:
        reporter.say(f"stopped at step {done} of {total_steps} and saved; the same command resumes")
        raise SystemExit(0)
    if termination.asked:  # during the last evaluation; there may be another run behind this one
      raise SystemExit(0)
  return state, evaluation


def warn_if_stuck(loss: float, unigram_entropy: float) -> bool:
  """Warns where a model, its warm-up over, predicts no better than word frequencies do
  (post-norm's known failure).
  """
  stuck = not loss < unigram_entropy
  if stuck:
    warnings.warn(
      f"loss {loss:.3f} is not below the unigram entropy {unigram_entropy:.3f} after warm-up: the model has learned "
      "nothing but word frequencies so far; if it stays there, lower optim.learning_rate or raise optim.warmup_steps",
      stacklevel=2,
    )
  return stuck


class _Window:
  """The metrics of the steps since the last report, and the count of refused updates in a row."""

  def __init__(self):
    self.refused_in_a_row = 0
    self.clear()

  def clear(self) -> None:
    self.steps, self.refused, self.metrics = 0, 0, {}

  def add(self, step: int, metrics: dict[str, Any]) -> None:
    """Fetches what a step returned. Raises InputError at the tenth refused update in a row."""
    metrics = jax.device_get(metrics)
    self.steps += 1
    if not metrics.pop("finite"):
      self.refused += 1
      self.refused_in_a_row += 1
      if self.refused_in_a_row == MOST_BAD_STEPS:
        raise InputError(
          f"step {step}: {MOST_BAD_STEPS} updates in a row had a loss or gradient that is not finite "
          f"(loss {metrics['loss'].value:g}, gradient norm {metrics['gradient_norm']:g}); the last checkpoint is "
          "unharmed. Start again in another --workdir with a lower optim.learning_rate, a longer optim.warmup_steps or "
          "trunk.dtype=float32"
        )
      return
    self.refused_in_a_row = 0
    for name, value in metrics.items():
      self.metrics.setdefault(name, []).append(value)

  def means(self) -> dict[str, float]:
    """Exact means of Means, means of other numbers, the last learning rate, and how many updates
    were refused.
    """
    result = {name: self._mean(name, values) for name, values in self.metrics.items()}
    return {**result, "refused_updates": self.refused} if self.refused else result

  def _mean(self, name: str, values: list) -> float:
    if isinstance(values[0], Mean):
      return functools.reduce(Mean.plus, (Mean(*map(np.float64, value)) for value in values)).value
    return float(values[-1] if name == "learning_rate" else np.mean(values))


class _Termination:
  """SIGTERM asks for a last checkpoint; a second one ends the process at once."""

  def __enter__(self):
    self.asked, self.before = False, None
    # Among several processes jax.distributed catches the signal, and makes all of them save the
    # same step.
    if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
      self.before = signal.signal(signal.SIGTERM, self._ask)
    return self

  def __exit__(self, *_):
    if self.before is not None:
      signal.signal(signal.SIGTERM, self.before)

  def _ask(self, *_):
    if self.asked:
      os._exit(1)
    self.asked = True

  def requested(self, step: int) -> bool:
    if jax.process_count() == 1:
      return self.asked
    return multihost_utils.reached_preemption_sync_point(step)
