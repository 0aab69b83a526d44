"""A linear head on every token: one class each (token tagging, such as CoNLL's entities)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.head import Head
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key, dropout


@register("tag_head")
@dataclasses.dataclass(frozen=True)
class TagHead(Head):
  """Softmax over the tags at each tagged token."""

  num_classes: int = option(2, "K, the number of tags", low=2)
  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  label_smoothing: float = option(
    0.0, "share of each tag that is spread over all tags in the loss", low=0.0, high=0.99
  )

  scope = "tags"
  metric = "task_loss"
  labeled = True
  per_token = True

  def build(self, trunk: TrunkConfig) -> nn.Module:
    del trunk
    return Tagger(self.num_classes, self.dropout)

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.tags).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy with the tags; outputs are scores [B, T, K]."""
    del states, num_tokens
    tags = given(batch.tags)
    log_probs = jax.nn.log_softmax(outputs)
    # Not a gather: a GPU adds up its gradient in no fixed order.
    targets = jax.nn.one_hot(tags.targets, self.num_classes)
    if self.label_smoothing:
      targets = (1 - self.label_smoothing) * targets + self.label_smoothing / self.num_classes
    of_target = (log_probs * targets).sum(-1)
    return Mean(-(of_target * tags.weights).sum(), self.denominator(batch))

  def decode(self, outputs) -> jax.Array:
    """Probabilities [B, T, K]."""
    return jax.nn.softmax(outputs)


class Tagger(nn.Module):
  """K scores of each token."""

  outputs: int
  dropout: float

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """Scores [B, T, K] before the softmax."""
    del batch
    x = dropout(states.hidden.astype(jnp.float32), self.dropout, key)
    kernel = self.param("kernel", nn.initializers.normal(0.02), (x.shape[-1], self.outputs))
    bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
    return x @ kernel + bias.reshape((1, 1, -1))
