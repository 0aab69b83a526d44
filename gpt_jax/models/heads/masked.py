"""BERT's heads of pre-training (google-research/bert, run_pretraining.py): masked tokens by a
transform, the tied table and a bias (get_masked_lm_output), and next sentence or ALBERT's sentence
order by a linear map of the pooled [CLS] (get_next_sentence_output).
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.classify import represent
from gpt_jax.models.heads.head import Head
from gpt_jax.models.layers import LayerNorm, Projection, activate, initializer
from gpt_jax.models.trunk import States, Style, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.lookup import select


@register("masked_head")
@dataclasses.dataclass(frozen=True)
class MaskedHead(Head):
  """-log P(token | the rest of its text) at the predicted positions."""

  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "masked"
  per_token = True

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Transform(trunk.style)

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.predictions).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Outputs are hidden [B, M, E] and the bias of each row of the table [R]."""
    hidden, bias = outputs
    table = jnp.concatenate([states.table, bias[:, None]], axis=-1)
    predictions = given(batch.predictions)
    total = cross_entropy(hidden, table, predictions.targets, predictions.weights, num_tokens)
    return Mean(total, self.denominator(batch))


class _Transform(nn.Module):
  """Dense D -> E, GELU, layer norm, at the predicted positions."""

  style: Style

  @nn.compact
  def __call__(self, states: States, batch: Batch, key=None):
    # [B, T, D] -> [B, M, D]: only the predicted positions, about 15 %, meet the table.
    hidden = select(states.hidden, given(given(batch.predictions).at))
    rows, table_width = states.table.shape
    dtype, init, activation, epsilon = self.style
    sizes = (hidden.shape[-1],), (table_width,)
    hidden = Projection(*sizes, dtype, kernel_init=init, name="transform")(hidden)
    # BERT's order: dense, GELU, norm (run_pretraining.py, get_masked_lm_output).
    hidden = activate(hidden.astype(jnp.float32), activation)
    hidden = LayerNorm(dtype, epsilon, name="norm")(hidden)
    return hidden.astype(dtype), self.param("bias", nn.initializers.zeros, (rows,))


@register("sentence_pair")
@dataclasses.dataclass(frozen=True)
class SentencePairHead(Head):
  """How the two texts of a pair belong together.

  Class 0: the second follows the first; class 1: it is from elsewhere, or they are swapped. Like
  the labels of a task these are in Batch.labels, but they come with the text and not from people.
  """

  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "sentence_pair"
  reads = frozenset({"pooler"})

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Scores(trunk.style.init)

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Cross-entropy of the two classes; outputs are scores [N, 2]."""
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
