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
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.batch import Mean
from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.step import TrainState

MOST_BAD_STEPS = 10  # in a row, before a run gives up


@register("train")
@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Length and rhythm of a run."""

  steps: int = option(0, "updates; 0 where epochs decide", unit="steps", low=0)
  epochs: int = option(0, "passes over the data; 0 where steps decide", low=0)
  seed: int = option(0, "of initialization, batches and dropout", low=0, high=2**32 - 1)
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


def due(step: int, every: int) -> bool:
  """Whether something done every so many steps is done after this one."""
  return bool(every) and step % every == 0


def is_power_of_two_multiple(step: int, first: int) -> bool:
  """Whether step is first, 2 first, 4 first, …: points evenly apart on a logarithmic axis. Never
  where first is 0.
  """
  times, rest = divmod(step, first) if first else (0, 0)
  return times > 0 and rest == 0 and times & (times - 1) == 0


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
      return functools.reduce(
        Mean.__add__, (Mean(*map(np.float64, value)) for value in values)
      ).value
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
