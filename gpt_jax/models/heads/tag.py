"""Linear heads on every token: one class each (token tagging, such as CoNLL's entities), or the
first and the last token of an answer (BERT's SQuAD head, section 4.2).

Letters: B rows, T positions, N examples, K tags, P = B T.
"""

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
    return Tagger(self.num_classes, self.dropout)

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.tags).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy with the tags; outputs are scores [B, T, K]."""
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
  outputs: int
  dropout: float

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """Scores [B, T, K] before the softmax."""
    x = dropout(states.hidden.astype(jnp.float32), self.dropout, key)
    kernel = self.param("kernel", nn.initializers.normal(0.02), (x.shape[-1], self.outputs))
    bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
    return x @ kernel + bias.reshape((1, 1, -1))


_NEVER = -1e9  # score of a position that the answer cannot begin or end at


@register("span_head")
@dataclasses.dataclass(frozen=True)
class SpanHead(Head):
  """A softmax over the positions of each example for the first token, another for the last.

  Tags number the tokens that may answer. Labels are the numbers of an answer's first and last
  token, -1 where the sequence holds no answer: the anchor stands for that.
  """

  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "span"
  metric = "task_loss"
  labeled = True
  per_token = True
  num_classes = 2

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return Tagger(self.num_classes, self.dropout)

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy, the mean of first and last token's; outputs are scores [B, T, 2]."""
    labels, tags = given(batch.labels), given(batch.tags)
    anchors, segments = labels.anchors[:, :1], given(batch.rows.segments).reshape(1, -1)
    is_anchor = anchors == jnp.arange(segments.size)[None]  # [N, P]
    # [N, 1] == [1, P]: all rows as one, since several examples share a row.
    own = segments[0, anchors] == segments
    allowed = is_anchor | own & (tags.weights.reshape(1, -1) > 0)
    scores = jnp.where(allowed[..., None], outputs.reshape(1, -1, 2), _NEVER)  # [N, P, 2]
    wanted = labels.distributions[:, None]  # [N, 1, 2]
    of_answer = allowed[..., None] & (tags.targets.reshape(1, -1, 1) == wanted)
    # Not a gather: a GPU adds up its gradient in no fixed order.
    targets = jnp.where(wanted < 0, is_anchor[..., None], of_answer)
    per_example = -(jax.nn.log_softmax(scores, axis=1) * targets).sum((1, 2)) / 2
    return Mean((per_example * labels.weights).sum(), self.denominator(batch))

  def decode(self, outputs) -> jax.Array:
    """The scores [B, T, 2]."""
    return outputs
