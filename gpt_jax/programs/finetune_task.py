"""The task of a fine-tuning run: its examples, the model with a head for it, and what trains."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError, agree
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.parallel.processes import log
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import Start, transform_of
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.encoding import Encoded, count_repeated
from gpt_jax.training.defaults import with_defaults

_LEFT_OUT = 0.01  # the share of examples that a partial batch may drop without a line


def load_task(
  config: FinetuneConfig, data_dir: str, start: Start
) -> tuple[FinetuneConfig, Any, dict[str, Encoded]]:
  """The task, its examples by split, and the config with all that follows from both."""
  task_config = config.task.with_labels(data_dir)
  if task_config.columns != config.task.columns:
    log(f"text columns: {', '.join(task_config.columns)}; label column: {task_config.label}")
  config = dataclasses.replace(config, task=task_config, trunk=start.trunk)
  task = build_task(task_config, data_dir, start)
  for part in task.parts:
    check_options(config, part)
    for method in config.methods:
      method.check(config, part, start)
  if len(task.parts) > 1:
    check_several(config, task)
  has_auxiliary_loss = config.lm_weight and not task.writes_text and not config.is_probe
  if has_auxiliary_loss and start.attention != "causal":
    raise InputError(
      f"lm_weight={config.lm_weight}: the checkpoint has {start.attention} attention, so a "
      "language model on it would see the tokens it predicts; set lm_weight=0, or for BERT's kin "
      f"take config=finetune_encoder:FAMILY:{task.name}, such as minilm"
    )
  of_parts = [_load_part(config, part, data_dir, start) for part in task.parts]
  data = {}
  for split in ("train", "dev"):
    data[split] = task.joined([examples[split] for examples in of_parts], start.reads)
  task.check_metrics()
  return complete(config, task, data["train"]), task, data


def build_task(task_config: Any, data_dir: str, start: Start) -> Any:
  """The LabeledTask, or for a text-to-text checkpoint its TextTask."""
  task = task_config.build(data_dir)
  return as_text(task) if start.format.writes_answers else task


def training_set(config: FinetuneConfig, task: LabeledTask, data_dir: str, start: Start) -> Any:
  """The training set alone, as load_task gives it."""
  of_parts = []
  for part in task.parts:
    examples = part.examples(data_dir, "train")
    of_parts.append(encode_training(config, part, data_dir, examples, start))
  return task.joined(of_parts, start.reads)


def _load_part(
  config: FinetuneConfig, task: LabeledTask, data_dir: str, start: Start
) -> dict[str, Encoded]:
  """The train and dev set as token ids; logs a summary of each and the paper's result."""
  if task.paper:
    log(f"{task.name}: the paper has {task.paper}")
  all_examples = {split: task.examples(data_dir, split) for split in ("train", "dev")}
  log_repeated_rows(task, data_dir, all_examples)
  dev_set = task.subset(all_examples["dev"], config.dev_examples)
  data = {
    "train": encode_training(config, task, data_dir, all_examples["train"], start),
    "dev": task.encode(dev_set, *start.reads),
  }
  for split, encoded in data.items():
    balance = task.describe_labels(encoded.labels)
    report = encoded.report(balance).replace("\n", "\n  ")
    log(f"{task.name} {split}: {report}")
  return data


def encode_training(
  config: FinetuneConfig, task: LabeledTask, data_dir: str, examples: list[Any], start: Start
) -> Encoded:
  """Encodes labeled examples, then unlabeled ones: from the split, a file or a teacher."""
  labeled, rest = task.subset(examples, config.train_examples), []
  if unlabeled := config.method("unlabeled"):
    rest = task.unlabeled(data_dir, examples, labeled, unlabeled.file)
  encoded = task.encode([*labeled, *rest], *start.reads)
  # They are the last ones, by which packing knows them.
  return dataclasses.replace(encoded, unlabeled=len(rest))


def log_repeated_rows(task: LabeledTask, data_dir: str, examples: dict[str, list[Any]]) -> None:
  """Logs how many dev and test rows have the texts of a training row; they flatter results."""
  with contextlib.suppress(InputError):  # not every task has a test set
    examples = examples | {"test": task.examples(data_dir, "test")}
  for split in ("dev", "test"):
    rows = examples.get(split, [])
    if repeated := count_repeated(rows, examples["train"]):
      log(
        f"warning: {task.name}: {repeated:,} of {len(rows):,} {split} rows "
        f"{agree(repeated, 'has', 'have')} the texts of a training row"
      )


def complete(config: FinetuneConfig, task: LabeledTask, train_set: Encoded) -> FinetuneConfig:
  """The config with what it leaves open: learning rate, warm-up, epochs, balanced class weights.

  Logs what it sets.
  """
  parameters, updates = config.trunk.parameter_count(), updates_per_epoch(config, train_set)
  # By the model's size and the number of updates in an epoch.
  optim, train, lines = with_defaults(config.optim, config.train, parameters, updates)
  weights = config.class_weights
  if weights == ("balanced",):
    values = balanced_weights(train_set.labels)
    weights = tuple(f"{name}={w:.6g}" for name, w in zip(task.labels, values, strict=True))
    lines.append(f"class weights {', '.join(weights)}")
  steps = train.total_steps(updates)
  lines += optim.warnings(steps)
  rows = len(train_set) - (train_set.unlabeled if config.has_streams else 0)
  if (left := rows % config.batch_size) >= _LEFT_OUT * rows:
    lines.append(
      f"{left:,} of {rows:,} training examples {agree(left)} left out of each epoch, others in "
      f"each: batches have {config.batch_size} (batch_size sets it)"
    )
  for line in lines:
    log(line)
  return dataclasses.replace(config, optim=optim, train=train, class_weights=weights)


def updates_per_epoch(config: FinetuneConfig, train_set: Encoded) -> int:
  """Updates in a pass over the examples with labels; the last partial batch is dropped."""
  if config.has_streams:  # each of them is followed by one without labels
    return 2 * ((len(train_set) - train_set.unlabeled) // config.batch_size)
  return len(train_set) // config.batch_size


def model_config(config: FinetuneConfig, task: LabeledTask, start: Start) -> ModelConfig:
  """The checkpoint's trunk with a new head for the task, and one for the auxiliary loss.

  A text-to-text model answers with its language head; there is no other loss.
  """
  if task.writes_text:
    views = filter(lambda method: method.takes_turns, config.methods)
    return ModelConfig(start.trunk, (*make_heads([task.head]), *views), start.attention)
  heads = [head_of(config, part, start) for part in task.parts]
  if len(heads) > 1:
    heads = [{**head, "name": part.name} for head, part in zip(heads, task.parts, strict=True)]
  # A probe has no auxiliary loss, which has no parameters to train there.
  if config.lm_weight and not config.is_probe:
    # Equation 5: L3 = L2 + lambda L1.
    heads.insert(0, {"type": "language", "weight": config.lm_weight})
  return ModelConfig(start.trunk, make_heads(heads), start.attention)


def one_head(spec: ModelConfig, number: int) -> ModelConfig:
  """The model of one of several tasks."""
  return dataclasses.replace(spec, heads=spec.heads[number : number + 1])


def head_of(config: FinetuneConfig, task: LabeledTask, start: Start) -> dict[str, Any]:
  """The task's head as a JSON config, with the settings of this run."""
  head = {**task.head, "dropout": config.head_dropout}
  if not from_json(head).per_token:  # a head on one representation of a text
    head["transform"] = transform_of(start)
  if config.pooling:
    head["pooling"] = config.pooling
  if config.pooling == "concat":  # the trunk's pooler is a map of one state
    head["transform"] = "none"
  if config.head_units:
    head["units"] = config.head_units
  if config.class_weights:
    head["class_weights"] = list(parse_weights(config.class_weights, task.labels))
  if config.label_smoothing:
    head["label_smoothing"] = config.label_smoothing
  for method in config.methods:
    head = method.change_head(head, start)
  return head


def make_meta(config: FinetuneConfig, task: LabeledTask, start: Start) -> dict[str, Any]:
  """Metadata that checkpoints record with the parameters."""
  return {
    "model": to_json(model_config(config, task, start)),
    "task": to_json(config.task),
    "tokenizer_hash": start.tokenizer.hash,
    "trained_special": list(start.tokenizer.special.names),
    "sequence_format": to_json(start.format),
  }


def check_options(config: FinetuneConfig, task: LabeledTask) -> None:
  """Refuses options that the task's head does not have."""
  if task.writes_text and config.is_probe:
    raise InputError(
      "train_layers=0: a text-to-text model has no head besides its trunk; train some layers"
    )
  of_classes: dict[str, Any] = {"class_weights": config.class_weights}
  if task.kind != "tagging":  # TagHead smooths its labels, too
    of_classes["label_smoothing"] = config.label_smoothing
  for name, value in of_classes.items():
    if value and not task.has_classes:
      raise InputError(
        f"{name}: for tasks that give each example one class, not for {task.name} ({task.kind}); "
        "leave it out"
      )
  of_texts: dict[str, Any] = {"pooling": config.pooling, "head_units": config.head_units}
  for name, value in of_texts.items():
    if value and (task.writes_text or task.head.get("pooling") != "sum"):
      raise InputError(
        f"{name}={value}: for tasks that give each text one class, not for {task.name} "
        f"({task.kind}); leave it out"
      )


def check_several(config: FinetuneConfig, task: LabeledTask) -> None:
  """Refuses options that do not go with several tasks."""
  if not config.has_views:
    raise InputError(
      f"{task.name}: several tasks have a head with views each; use configs/cross_view.py"
    )
  unlabeled = config.method("unlabeled")
  if config.lm_weight or config.class_weights or (unlabeled and unlabeled.file):
    raise InputError(
      "lm_weight, class_weights and unlabeled.file: are for one task; leave them out"
    )


def balanced_weights(distributions: np.ndarray) -> np.ndarray:
  """Weights [K] inversely proportional to class frequencies in labels [N, K], as scikit-learn's."""
  # N / (K count): weights whose mean over the examples is 1.
  counts = distributions.sum(axis=0)
  return counts.sum() / (len(counts) * np.maximum(counts, 1))


def parse_weights(items: Sequence[str], labels: Sequence[str]) -> tuple[float, ...]:
  """The weight of each label, from LABEL=WEIGHT items; 1 where there is no item, and none at all
  without items.
  """
  given: dict[str, float] = {}
  for item in items:
    name, _, number = item.rpartition("=")
    try:
      given[name] = float(number)
    except ValueError:
      given[name] = -1.0
    if name not in labels or not 0 <= given[name] < float("inf"):
      raise InputError(
        f"class_weights: {item!r} should be LABEL=WEIGHT, with one of the labels "
        f"{', '.join(labels)}, or balanced alone"
      )
  if given and not any(given.get(name, 1.0) for name in labels):
    raise InputError("class_weights: all are 0, so that no label is learned; set one above 0")
  return tuple(given.get(name, 1.0) for name in labels) if given else ()
