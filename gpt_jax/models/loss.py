"""The loss of a model: the weighted sum of its heads' mean losses (eq. 1, eq. 5)."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean
from gpt_jax.models.heads.head import Head
from gpt_jax.models.model import Model, Outputs
from gpt_jax.ops.dropout import Key

Denominators = dict[str, jax.Array]
PERTURBATION = "perturbations", "embedded"  # collection and name of a trunk's self.perturb


class Loss(Protocol):
  """A loss that a training step can minimize.

  Each term is a sum over the batch divided by its denominator. A step adds up the denominators of
  all microbatches and devices first, so that its gradient is exact for any split of the batch.
  """

  def denominators(self, batch: Any) -> Denominators:
    """The summed weight of each term over a batch; a function of the batch alone."""

  def __call__(
    self, params: Any, batch: Any, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The share in the loss, a scalar, of a microbatch or a device's part of one, and metrics as
    Means, `loss` among them.

    Args:
      key: dropout key; None evaluates.
      denominators: of the whole batch; None: of this one.
    """


def model_loss(model: Model) -> "ModelLoss":
  """The Loss of a model; metrics are `loss`, each head's where there are several, and the accuracy
  of heads that have one.
  """
  return ModelLoss(model, model.config.heads)


class ModelLoss:
  """The sum of the losses of some of a model's heads."""

  def __init__(self, model: Model, heads: Sequence[Head]):
    self.model, self.heads = model, tuple(heads)

  def denominators(self, batch: Batch) -> Denominators:
    return {head.scope: head.denominator(batch) for head in self.heads}

  def __call__(
    self,
    params: Any,
    batch: Batch,
    key: Key | None,
    denominators: Denominators | None = None,
    perturbation: jax.Array | None = None,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """See Loss; perturbation: see perturbed."""
    # `own` is of this part and `denominators` of the whole batch, so that gradients of the parts
    # add up to the gradient of the batch.
    own = self.denominators(batch)
    denominators = own if denominators is None else denominators
    states, outputs = perturbed(self.model, params, batch, key, perturbation)
    total, metrics, accuracies = jnp.float32(0), {}, {}
    for head, output in zip(self.model.config.heads, outputs, strict=True):
      # The model computes all heads; XLA drops those whose outputs no loss reads.
      if head not in self.heads:
        continue
      with jax.named_scope("loss"), jax.named_scope(head.scope):
        # Evaluation measures the plain loss, without terms for training such as the z-loss.
        evaluated = head.measured if key is None else head
        if evaluated is None:
          continue
        mean = evaluated.loss(output, states, batch, self.model.num_tokens)
      metrics[head.metric] = mean  # unweighted, comparable between runs
      if (accuracy := head.accuracy(output, batch)) is not None:
        accuracies[f"{head.scope}_accuracy"] = accuracy
      # A term without anything to predict is 0.
      denominator = jnp.where(denominators[head.scope] > 0, denominators[head.scope], 1)
      # L3 = L2 + lambda L1 (eq. 5): W_y has weight 1, the language model lambda.
      total = total + head.weight * (mean.total / denominator)
    if len(self.heads) == 1 and self.heads[0].weight == 1:
      return total, {"loss": next(iter(metrics.values())), **accuracies}
    # Scaled so that these Means add up over microbatches to the total, weighted by the first head.
    first = self.heads[0].scope
    return total, {"loss": Mean(total * denominators[first], own[first]), **metrics, **accuracies}


def perturbed(
  model: Model, params, batch: Batch, key: Key | None, perturbation: jax.Array | None = None
) -> Outputs:
  """The model's outputs with `perturbation` [B, T, D] added to the embeddings that its trunk looks
  up, positions included, before its first layer; None: with none.
  """
  variables = {"params": params}
  if perturbation is not None:
    collection, name = PERTURBATION
    variables[collection] = {"trunk": {name: perturbation}}
  return model.apply(variables, batch, key)  # type: ignore[return-value]
