"""The results of fine-tuning runs: result.json of each seed, summary.json of several."""

import os
import warnings
from collections.abc import Callable
from typing import Any

from gpt_jax.checkpoints.restore import best_evaluation
from gpt_jax.files import read_json, verified, with_checksum, write_json
from gpt_jax.inference.seeds import format_summary, summarize
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.training.majority import warn_of_majority
from gpt_jax.training.recipe import Finished
from gpt_jax.training.reporter import log

RESULT = "result.json"


def finish(
  config: FinetuneConfig,
  task: LabeledTask,
  dev_set: Encoded,
  report: Callable[[Any, int, str], None],
  finished: Finished,
  workdir: str,
) -> dict[str, Any]:
  """Writes the dev report and result.json of a run; returns the content of the latter."""
  steps, stopped = finished.steps, finished.stopped
  # A stopped run's last state was donated to the step that was stopped: read the best one.
  report(finished.params, 0 if stopped else steps, workdir)
  measured = finished.evaluation
  result: dict[str, Any] = {
    "task": task.name,
    "seed": finished.seed,
    "steps": steps,
    "dev": measured,
  }
  if is_main_process() and not (stopped and stopped.goes_on):
    # Without a checkpoint whose metric is a number, the last evaluation stands for the best.
    result["best"] = best_evaluation(workdir) or {"step": steps, **measured}
    write_json(os.path.join(workdir, RESULT), with_checksum(result))
    warn_of_majority(task, dev_set, result["best"], config.optim, config.train)
  return result


def read_result(workdir: str) -> dict[str, Any] | None:
  """The result of a finished run; None if there is none, or one that is not what was written."""
  path = os.path.join(workdir, RESULT)
  try:
    return verified(read_json(path))
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    warnings.warn(f"{path}: {error}; the last checkpoint is evaluated again", stacklevel=2)
    return None


def write_summary(results: list[dict[str, Any]], workdir: str) -> list[dict[str, Any]]:
  """Writes `summary.json` on process 0, and logs it; returns the results."""
  if is_main_process():  # which alone knows the best evaluations
    over_seeds = summarize(results)
    write_json(os.path.join(workdir, "summary.json"), over_seeds)
    log(format_summary(over_seeds))
  return results
