"""Exact means over a fixed set: of text, or of labeled examples."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from gpt_jax.batch import Batch, Mean
from gpt_jax.data.draws import Draw
from gpt_jax.data.windows import Windows
from gpt_jax.models.loss import Loss
from gpt_jax.objectives.objective import Bound
from gpt_jax.parallel.placement import to_device
from gpt_jax.tasks.task import LabeledTask


def evaluation_batches(objective: Bound, windows: Windows, rows: np.ndarray) -> Iterator[Batch]:
  """The whole text in order, with the same noise at every evaluation.

  Args:
    rows: the numbers of this process's rows of each batch.
  """
  for number, ids in enumerate(windows.sequential(rows=rows)):
    yield objective(ids, Draw(0, number, rows))


def make_evaluator(loss: Loss, mesh: Mesh) -> Callable[[Any, Iterable[Any]], dict[str, Mean]]:
  """(params, host batches) -> {name: Mean}, dropout off. Each batch holds this process's rows."""

  @jax.jit
  def batch_means(params, batch):
    _, means = loss(params, jax.tree.map(lambda x: x[0], batch), None)
    return means

  def evaluate(params, batches) -> dict[str, Mean]:
    totals: dict[str, Mean] = {}
    with jax.set_mesh(mesh):
      for batch in batches:
        means = jax.device_get(batch_means(params, to_device(batch, mesh)))
        for name, mean in means.items():
          mean = Mean(np.float64(mean.total), np.float64(mean.weight))
          totals[name] = totals[name] + mean if name in totals else mean
    return totals

  return evaluate


def task_measures(task: LabeledTask, predictions: Any, truth: Any) -> dict[str, float]:
  """The mean cross-entropy in nats, and the task's metrics.

  Args:
    predictions: from make_predictor.
    truth: Encoded.truth.
  """
  if isinstance(truth, list):  # tags
    probabilities = np.concatenate(predictions)
    tags = np.concatenate(truth)
    of_truth = np.take_along_axis(probabilities, np.maximum(tags, 0)[:, None], axis=1)[tags >= 0]
    loss = -np.log(np.maximum(of_truth, 1e-30)).mean()
  else:
    loss = -(truth * np.log(np.maximum(predictions, 1e-30))).sum(-1).mean()
  return {"loss": float(loss), **task.score(predictions, truth)}


def text_measures(loss: Mean, n_tokens: int, n_bytes: int, attention: str) -> dict[str, float]:
  """Loss in nats per predicted token, its perplexity and, for a causal model, bits per byte.

  The first token of a text has no context and is not predicted; bits per byte counts it at the mean
  loss. A model that sees what follows a token assigns the text no probability, so no bits.
  """
  nats = loss.value
  measures = {"loss": nats, "perplexity": math.exp(min(nats, 700.0))}
  if attention == "causal":
    measures["bits_per_byte"] = nats * n_tokens / n_bytes / math.log(2)
  return measures
