"""Hooks: what a run does between updates (log, evaluate, save, warn, stop early), and after which
steps; the metrics of the steps between two reports.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.batch import Mean
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.errors import InputError, counted
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.run_log import curve
from gpt_jax.training.step import TrainState

MAX_REFUSED_UPDATES = 10  # in a row, before a run gives up
_LAST = ("learning_rate", "loss_scale")  # reported as they were at last, not as means


class Diverged(InputError):
  """Training has only non-finite updates."""


class Interval:
  """Metrics of the steps since the last report."""

  def __init__(self):
    # Refused updates up to now, across intervals; without those that a lower loss scale may mend.
    self.refused_in_a_row = 0
    # The last step whose parameters gave a finite loss and gradient, in the step after it.
    self.sound_step: int | None = None
    self._first: int | None = None  # the step that the run began from
    self.clear()

  def clear(self) -> None:
    self.steps, self.refused = 0, 0
    self._values: dict[str, list] = {}

  def add(self, step: int, metrics: dict[str, Any]) -> None:
    """Fetches the metrics of one step from the device, which waits for that step."""
    metrics = jax.device_get(metrics)
    self.steps += 1
    self._first = step - 1 if self._first is None else self._first
    if metrics.pop("finite"):
      self.refused_in_a_row = 0
      self.sound_step = step - 1  # its parameters gave this finite update
      for name, value in metrics.items():
        self._values.setdefault(name, []).append(value)
      return
    self.refused += 1
    if metrics.get("loss_scale", 1) > 1:
      return  # the next step may be finite at half the scale
    self.refused_in_a_row += 1
    if self.refused_in_a_row == MAX_REFUSED_UPDATES:
      sound = f"the last sound step is {self.sound_step}; a checkpoint of a later one may be bad"
      if self.sound_step is None:
        sound = f"no update since step {self._first} was accepted"
      raise Diverged(
        f"step {step}: {MAX_REFUSED_UPDATES} updates in a row had a non-finite loss or gradient "
        f"(loss {metrics['loss'].value:g}, gradient norm {metrics['gradient_norm']:g}); "
        f"{sound}. Start again in another workdir with a lower optim.learning_rate, a "
        "longer optim.warmup_steps or trunk.dtype=float32"
      )

  def means(self) -> dict[str, float]:
    """Exact means of Means, means of other numbers, the last learning rate and loss scale, and the
    number of refused updates where there are any.
    """
    means = {name: _mean(name, values) for name, values in self._values.items()}
    if self.refused:
      means["refused_updates"] = self.refused
    return means


def _mean(name: str, values: list) -> float:
  if isinstance(values[0], Mean):
    # Totals and weights are added apart, so steps with more predictions count more; in float64.
    exact = (Mean(*map(np.float64, value)) for value in values)
    return functools.reduce(Mean.__add__, exact).value
  return float(values[-1] if name in _LAST else np.mean(values))


class RunContext(NamedTuple):
  """A run that is about to train, for the hooks of its recipe."""

  workdir: str
  first: int  # the step that it continues from
  reporter: Reporter


class StepContext(NamedTuple):
  """The run after a step, as a hook sees it."""

  step: int  # batches seen, skipped updates included
  total_steps: int
  stopping: bool  # whether the run ends here because of a SIGTERM or Ctrl-C
  state: TrainState  # a hook must not keep it, since the next step reuses its memory
  interval: Interval
  evaluation: dict[str, float]  # by earlier hooks of this step


@dataclasses.dataclass(frozen=True)
class Hook:
  """A function called between updates, and when it is due."""

  run: Callable[[StepContext], dict[str, float] | None]  # evaluations give numbers by name
  due: Callable[[int], bool]  # whether to run after a step
  at_end: bool = True  # whether to run after the last step too
  on_stop: bool = False  # whether to run, too, after a step at which SIGTERM or Ctrl-C ends it

  def is_due(self, step: int, total_steps: int, stopping: bool) -> bool:
    at_end = self.at_end and step == total_steps
    return at_end or (self.on_stop and stopping) or self.due(step)


class StoppedEarly(Exception):
  """Raised by a hook to end the training loop; not an error."""

  def __init__(self, step: int, evaluation: dict[str, float], reason: str, goes_on: bool = False):
    """`goes_on`: whether the run is not finished, and the same call goes on with it."""
    super().__init__(f"stopped early at step {step}")
    self.step, self.evaluation = step, evaluation
    self.reason, self.goes_on = reason, goes_on


def every(steps: int) -> Callable[[int], bool]:
  """Due after every so many steps; never if 0."""
  return lambda step: bool(steps) and step % steps == 0


def powers_of_two_times(first: int) -> Callable[[int], bool]:
  """Due at first, 2 first, 4 first, …: evenly spaced on a logarithmic axis; never if 0."""

  def due(step: int) -> bool:
    times, rest = divmod(step, first) if first else (0, 0)
    # A power of two has a single bit.
    return times > 0 and rest == 0 and times & (times - 1) == 0

  return due


def any_of(*conditions: Callable[[int], bool]) -> Callable[[int], bool]:
  """Due when any of the conditions is."""
  return lambda step: any(due(step) for due in conditions)


def log_progress(reporter: Reporter, tokens_per_step: float, due: Callable[[int], bool]) -> Hook:
  """Reports the means since its last run and starts a new interval; after hooks that read these."""

  def run(moment: StepContext) -> None:
    interval = moment.interval
    reporter.progress(moment.step, interval.means(), tokens_per_step * interval.steps)
    interval.clear()  # the next report begins here

  return Hook(run, due, on_stop=True)


def evaluate(
  reporter: Reporter, measure: Callable[[Any], dict[str, float]], due: Callable[[int], bool]
) -> Hook:
  """Reports measure(params), which later hooks of the same step find in `moment.evaluation`."""

  def run(moment: StepContext) -> dict[str, float]:
    with reporter.paused():
      measured = measure(moment.state.all_params)
      reporter.results(moment.step, measured)
    return measured

  return Hook(run, due)


def save(
  reporter: Reporter, checkpoints: Checkpoints, meta: dict[str, Any], due: Callable[[int], bool]
) -> Hook:
  """Saves a checkpoint with the evaluation of the same step, if one was made; while updates are
  refused, of the last state alone, so that checkpoints from before the first refusal stay.
  """

  def run(moment: StepContext) -> None:
    saving = not moment.interval.refused_in_a_row or moment.step == moment.total_steps
    if saving:
      with reporter.paused():
        # First the log: a checkpoint must not have steps that the log lacks.
        reporter.sync()
        state = moment.state._replace(base=None)
        checkpoints.save(moment.step, state, meta, moment.evaluation)
    else:
      reporter.say(f"step {moment.step}: not saved, since its update was refused")
    if moment.stopping:
      saved = " and saved" if saving else ""
      where = f"step {moment.step} of {moment.total_steps}"
      reporter.say(f"stopped at {where}{saved}; the same command resumes")

  return Hook(run, due, on_stop=True)


def warn_when_stuck(
  baseline: float,
  after: float,
  due: Callable[[int], bool],
  metric: str = "loss",
  *,
  name: str = "the unigram entropy",
  meaning: str = "the model has learned nothing but word frequencies so far",
  advice: str = "lower optim.learning_rate or raise optim.warmup_steps",
) -> Hook:
  """Warns once if after step `after` a metric is still not below the baseline, in nats, of a model
  that has learned nothing.

  Post-norm models fail this way when the learning rate is too high or the warm-up too short.
  """
  warned = False

  def run(moment: StepContext) -> None:
    nonlocal warned
    # A mean, since the loss of a single batch can be on either side by chance.
    loss = moment.interval.means().get(metric)
    if warned or loss is None or moment.step <= after or loss < baseline:
      return
    warned = True  # one warning a run is enough: the log shows the loss
    warnings.warn(
      f"{metric} {loss:.3f} is not below {name} {baseline:.3f} after warm-up: {meaning}; if it "
      f"stays there, {advice}",
      stacklevel=2,
    )

  return Hook(run, due, on_stop=True)


def ending_hooks(
  metric: str,
  patience: int,
  due: Callable[[int], bool],
  pauses: Callable[[int], bool] | None,
  context: RunContext,
) -> list[Hook]:
  """The hooks that may end a run before its last step, by StoppedEarly; see Recipe.further_hooks.

  The run ends after `patience` evaluations (0: none) without a higher value of the metric and, for
  now, after the steps that `pauses` says. What the hooks remember is in metrics.jsonl, so a resumed
  run stops where an uninterrupted one would.
  """
  values = _evaluations(metric, context) if patience else []

  def stop_early(moment: StepContext) -> None:
    values.append(moment.evaluation[metric])
    # A run that is being ended by a signal resumes first.
    if is_exhausted(values, patience) and not moment.stopping:
      reason = f"no better {metric} in {counted(patience, 'evaluation')}"
      raise StoppedEarly(moment.step, moment.evaluation, reason)

  def pause(moment: StepContext) -> None:
    # Refused updates are not saved, and the next start goes on from what is.
    saved = not moment.interval.refused_in_a_row
    if saved and moment.step < moment.total_steps and not moment.stopping:
      reason = "paused; the same command goes on"
      raise StoppedEarly(moment.step, moment.evaluation, reason, goes_on=True)

  hooks = [Hook(pause, pauses, at_end=False)] if pauses else []
  return [*hooks, Hook(stop_early, due)] if patience else hooks


def has_ended(metric: str, patience: int, context: RunContext) -> bool:
  """Whether a run was stopped between its last evaluation and its result; see Recipe.has_ended."""
  return bool(patience) and is_exhausted(_evaluations(metric, context), patience)


def is_exhausted(values: list[float], patience: int) -> bool:
  """Whether the highest value, the first of equals, is `patience` or more evaluations old."""
  return bool(values) and len(values) - 1 - values.index(max(values)) >= patience


def _evaluations(metric: str, context: RunContext) -> list[float]:
  """The values of a metric in the evaluations of a run up to the step that it resumes from."""
  if not context.first:
    return []
  try:
    steps, values = curve(context.workdir, metric)
  except InputError:  # no evaluation so far
    return []
  return [value for step, value in zip(steps, values, strict=True) if step <= context.first]
