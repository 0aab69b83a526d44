"""Two scores per token, of the first and the last of an answer (BERT's SQuAD head, section 4.2).

Letters: B rows, T positions, N examples, P = B T.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.head import Head
from gpt_jax.models.heads.tag import Tagger
from gpt_jax.models.trunk import States, TrunkConfig

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
    del trunk
    return Tagger(self.num_classes, self.dropout)

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy, the mean of first and last token's; outputs are scores [B, T, 2]."""
    del states, num_tokens
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
