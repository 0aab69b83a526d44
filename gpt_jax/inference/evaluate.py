"""Exact means over a fixed set, and the program that measures a checkpoint: on held-out text, or
on its task.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from gpt_jax import config as configs
from gpt_jax.batch import Mean
from gpt_jax.checkpoints import load as pretrained
from gpt_jax.checkpoints.load import Pretrained
from gpt_jax.data.tokens import TokenFile, Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models import losses
from gpt_jax.models.losses import Loss
from gpt_jax.models.model import TaskModel
from gpt_jax.objectives.causal import Causal
from gpt_jax.parallel import sharding
from gpt_jax.parallel.sharding import MeshConfig
from gpt_jax.tasks.encoding import Encoded, in_order
from gpt_jax.tasks.task import Task, find


def run(checkpoint: str, data: str, split: str = "", task: str = "") -> dict[str, float]:
  """How well a checkpoint does on a whole split of text, or of the labelled examples of its task.

  Args:
    checkpoint: see pretrained.load.
    data: for a language model, a folder that prepare wrote, with the checkpoint's vocabulary; for a
      fine-tuned one, the folder of its task's files, as in finetune.
    task: for a fine-tuned model, another task with the same labels as its own, such as
      mnli-mismatched.
    split: "train" or "valid" of text, "train", "dev" or "test" of a task; by default "valid" and
      "dev".

  Returns:
    Text: counts of tokens and bytes, loss in nats per token, perplexity per token, bits per byte;
    read in windows of the length that the model was trained with. Task: the count of examples, loss
    in nats, the task's metrics.

  Raises:
    InputError: no such checkpoint or data, data of another vocabulary, or examples without labels.
  """
  found = pretrained.load(checkpoint)
  if found.spec.head:
    return _on_task(found, data, split or "dev", task)
  if task:
    raise InputError(
      f"--task={task}: {checkpoint} is a language model without a head; zero_shot.py asks it for tasks"
    )
  return _on_text(found, data, split or "valid")


def _on_task(found: Pretrained, data_dir: str, split: str, other: str) -> dict[str, float]:
  own = configs.from_json(found.meta["task"]).build(data_dir)
  task = find(other) if other else own
  if (task.labels, task.combine) != (own.labels, own.combine):
    labels = f"{', '.join(task.labels)}, and not {', '.join(own.labels)} as those of {own.name}"
    raise InputError(f"--task={other}: its labels are {labels}")
  examples = task.examples(data_dir, split)
  if unlabelled := next((example.name for example in examples if example.label is None), None):
    raise InputError(f"{unlabelled}: no label; launch/predict.py is for rows without")
  encoded = task.encode(examples, found.tokenizer, found.spec.trunk.context)
  mesh = sharding.make_mesh(MeshConfig())
  params = sharding.replicate(found.params, mesh)
  probabilities = make_predictor(found.model, mesh)(params, encoded, 32)
  return {"examples": len(examples), **task_measures(task, probabilities, encoded.labels)}


def _on_text(found: Pretrained, data: str, split: str) -> dict[str, float]:
  text = TokenFile(data, split)
  text.check_vocabulary(found.tokenizer)
  windows, objective = (
    WindowsConfig(length=found.spec.trunk.context),
    Causal(),
  )  # of weights from elsewhere
  if "config" in found.meta:
    config = configs.from_json(found.meta["config"])
    windows, objective = config.data, config.objective
  mesh = sharding.make_mesh(MeshConfig())
  size = -(-windows.batch_size // mesh.size) * mesh.size
  rows = Windows(text, windows).sequential(size, sharding.local_rows(size, mesh))
  params = sharding.replicate(found.params, mesh)
  means = make_evaluator(losses.text_loss(found.model), mesh)(params, map(objective, rows))
  return {
    "tokens": text.n_tokens,
    "bytes": text.n_bytes,
    **text_measures(means["loss"], text.n_tokens, text.n_bytes),
  }


def make_evaluator(loss: Loss, mesh: Mesh) -> Callable[[Any, Iterable[Any]], dict[str, Mean]]:
  """(params, host batches) -> {name: Mean}, dropout off. Each batch holds this process's rows."""

  @jax.jit
  def means(params, batch):
    return loss(params, jax.tree.map(lambda x: x[0], batch), None)[1]

  def evaluate(params, batches) -> dict[str, Mean]:
    totals: dict[str, Mean] = {}
    with jax.set_mesh(mesh):
      for batch in batches:
        found = jax.device_get(means(params, sharding.place(batch, mesh)))
        for name, mean in found.items():
          mean = Mean(np.float64(mean.total), np.float64(mean.weight))
          totals[name] = totals[name].plus(mean) if name in totals else mean
    return totals

  return evaluate


def make_predictor(model: TaskModel, mesh: Mesh) -> Callable[[Any, Encoded, int], np.ndarray]:
  """(params, examples, batch size) -> probabilities float32 [N, K], in the examples' order, on
  every process.
  """

  @jax.jit
  def probabilities(params, batch):
    return jax.nn.softmax(model.apply({"params": params}, jax.tree.map(lambda x: x[0], batch))[0])

  def predict(params, encoded: Encoded, batch_size: int) -> np.ndarray:
    devices = mesh.shape["data"]
    size = -(-batch_size // devices) * devices
    found = []
    with jax.set_mesh(mesh):
      for batch in in_order(encoded, size, row_multiple=devices):
        placed = sharding.place(sharding.local_part(batch, mesh), mesh)
        found.append(multihost_utils.process_allgather(probabilities(params, placed), tiled=True))
    return np.concatenate(found)[: len(encoded)]

  return predict


def task_measures(task: Task, probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """The mean cross-entropy in nats, and the task's metrics; both arrays are [N, K]."""
  loss = -(labels * np.log(np.maximum(probabilities, 1e-30))).sum(-1).mean()
  return {"loss": float(loss), **task.score(probabilities, labels)}


def text_measures(loss: Mean, n_tokens: int, n_bytes: int) -> dict[str, float]:
  """Loss in nats per token, its perplexity, and bits per byte of the text.

  The first token of a text has nothing before it and is not predicted; bits per byte counts it at
  the mean loss.
  """
  nats = loss.value
  return {
    "loss": nats,
    "perplexity": math.exp(min(nats, 700.0)),
    "bits_per_byte": nats * n_tokens / n_bytes / math.log(2),
  }
