"""BERT's next-sentence and ALBERT's sentence-order head: a linear map of the pooled [CLS].

google-research/bert, run_pretraining.py, get_next_sentence_output.
"""

import dataclasses

import flax.linen as nn
import jax

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.classify import represent
from gpt_jax.models.heads.head import Head
from gpt_jax.models.layers import initializer
from gpt_jax.models.trunk import States, TrunkConfig


@register("sentence_pair")
@dataclasses.dataclass(frozen=True)
class SentencePairHead(Head):
  """How the two texts of a pair belong together.

  Class 0: the second follows the first; class 1: it is from elsewhere, or they are swapped. Like
  the labels of a task these are in Batch.labels, but they come with the text and not from people.
  """

  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "sentence_pair"
  metric = "sentence_pair_loss"
  labeled = False
  per_token = False
  reads = frozenset({"pooler"})

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Scores(trunk.style.init)

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy of the two classes; outputs are scores [N, 2]."""
    del states, num_tokens
    labels = given(batch.labels)
    per_pair = -(labels.distributions * jax.nn.log_softmax(outputs)).sum(-1)
    return Mean((per_pair * labels.weights).sum(), self.denominator(batch))

  def accuracy(self, outputs, batch: Batch) -> Mean:
    """The share of pairs whose class has the higher score."""
    labels = given(batch.labels)
    right = outputs.argmax(-1) == labels.distributions.argmax(-1)
    return Mean((right * labels.weights).sum(), self.denominator(batch))

  def decode(self, outputs) -> jax.Array:
    """Probabilities [N, 2]."""
    return jax.nn.softmax(outputs)


class _Scores(nn.Module):
  kernel_init: str

  @nn.compact
  def __call__(self, states: States, batch: Batch, key=None):
    """Scores [N, 2], float32."""
    pooled = given(states.pooler)(represent(states.hidden, batch, "sum")[:, 0])
    # Without dropout, as in BERT's and ALBERT's code; transformers' ALBERT has some here.
    kernel = self.param("kernel", initializer(self.kernel_init), (pooled.shape[-1], 2))
    bias = self.param("bias", nn.initializers.zeros, (2,))
    return pooled @ kernel + bias.reshape((1, 2))
