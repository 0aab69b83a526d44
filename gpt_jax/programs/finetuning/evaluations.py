"""Evaluations of a fine-tuning run on the dev set: metrics, schedule and final report."""

import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from gpt_jax.checkpoints.store import best_evaluation, restore_params
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.inference.dev_report import (
  REPORT,
  format_calibration,
  format_labels,
  is_classification,
  write_dev_report,
  write_multi_label_report,
)
from gpt_jax.inference.text_answers import text_measures
from gpt_jax.models.model import (
  ModelConfig,
  generator,
)
from gpt_jax.models.predictor import make_predictor, task_measures
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.finetuning.config import FinetuneConfig
from gpt_jax.programs.finetuning.start import Start
from gpt_jax.tasks.answers.labels import MultiLabelTask
from gpt_jax.tasks.answers.text import TextTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.task import LabeledTask
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
  """See make_measure and make_report; both predict by one compiled function.

  A text-to-text model writes its answers, and has no report.
  """
  if isinstance(task, TextTask):
    return make_answer_measure(task, spec, dev_set, start.tokenizer), lambda *_: None
  predict = make_predictor(spec.build(), mesh)
  measure = make_measure(config, task, dev_set, predict)
  return measure, make_report(config, task, dev_set, predict, data_dir)


def make_answer_measure(
  task: TextTask, spec: ModelConfig, dev_set: Any, tokenizer: Tokenizer
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to the metrics of what a text-to-text model writes."""
  model = generator(spec)

  def measure(params) -> dict[str, float]:
    measures = text_measures(task, model, params, dev_set, tokenizer)
    return {f"dev_{name}": value for name, value in measures.items()}

  return measure


def make_measure(
  config: FinetuneConfig, task: LabeledTask, dev_set: Encoded, predict: Callable[..., Any]
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to dev_loss and the task's metrics, dev_accuracy and so on.

  Args:
    predict: from make_predictor.
  """

  def measure(params) -> dict[str, float]:
    predictions = predict(params, dev_set, config.batch_size)
    measures = task_measures(task, predictions, dev_set.truth)
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
  there of the run's best checkpoint; it does nothing for tasks without classes.

  Args:
    predict: from make_predictor.
    data_dir: see write_dev_report.
  """

  def report(params, step: int, workdir: str) -> None:
    best = best_evaluation(workdir)
    try:
      if best is not None and best["step"] != step:
        shapes = jax.tree.map(_abstract, params)
        params, _, step = restore_params(os.path.join(workdir, "best"), shapes)
      probabilities = predict(params, dev_set, config.batch_size)
      if not is_main_process():
        return
      name = f"{task.name} dev, best checkpoint (step {step}):"
      files = dev_set, probabilities, step, data_dir
      if isinstance(task, MultiLabelTask):
        classes = write_multi_label_report(workdir, task, *files)["per_class"]
        log(f"{name}\n{format_labels(classes)}")
      else:
        log(f"{name} {format_calibration(write_dev_report(workdir, task, *files))}")
    except InputError as error:  # scikit-learn is missing; the run's result does not depend on it
      log(f"no {REPORT}: {error}")

  has_labels = is_classification(task) or isinstance(task, MultiLabelTask)
  return report if has_labels else lambda *_: None


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
