"""W_y with one sigmoid per label: an example has any number of the K labels."""

import dataclasses

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
