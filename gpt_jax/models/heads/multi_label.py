"""W_y with one sigmoid per label: an example has any number of the K labels."""

import dataclasses

import flax.linen as nn
import jax
import optax

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.models.heads.classify import Classifier, check_transform, transform_option
from gpt_jax.models.heads.head import Head
from gpt_jax.models.heads.style import style_of
from gpt_jax.models.trunk import States, TrunkConfig


@register("multi_label")
@dataclasses.dataclass(frozen=True)
class MultiLabelHead(Head):
  """A sigmoid per label at the anchor of each sequence."""

  num_classes: int = option(2, "K, the number of labels", low=2)
  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  transform: str = transform_option()

  scope = "head"
  metric = "task_loss"
  labeled = True
  per_token = False
  pooling = "sum"

  def build(self, trunk: TrunkConfig) -> nn.Module:
    check_transform(self.transform, trunk)
    init = style_of(trunk).init
    return Classifier(self.num_classes, self.dropout, transform=self.transform, kernel_init=init)

  def denominator(self, batch: Batch) -> jax.Array:
    assert batch.labels is not None
    return batch.labels.weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Binary cross-entropy with the labels; outputs are scores [N, K].

    It is summed over the labels: the negative log-likelihood of an example's set of labels, so that
    the auxiliary loss of eq. 5 has the same weight beside it as beside that of one label.
    """
    del states, num_tokens
    labels = batch.labels
    assert labels is not None
    per_example = optax.sigmoid_binary_cross_entropy(outputs, labels.distributions).sum(-1)
    return Mean((per_example * labels.weights).sum(), self.denominator(batch))

  def decode(self, outputs) -> jax.Array:
    """The probability of each label, [N, K]."""
    return jax.nn.sigmoid(outputs)
