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

from gpt_jax.batch import Mean
from gpt_jax.models.losses import Loss
from gpt_jax.models.model import TaskModel
from gpt_jax.parallel.placement import local_part, to_device
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import in_order
from gpt_jax.tasks.task import Task


def make_evaluator(loss: Loss, mesh: Mesh) -> Callable[[Any, Iterable[Any]], dict[str, Mean]]:
  """(params, host batches) -> {name: Mean}, dropout off. Each batch holds this process's rows."""

  @jax.jit
  def means(params, batch):
    return loss(params, jax.tree.map(lambda x: x[0], batch), None)[1]

  def evaluate(params, batches) -> dict[str, Mean]:
    totals: dict[str, Mean] = {}
    with jax.set_mesh(mesh):
      for batch in batches:
        found = jax.device_get(means(params, to_device(batch, mesh)))
        for name, mean in found.items():
          mean = Mean(np.float64(mean.total), np.float64(mean.weight))
          totals[name] = totals[name] + mean if name in totals else mean
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
        placed = to_device(local_part(batch, mesh), mesh)
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
