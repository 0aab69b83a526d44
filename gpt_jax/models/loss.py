"""The loss of a model: the weighted sum of its heads' mean losses (eq. 1, eq. 5)."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean
from gpt_jax.models.model import Model
from gpt_jax.ops.dropout import Key

Denominators = dict[str, jax.Array]


class Loss(Protocol):
  """What a training step minimizes.

  Each term is a sum over the batch divided by its denominator. A step adds up the denominators of
  all microbatches and devices first, so that its gradient is exact for any split of the batch.
  """

  def denominators(self, batch: Any) -> Denominators:
    """Of each term, the summed weight of a batch; a function of the batch alone."""
    ...

  def __call__(
    self, params: Any, batch: Any, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The batch's share of the loss, a scalar, and metrics as Means, `loss` among them.

    Args:
      params: of the model.
      batch: a microbatch, or a device's part of one.
      key: dropout key; None evaluates.
      denominators: of the whole batch; None: of this one.
    """
    ...


def model_loss(model: Model) -> Loss:
  """The Loss of a model; metrics are `loss`, and each head's where there are several."""
  return _ModelLoss(model)


class _ModelLoss:
  def __init__(self, model: Model):
    self._model = model
    self._heads = model.config.heads

  def denominators(self, batch: Batch) -> Denominators:
    return {head.scope: head.denominator(batch) for head in self._heads}

  def __call__(self, params, batch: Batch, key: Key | None, denominators=None):
    own = self.denominators(batch)
    denominators = own if denominators is None else denominators
    states, outputs = self._model.apply({"params": params}, batch, key)
    total, metrics = jnp.float32(0), {}
    for head, output in zip(self._heads, outputs, strict=True):
      with jax.named_scope("loss"), jax.named_scope(head.scope):
        mean = head.loss(output, states, batch, self._model.num_tokens)
      metrics[head.metric] = mean
      # A term without anything to predict is 0.
      denominator = jnp.where(denominators[head.scope] > 0, denominators[head.scope], 1)
      total = total + head.weight * (mean.total / denominator)
    if len(self._heads) == 1 and self._heads[0].weight == 1:
      return total, {"loss": next(iter(metrics.values()))}
    # Scaled so that these Means add up over microbatches to the total, weighted by the first head.
    first = self._heads[0].scope
    return total, {"loss": Mean(total * denominators[first], own[first]), **metrics}
