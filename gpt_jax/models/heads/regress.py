"""W_y with one output: a number per example, standardized by the task (mean 0, deviation 1)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.models.heads.classify import Classifier, check_transform, transform_option
from gpt_jax.models.heads.head import Head
from gpt_jax.models.heads.style import style_of
from gpt_jax.models.trunk import States, TrunkConfig


@register("regress")
@dataclasses.dataclass(frozen=True)
class RegressHead(Head):
  """A number at the anchor of each sequence."""

  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  transform: str = transform_option()

  scope = "head"
  metric = "task_loss"
  labeled = True
  per_token = False
  num_classes = 1
  pooling = "sum"

  def build(self, trunk: TrunkConfig) -> nn.Module:
    check_transform(self.transform, trunk)
    init = style_of(trunk).init
    return Classifier(self.num_classes, self.dropout, transform=self.transform, kernel_init=init)

  def denominator(self, batch: Batch) -> jax.Array:
    assert batch.labels is not None
    return batch.labels.weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """The squared error; outputs are [N, 1]. It is 1 for the mean of the training set."""
    del states, num_tokens
    labels = batch.labels
    assert labels is not None
    per_example = ((outputs - labels.distributions) ** 2).sum(-1)
    return Mean((per_example * labels.weights).sum(), self.denominator(batch))

  def decode(self, outputs) -> jax.Array:
    """The standardized numbers, [N, 1]."""
    return outputs


def in_units(head: dict[str, Any], mean: float, deviation: float) -> dict[str, Any]:
  """The head's parameters for outputs in the units of the labels, not standardized."""
  # y = deviation * (W x + b) + mean
  return {**head, "kernel": head["kernel"] * deviation, "bias": head["bias"] * deviation + mean}
