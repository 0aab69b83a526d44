"""Exact means over a text."""

import itertools
import math
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from gpt_jax.batch import Mean
from gpt_jax.data.draws import Draw
from gpt_jax.data.windows import Windows
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import Model, ModelConfig
from gpt_jax.objectives.objective import Bound
from gpt_jax.parallel.placement import anchors_of_parts, local_rows, to_device


def make_text_measure(
  model: Model, objective: Bound, windows: Windows, mesh: Mesh, batches: int = 0
) -> Callable[..., dict[str, float]]:
  """The function from parameters to the text_measures of the windows' text, or of others given.

  Every evaluation draws the same noise and reads the text in the same order: the file's or, where
  the loss compares the texts of a batch, a shuffled one, as in training. With several heads the
  loss is that of all, and each head's own stands under its metric, with its accuracy where it
  guesses a class. The first one predicts tokens, and perplexity is its; if several predict all
  tokens, each has one under its name.

  batches: read only so many; 0: the whole text.
  """
  size = windows.config.batch_size
  rows = local_rows(size, mesh)
  loss = model_loss(model)  # of all heads, as in training

  @jax.jit
  def batch_means(params, batch) -> dict[str, Mean]:
    _, means = loss(params, jax.tree.map(lambda x: x[0], batch), None)  # without dropout
    return means

  def measure(params, windows: Windows = windows) -> dict[str, float]:
    totals: dict[str, Mean] = {}
    compares = model.config.needs_whole_batch
    in_order = windows.shuffled(rows) if compares else windows.sequential(rows)
    text_rows = itertools.islice(in_order, batches or None)
    with jax.set_mesh(mesh):
      for number, ids in enumerate(text_rows):
        batch = anchors_of_parts(objective(ids, Draw(0, number, rows)), rows, size)
        # Sums and weights, not means of batches: the last one has fewer tokens. In float64 on the
        # host, since sums over millions of tokens would lose digits in float32.
        means = jax.device_get(batch_means(params, to_device(batch, mesh)))
        for name, mean in means.items():
          total = totals.get(name, Mean(np.float64(0), np.float64(0)))
          totals[name] = total + Mean(np.float64(mean.total), np.float64(mean.weight))
    values = {name: total.value for name, total in totals.items()}
    of_tokens = totals[model.config.token_metric]
    predictors = [head for head in model.config.heads if head.per_token]
    for head in predictors if len(predictors) > 1 else ():
      values[f"{head.scope}_perplexity"] = perplexity(values[head.metric])
    text = windows.tokens
    return text_measures(of_tokens, text.n_tokens, text.n_bytes, model.config) | values

  return measure


def text_measures(loss: Mean, n_tokens: int, n_bytes: int, spec: ModelConfig) -> dict[str, float]:
  """Loss in nats per predicted token, perplexity if tokens are predicted and, where a text has a
  probability, bits per byte; that counts the first token, which has no context, at the mean loss.
  """
  nats = loss.value
  measures = {"loss": nats}
  if spec.predicts_tokens:
    measures["perplexity"] = perplexity(nats)
  if spec.gives_text_probability:
    measures["bits_per_byte"] = nats * n_tokens / n_bytes / math.log(2)
  return measures


def perplexity(nats: float) -> float:
  """exp of a loss per token, which overflows above 709."""
  return math.exp(min(nats, 700.0))
