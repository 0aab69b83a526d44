"""Evaluations of a fine-tuning run on the dev set: metrics, schedule and final report."""

import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from gpt_jax.checkpoints.restore import best_evaluation, restore_params
from gpt_jax.errors import InputError
from gpt_jax.inference.dev_report import REPORT, format_calibration, write_dev_report
from gpt_jax.inference.text_answers import make_task_predictor
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_start import Start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.labels import format_labels
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.training import hooks
from gpt_jax.training.reporter import log

FIRST_EVALUATION = 1000  # updates; see evaluation_due


def evaluation_due(evaluate_every: int, steps_per_epoch: int) -> Callable[[int], bool]:
  """Every `evaluate_every` steps, or if 0 as OpenAI's code does: after 1000, 2000, 4000, … updates
  of the first epoch and at the end of each epoch (`openai/train.py:430-445`).
  """
  if evaluate_every:
    return hooks.every(evaluate_every)
  epoch_ends, doubling = hooks.every(steps_per_epoch), hooks.powers_of_two_times(FIRST_EVALUATION)
  return lambda step: epoch_ends(step) or (step < steps_per_epoch and doubling(step))


def make_evaluations(
  config: FinetuneConfig,
  spec: ModelConfig,
  task: LabeledTask,
  dev_set: Encoded,
  mesh: Mesh,
  data_dir: str,
  start: Start,
) -> tuple[Callable[[Any], dict[str, float]], Callable[[Any, int, str], None]]:
  """See make_measure and make_report; both predict by one compiled function."""
  predict = make_task_predictor(task, spec, mesh, start.tokenizer)
  measure = make_measure(config, task, dev_set, predict)
  return measure, make_report(config, task, dev_set, predict, data_dir)


def make_measure(
  config: FinetuneConfig, task: LabeledTask, dev_set: Encoded, predict: Callable[..., Any]
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to dev_loss and the task's metrics, dev_accuracy and so on.

  Args:
    predict: from make_task_predictor.
  """

  def measure(params) -> dict[str, float]:
    predictions = predict(params, dev_set, config.batch_size)
    measures = task.measures(predictions, dev_set.truth)
    return {f"dev_{name}": value for name, value in measures.items()}

  return measure


def make_report(
  config: FinetuneConfig,
  task: LabeledTask,
  dev_set: Encoded,
  predict: Callable[..., Any],
  data_dir: str,
) -> Callable[[Any, int, str], None]:
  """The function from a run's last parameters, their step and its folder to what dev_report writes
  there of the run's best checkpoint; it does nothing for tasks that have no report.

  Args:
    predict: from make_task_predictor.
    data_dir: see write_dev_report.
  """

  def write(params, step: int, workdir: str) -> None:
    best = best_evaluation(workdir)
    try:
      if best is not None and best["step"] != step:
        # With the shardings of the run's parameters, for which `predict` is compiled.
        shapes = jax.tree.map(_abstract, params)
        params, _, step = restore_params(os.path.join(workdir, "best"), shapes)
      probabilities = predict(params, dev_set, config.batch_size)
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


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
