"""The examples that a fine-tuning run trains on, and the settings that follow from them."""

import contextlib
import dataclasses
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_model import check_auxiliary_loss, check_options
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.encoding import Encoded, count_repeated, evenly, without_labels
from gpt_jax.training.class_weights import balanced
from gpt_jax.training.defaults import with_defaults
from gpt_jax.training.reporter import log
from gpt_jax.training.start import Start


def load_task(
  config: FinetuneConfig, data_dir: str, start: Start
) -> tuple[FinetuneConfig, Any, dict[str, Encoded]]:
  """The task, its examples by split, and the config with all that follows from both.

  Raises:
    InputError: files, rows or options that do not suit.
  """
  task_config = complete_task(config.task, data_dir)
  config = dataclasses.replace(config, task=task_config, trunk=start.trunk)
  task = build_task(task_config, data_dir, start)
  check_options(config, task)
  check_auxiliary_loss(config, task, start)
  data = load_examples(config, task, data_dir, start)
  task.check_metrics()
  return complete(config, task, data["train"]), task, data


def complete_task(task: Any, data_dir: str) -> Any:
  """The task's config with the labels of its files; logs columns that it had not named."""
  completed = task.with_labels(data_dir)
  if completed.columns != task.columns:
    log(f"text columns: {', '.join(completed.columns)}; label column: {completed.label}")
  return completed


def build_task(task_config: Any, data_dir: str, start: Start) -> Any:
  """The LabeledTask, or for a text-to-text checkpoint its TextTask."""
  task = task_config.build(data_dir)
  return as_text(task) if start.format.writes_answers else task


def load_examples(
  config: FinetuneConfig, task: LabeledTask, data_dir: str, start: Start
) -> dict[str, Encoded]:
  """The train and dev set as token ids; logs a summary of each and the paper's result."""
  if task.paper:
    log(f"{task.name}: the paper has {task.paper}")
  all_examples = {split: task.examples(data_dir, split) for split in ("train", "dev")}
  log_repeated_rows(task, data_dir, all_examples)
  data = {}
  for split, count in (("train", config.train_examples), ("dev", config.dev_examples)):
    examples = evenly(all_examples[split], count)
    use_rest = config.unlabeled and split == "train"
    rest = without_labels(all_examples[split], examples) if use_rest else []
    encoded = task.encode([*examples, *rest], *start.reads)
    # They are the last ones, by which packing knows them.
    data[split] = dataclasses.replace(encoded, unlabeled=len(rest))
    balance = task.describe_labels(data[split].labels)
    report = data[split].report(balance).replace("\n", "\n  ")
    log(f"{task.name} {split}: {report}")
  return data


def log_repeated_rows(task: LabeledTask, data_dir: str, examples: dict[str, list[Any]]) -> None:
  """Logs how many dev and test rows have the texts of a training row; they flatter results."""
  with contextlib.suppress(InputError):  # not every task has a test set
    examples = examples | {"test": task.examples(data_dir, "test")}
  for split in ("dev", "test"):
    rows = examples.get(split, [])
    if repeated := count_repeated(rows, examples["train"]):
      log(
        f"warning: {task.name}: {repeated:,} of {len(rows):,} {split} rows have the texts of a "
        "training row"
      )


def complete(config: FinetuneConfig, task: LabeledTask, train_set: Encoded) -> FinetuneConfig:
  """The config with what it leaves open: learning rate, warm-up, epochs, balanced class weights.

  Logs what it sets.
  """
  parameters = config.trunk.parameter_count()
  # By the model's size and the number of updates in an epoch.
  optim, train, lines = with_defaults(
    config.optim, config.train, parameters, len(train_set) // config.batch_size
  )
  weights = config.class_weights
  if weights == ("balanced",):
    weights = balanced(train_set.labels, task.labels)
    lines.append(f"class weights {', '.join(weights)}")
  steps = train.total_steps(len(train_set) // config.batch_size)
  if warning := optim.about_long_warmup(steps):
    lines.append(warning)
  for line in lines:
    log(line)
  return dataclasses.replace(config, optim=optim, train=train, class_weights=weights)
