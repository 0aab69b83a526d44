"""Evaluations of a fine-tuning run on the dev set, and its results: result.json of each seed,
summary.json of several, a warning of a model that is no better than a constant answer.
"""

import math
import os
import warnings
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.restore import best_evaluation, restore_params
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.files import exists, read_json, remove_folder, verified, with_checksum, write_json
from gpt_jax.inference.dev_report import REPORT, format_calibration, write_dev_report
from gpt_jax.inference.intervals import format_summary, summarize
from gpt_jax.models.predictor import make_task_predictor
from gpt_jax.models.trunk import BASE
from gpt_jax.parallel.processes import is_main_process, log
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import one_head
from gpt_jax.programs.start import Start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.metrics import format_labels
from gpt_jax.training import hooks
from gpt_jax.training.recipe import Finished, Recipe

RESULT = "result.json"
FIRST_EVALUATION = 1000  # updates; see evaluation_due


def evaluation_due(
  evaluate_every: int, steps_per_epoch: int, pauses: Callable[[int], bool] | None = None
) -> Callable[[int], bool]:
  """Every `evaluate_every` steps, or if 0 after 1000, 2000, 4000, … updates of the first epoch and
  at the end of each epoch, as `openai/train.py:430-445`; and where a run pauses.
  """
  epoch_ends, doubling = hooks.every(steps_per_epoch), hooks.powers_of_two_times(FIRST_EVALUATION)

  def due(step: int) -> bool:
    return epoch_ends(step) or (step < steps_per_epoch and doubling(step))

  regular = hooks.every(evaluate_every) if evaluate_every else due
  return hooks.any_of(regular, pauses) if pauses else regular


def make_evaluations(
  recipe: Recipe, task: LabeledTask, dev_set: Encoded, data_dir: str, start: Start
) -> tuple[Callable[[Any], dict[str, float]], Callable[[Any, int, str], None]]:
  """The function from parameters to dev_loss and the task's metrics, dev_accuracy and so on; and
  that of make_report. What parameters predict is computed once for both.
  """
  spec, size = from_json(recipe.meta["model"]), recipe.config.batch_size
  several = len(task.parts) > 1
  if several:  # each by the model of its head alone
    specs = [one_head(spec, number) for number in range(len(task.parts))]
    predictors = [
      make_task_predictor(part, alone, recipe.mesh, start.tokenizer)
      for part, alone in zip(task.parts, specs, strict=True)
    ]

    def predict(params) -> Any:
      pairs = zip(predictors, cast(Any, dev_set).parts, strict=True)
      return [of_part(params, part, size) for of_part, part in pairs]

  else:
    of_spec = make_task_predictor(task, spec, recipe.mesh, start.tokenizer)

    def predict(params) -> Any:
      return of_spec(recipe.inference_params(params), dev_set, size)

  newest: list[Any] = []  # parameters, and what they predict

  def measure(params) -> dict[str, float]:
    newest[:] = params, predict(params)
    measures = task.measures(newest[1], dev_set.truth)
    return {f"dev_{name}": value for name, value in measures.items()}

  def predict_again(params) -> Any:
    measured, predicted = newest or (None, None)
    newest.clear()  # or the next run would train beside these parameters
    return predicted if measured is params else predict(params)

  if several:
    return measure, _export_parts
  return measure, make_report(task, dev_set, predict_again, data_dir, recipe.base)


def _export_parts(params: Any, step: int, workdir: str) -> None:
  """Writes the best checkpoint as a model of each task to WORKDIR/tasks/NAME, for any program."""
  if not is_main_process() or best_evaluation(workdir) is None:
    return
  loaded = load_model(os.path.join(workdir, "best"))
  for number, task in enumerate(loaded.meta["task"]["tasks"]):
    alone = one_head(loaded.spec, number)
    meta = {**loaded.meta, "model": to_json(alone), "task": task}
    # Without the other heads, so that it is a model as if it had been trained for one task.
    name = alone.head.scope
    params = {scope: loaded.params[scope] for scope in ("trunk", name)}
    folder = os.path.join(workdir, "tasks", name)
    if exists(folder):  # of a run that was stopped and has gone on
      remove_folder(folder)
    find_format("npz").save(folder, params, meta, loaded.step, loaded.tokenizer)
    log(f"wrote {folder}, the best checkpoint's model of {name}")


def make_report(
  task: LabeledTask,
  dev_set: Encoded,
  predict: Callable[[Any], Any],
  data_dir: str,
  make_base: Callable[[Any], Any] | None,
) -> Callable[[Any, int, str], None]:
  """The function from a run's last parameters, their step and its folder to what dev_report writes
  there of the run's best checkpoint; it does nothing for tasks that have no report. `predict` gives
  what parameters predict of the dev set, `make_base` is Recipe.base.
  """

  def write(params, step: int, workdir: str) -> None:
    best = best_evaluation(workdir)
    try:
      if best is not None and best["step"] != step:
        # With the shardings of the run's parameters, for which `predict` is compiled.
        saved = {name: x for name, x in params.items() if name != BASE}
        shapes = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), saved
        )
        saved, _, step = restore_params(os.path.join(workdir, "best"), shapes)
        if make_base is not None:
          base = params[BASE]
          if any(x.is_deleted() for x in jax.tree.leaves(base)):  # with a stopped run's state
            base = make_base(jax.tree.map(lambda x: x.sharding, base))
          saved[BASE] = base
        params = saved
      probabilities = predict(params)
      if not is_main_process():
        return
      name = f"{task.name} dev, best checkpoint (step {step}):"
      report = write_dev_report(workdir, task, dev_set, probabilities, step, data_dir)
      if task.is_classification:
        log(f"{name} {format_calibration(report)}")
      else:
        log(f"{name}\n{format_labels(report['per_class'])}")
    except InputError as error:  # scikit-learn is missing; the run's result does not depend on it
      log(f"no {REPORT}: {error}")

  return write if task.has_report else lambda *_: None


def finish(
  config: FinetuneConfig,
  task: LabeledTask,
  dev_set: Encoded,
  report: Callable[[Any, int, str], None],
  from_scratch: bool,
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
    warn_of_majority(task, dev_set, result["best"], config, from_scratch)
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


def warn_of_majority(
  task: LabeledTask,
  dev_set: Encoded,
  best: dict[str, float],
  config: FinetuneConfig,
  from_scratch: bool,
) -> None:
  """Logs a warning, and what to try, if the best model is no better than a constant answer: its
  accuracy does not exceed the share of the commonest label by more than its standard error, or
  another metric is not better than its baseline.

  best: the best evaluation of the run: dev_loss, and dev_accuracy, dev_baseline_<metric> or
    dev_degenerate.
  """
  constant = task.constant_loss(dev_set.labels)
  if constant is None:
    return
  shares = dev_set.labels.mean(axis=0)
  if task.is_classification and shares.max() == 1:
    only = f"all {len(dev_set):,} dev rows are {task.labels[int(shares.argmax())]}"
    log(f"warning: {task.name}: {only}, and cannot say what was learned; add rows of other labels")
    return
  problem = _problem(task, shares, len(dev_set), best)
  if not problem or config.optim.learning_rate == 0:  # of which a line before the run has warned
    return
  # Steps that are too large leave a loss far above that of predicting the labels' shares.
  too_high = best.get("dev_loss", 0.0) > 1.5 * constant
  # Half a power of ten down or up.
  rate = (config.optim.learning_rate or 0.0) * (0.3 if too_high else 3)
  train = config.train
  length = "epochs" if train.epochs else "steps"
  advice = (
    f"in another workdir try a {'lower' if too_high else 'higher'} rate, "
    f"config.optim.learning_rate={rate:.2g}, and a longer run, "
    f"config.train.{length}={2 * (train.epochs or train.steps)}"
  )
  if from_scratch:
    advice = "it began from random weights: fine-tune a checkpoint, or label many more rows"
  log(f"warning: {task.name}: {problem}; {advice}")


def _problem(task: LabeledTask, shares: np.ndarray, count: int, best: dict[str, float]) -> str:
  """Describes the problem of the best evaluation; "" if there is none."""
  commonest, share = int(shares.argmax()), float(shares.max())
  if "dev_baseline_rmse" in best and best["dev_rmse"] > 0.98 * best["dev_baseline_rmse"]:
    return (
      f"the best model's root mean squared error on dev, {best['dev_rmse']:.4g}, is not 2 % below "
      f"that of always answering the mean of the training set, {best['dev_baseline_rmse']:.4g}"
    )
  if "dev_baseline_micro_f1" in best and best["dev_micro_f1"] <= best["dev_baseline_micro_f1"]:
    return (
      f"the best model's micro-F1 on dev, {best['dev_micro_f1']:.3f}, is not above that of giving "
      f"each row the same commonest labels, {best['dev_baseline_micro_f1']:.3f}"
    )
  accuracy = best.get("dev_accuracy")
  if accuracy is None:
    return "the best model predicts the same for every dev row" if "dev_degenerate" in best else ""
  if accuracy > share + math.sqrt(share * (1 - share) / count):
    return ""
  return (
    f"the best dev accuracy, {accuracy:.1%}, is not above the share of the commonest label, "
    f"{task.labels[commonest]} with {share:.1%} of {count:,} dev rows"
  )
