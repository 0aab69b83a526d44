"""Evaluates a language model on held-out text, or a fine-tuned model on its task."""

import dataclasses
from typing import Any

import jax

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.dev_report import class_report, is_classification
from gpt_jax.inference.evaluate import make_text_measure, task_measures
from gpt_jax.inference.text_answers import text_measures
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.objective import text_windows
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.tasks.multi_label import MultiLabelTask
from gpt_jax.tasks.task import find
from gpt_jax.tasks.text_to_text import EncodedText, TextTask, as_text


def run(checkpoint: str, data: str, split: str = "", task: str = "") -> dict[str, Any]:
  """Evaluates a checkpoint on a whole split.

  Args:
    checkpoint: see load_model.
    data: for a language model, a folder written by prepare with the checkpoint's vocabulary; for a
      fine-tuned model, the folder of its task's files, as for finetune.
    split: "train" or "valid" of text, by default "valid"; "train", "dev" or "test" of a task, by
      default "dev".
    task: for a fine-tuned model, another task with the same labels, such as mnli-mismatched.

  Returns:
    Text: the numbers of tokens and bytes, loss in nats per token, perplexity per token and bits per
    byte, in windows of the training length. Task: the number of examples, loss in nats, the
    task's metrics, for a classification task "classes", a class_report, and for a multi-label task
    "labels", the metrics of each label.

  Raises:
    InputError: a missing checkpoint or data, data of another vocabulary, or unlabeled examples.
  """
  loaded = load_model(checkpoint)
  if loaded.task:
    return _on_task(loaded, data, split or "dev", task)
  if task:
    raise InputError(
      f"--task={task}: {checkpoint} is a language model without a head; "
      "launch/zero_shot.py evaluates it on tasks"
    )
  return _on_text(loaded, data, split or "valid")


def _on_task(loaded: LoadedModel, data_dir: str, split: str, name: str) -> dict[str, Any]:
  own = loaded.task
  assert own is not None
  task = find(name) if name else own
  if name and isinstance(own, TextTask):
    task = as_text(task, own.name)
  if (task.labels, task.head) != (own.labels, own.head):
    raise InputError(
      f"--task={name}: its labels are {', '.join(task.labels)}; those of {own.name} are "
      f"{', '.join(own.labels)}"
    )
  examples = task.examples(data_dir, split)
  if unlabeled := next((example.location for example in examples if example.label is None), None):
    raise InputError(f"{unlabeled}: no label; use launch/predict.py for unlabeled rows")
  encoded = task.encode(examples, loaded.tokenizer, loaded.spec.trunk.context)
  if isinstance(task, TextTask):
    assert isinstance(encoded, EncodedText)
    params = jax.device_put(loaded.params)
    measured = text_measures(task, loaded.generator(), params, encoded, loaded.tokenizer)
    return {"examples": len(examples), **measured}
  predictions = loaded.predictor()(encoded, 32)
  measures: dict[str, Any] = {"examples": len(examples)}
  measures |= task_measures(task, predictions, encoded.truth)
  if is_classification(task):
    classes = encoded.labels.argmax(axis=-1)
    measures["classes"] = class_report(task.labels, predictions, classes)
  elif isinstance(task, MultiLabelTask):
    measures["labels"] = task.report(predictions, encoded.truth)
  return measures


def _on_text(loaded: LoadedModel, data: str, split: str) -> dict[str, float]:
  text = TokenFile(data, split)
  text.check_vocabulary(loaded.tokenizer)
  if loaded.config is not None:
    windows, objective = loaded.config.data, loaded.config.objective
  else:  # imported weights
    windows, objective = WindowsConfig(length=loaded.spec.trunk.context), Causal()
  mesh = make_mesh(MeshConfig())
  size = -(-windows.batch_size // mesh.size) * mesh.size
  windows = dataclasses.replace(windows, batch_size=size)
  bound = objective.bind(loaded.tokenizer, windows.length)
  read = Windows(text, text_windows(objective, windows))
  measure = make_text_measure(loaded.model, bound, read, mesh)
  measures = measure(replicate(loaded.params, mesh))
  return {"tokens": text.n_tokens, "bytes": text.n_bytes, **measures}
