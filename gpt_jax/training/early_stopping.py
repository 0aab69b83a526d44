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
  """The hooks that may end a run before its last step, by StoppedEarly; see Recipe.further_hooks.

  They come after the hooks that evaluate and save. What they remember is in metrics.jsonl, so a
  resumed run stops where an uninterrupted one would.

  Args:
    metric: of the evaluations; higher is better.
    patience: evaluations without a higher value after which the run ends; 0: it does not.
    pauses: after which steps the run ends for now, beside evaluations and saves; None: none.
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
