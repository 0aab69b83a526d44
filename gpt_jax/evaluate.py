"""Exact means over a fixed set, and the program that reports perplexity and bits per byte of held-out text."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from gpt_jax import sharding
from gpt_jax.batch import Mean
from gpt_jax.losses import Loss


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
