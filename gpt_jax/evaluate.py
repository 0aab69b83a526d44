"""Exact means over a fixed set, and the program that reports perplexity and bits per byte of held-out text."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax import config as configs
from gpt_jax import losses, pretrained, sharding
from gpt_jax.batch import Mean
from gpt_jax.data.examples import Encoded, in_order
from gpt_jax.data.tokens import TokenFile, Windows
from gpt_jax.errors import InputError
from gpt_jax.losses import Loss
from gpt_jax.models import TaskModel
from gpt_jax.sharding import MeshConfig
from gpt_jax.tasks.task import Task


def run(checkpoint: str, data: str, split: str = "valid") -> dict[str, float]:
  """How well a language model predicts a whole split, in windows of the length that it was trained with.

  Args:
    checkpoint: see pretrained.load.
    data: a folder that prepare wrote, with the checkpoint's vocabulary.
    split: "train" or "valid".

  Returns:
    Counts of tokens and bytes, loss in nats per token, perplexity per token, bits per byte.

  Raises:
    InputError: no such checkpoint or data, or data of another vocabulary.
  """
  found = pretrained.load(checkpoint)
  if found.spec.head:
    raise InputError(f"--checkpoint={checkpoint}: is fine-tuned for a task; give a pre-trained one")
  text = TokenFile(data, split)
  if text.tokenizer_hash != found.tokenizer.hash:
    raise InputError(
      f"{text.path}.bin: a token file of another vocabulary, {text.tokenizer_hash[:12]}, than the checkpoint's, "
      f"{found.tokenizer.hash[:12]}; prepare the text with --tokenizer=DIR, the checkpoint's tokenizer folder"
    )
  config = configs.from_json(found.meta["config"])
  mesh = sharding.make_mesh(MeshConfig())
  size = -(-config.data.batch_size // mesh.size) * mesh.size
  rows = Windows(text, config.data).sequential(size, sharding.local_rows(size, mesh))
  params = jax.device_put(found.params, NamedSharding(mesh, P()))
  means = make_evaluator(losses.text_loss(found.model), mesh)(params, map(config.objective, rows))
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
  """(params, examples, batch size) -> probabilities float32 [N, K], in the examples' order, on every process."""

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

  The first token of a text has nothing before it and is not predicted; bits per byte counts it at the mean loss.
  """
  nats = loss.value
  return {
    "loss": nats,
    "perplexity": math.exp(min(nats, 700.0)),
    "bits_per_byte": nats * n_tokens / n_bytes / math.log(2),
  }
