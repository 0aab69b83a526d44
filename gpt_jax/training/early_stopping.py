"""Early stopping: a run ends when its evaluations have not improved for a while, or pauses."""

from collections.abc import Callable

from gpt_jax.errors import InputError, counted
from gpt_jax.training.hooks import Hook, StepContext, StoppedEarly
from gpt_jax.training.recipe import RunContext
from gpt_jax.training.run_log import curve


def ending_hooks(
  metric: str,
  patience: int,
  due: Callable[[int], bool],
  pauses: Callable[[int], bool] | None,
  context: RunContext,
) -> list[Hook]:
  """The hooks that may end a run before its last step; see Recipe.further_hooks.

  Args:
    metric: of the evaluations; higher is better.
    patience: evaluations without a higher value after which the run ends; 0: it does not.
    due: when evaluations are made.
    pauses: after which steps the run ends for now; None: none.
    context: of the run.
  """
  hooks = [pause(pauses)] if pauses else []
  if patience:
    hooks.append(stop_early(context.workdir, metric, patience, context.first, due))
  return hooks


def has_ended(metric: str, patience: int, context: RunContext) -> bool:
  """Whether a run was stopped between its last evaluation and its result; see Recipe.has_ended."""
  values = evaluations(context.workdir, metric, context.first) if patience else []
  return is_exhausted(values, patience)


def stop_early(
  workdir: str, metric: str, patience: int, first: int, due: Callable[[int], bool]
) -> Hook:
  """Raises StoppedEarly after `patience` evaluations without a higher value of the metric.

  It comes last among the hooks, after those that evaluate and save. What it remembers is in
  metrics.jsonl, so a resumed run stops where an uninterrupted one would.

  Args:
    workdir: of the run.
    metric: of the evaluations; higher is better.
    patience: evaluations, counted from the best one.
    first: the step that the run resumes from; 0: it begins.
    due: when evaluations are made.
  """
  values = evaluations(workdir, metric, first)

  def run(moment: StepContext) -> None:
    values.append(moment.evaluation[metric])
    # A run that is being ended by a signal resumes first.
    if is_exhausted(values, patience) and not moment.stopping:
      reason = f"no better {metric} in {counted(patience, 'evaluation')}"
      raise StoppedEarly(moment.step, moment.evaluation, reason)

  return Hook(run, due)


def pause(due: Callable[[int], bool]) -> Hook:
  """Raises StoppedEarly where it is due; after the hooks that evaluate and save, which are due
  there too.
  """

  def run(moment: StepContext) -> None:
    # Refused updates are not saved, and the next start goes on from what is.
    saved = not moment.interval.refused_in_a_row
    if saved and moment.step < moment.total_steps and not moment.stopping:
      reason = "paused; the same command goes on"
      raise StoppedEarly(moment.step, moment.evaluation, reason, goes_on=True)

  return Hook(run, due, at_end=False)


def is_exhausted(values: list[float], patience: int) -> bool:
  """Whether the highest value, the first of equals, is `patience` or more evaluations old."""
  return bool(values) and len(values) - 1 - values.index(max(values)) >= patience


def evaluations(workdir: str, metric: str, until: int) -> list[float]:
  """The values of a metric in the evaluations of a run up to a step."""
  if not until:
    return []
  try:
    steps, values = curve(workdir, metric)
  except InputError:  # no evaluation so far
    return []
  return [value for step, value in zip(steps, values, strict=True) if step <= until]
