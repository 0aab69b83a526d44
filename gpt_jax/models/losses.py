"""The two losses of the paper: language modelling (eq. 1) and task plus auxiliary language
modelling (eq. 3-5).

A loss is a function (params, batch, key) -> (objective, metrics): the objective a Mean whose total
is differentiated and whose weight then divides the gradient, so that sums over microbatches and
devices stay exact.
"""

from collections.abc import Callable
from typing import Any

import jax

from gpt_jax.batch import Mean, TaskBatch, TextBatch
from gpt_jax.models.model import LanguageModel, TaskModel
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.dropout import Key

Loss = Callable[[Any, Any, Key | None], tuple[Mean, dict[str, Mean]]]


def lm_loss(model: LanguageModel) -> Loss:
  """Weighted mean of -log P(token | everything before it in its text) (eq. 1), in nats."""

  def loss(params, batch: TextBatch, key: Key | None = None):
    hidden, table = model.apply({"params": params}, batch, key)
    total = cross_entropy(hidden, table, batch.targets, batch.weights, model.num_tokens)
    mean = Mean(total, batch.weights.sum())
    return mean, {"loss": mean}

  return loss


def task_loss(model: TaskModel, lm_weight: float) -> Loss:
  """L3 = L2 + lambda L1 (eq. 5): both are means over examples, lambda is `lm_weight`."""

  def loss(params, batch: TaskBatch, key: Key | None = None):
    scores, hidden, table = model.apply({"params": params}, batch, key)
    task = -(batch.labels * jax.nn.log_softmax(scores)).sum(-1)
    task = (task * batch.weights).sum()
    examples = batch.weights.sum()
    metrics = {"task_loss": Mean(task, examples)}
    total = task
    if lm_weight:
      text = cross_entropy(hidden, table, batch.text.targets, batch.text.weights, model.num_tokens)
      metrics["lm_loss"] = Mean(text, examples)
      total = task + lm_weight * text
    objective = Mean(total, examples)
    return objective, {"loss": objective, **metrics}

  return loss
