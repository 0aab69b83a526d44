"""W_y with a sigmoid for each of K labels, any number of which an example has; and with one output:
a number per example, standardized by the task (mean 0, deviation 1).
"""

import dataclasses
from typing import Any

import jax
import optax

from gpt_jax.config import option, register
from gpt_jax.models.heads.classify import AnchorHead, transform_option


@register("multi_label")
@dataclasses.dataclass(frozen=True)
class MultiLabelHead(AnchorHead):
  """A sigmoid per label at the anchor of each sequence."""

  num_classes: int = option(2, "K, the number of labels", low=2)
  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  transform: str = transform_option()

  def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Binary cross-entropy with the labels.

    It is summed over the labels: the negative log-likelihood of an example's set of labels, so that
    the auxiliary loss of eq. 5 has the same weight beside it as beside that of one label.
    """
    return optax.sigmoid_binary_cross_entropy(outputs, labels).sum(-1)

  def decode(self, outputs) -> jax.Array:
    """The probability of each label, [N, K]."""
    return jax.nn.sigmoid(outputs)


@register("regress")
@dataclasses.dataclass(frozen=True)
class RegressHead(AnchorHead):
  """A number at the anchor of each sequence."""

  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  transform: str = transform_option()

  num_classes = 1

  def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """The squared errors; they are 1 for the mean of the training set."""
    return ((outputs - labels) ** 2).sum(-1)

  def decode(self, outputs) -> jax.Array:
    """The standardized numbers, [N, 1]."""
    return outputs


def in_units(head: dict[str, Any], mean: float, deviation: float) -> dict[str, Any]:
  """The head's parameters for outputs in the units of the labels, not standardized."""
  # y = deviation * (W x + b) + mean
  return {**head, "kernel": head["kernel"] * deviation, "bias": head["bias"] * deviation + mean}
