"""The language-model head: next tokens by the trunk's own table (eq. 1). It has no parameters."""

import dataclasses

import flax.linen as nn
import jax

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.lookup import select


@register("language")
@dataclasses.dataclass(frozen=True)
class LanguageHead(Head):
  """-log P(token | the tokens it may attend to), in nats.

  Beside a labeled head this is the auxiliary loss (eq. 5), a mean over examples: their weights add
  up to 1 per example.
  """

  weight: float = option(1.0, "loss weight; lambda of eq. 5 when fine-tuning", low=0.0)
  special_tokens: bool = option(
    False, "predict special tokens too, such as sentinels and the end of a text"
  )
  z_loss: float = option(
    0.0, "weight of (log Z)^2 in the training loss of a token, Z = sum exp(logits)", low=0.0
  )

  scope = "language"
  metric = "lm_loss"
  per_token = True

  @property
  def measured(self) -> "LanguageHead":
    # The z-loss regularizes training; evaluations report the cross-entropy in nats.
    return dataclasses.replace(self, z_loss=0.0)

  def check_trunk(self, trunk: TrunkConfig) -> None:
    if trunk.table_width != trunk.width:
      raise InputError(
        f"trunk.embedding_width={trunk.table_width}: a language model multiplies hidden states by "
        f"the table, which takes trunk.width={trunk.width}; only a masked language model maps the "
        "one to the other"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    # No logits here: [B, T, R] would be the largest array of a step. The loss takes them in chunks.
    return NoOutputs()

  def denominator(self, batch: Batch) -> jax.Array:
    # Beside a labeled head (eq. 5) the mean is over examples, so a long one counts no more than a
    # short one. Alone (eq. 1) it is over tokens.
    return (batch.labels or given(batch.predictions)).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    predictions = given(batch.predictions)
    hidden = states.hidden  # [B, T, D]
    if predictions.at is not None:
      hidden = select(hidden, predictions.at)  # [B, T, D] -> [B, M, D]
    # Logits are h_n W_e^T (eq. 2), with the table that embedded the inputs.
    total = cross_entropy(
      hidden, states.table, predictions.targets, predictions.weights, num_tokens, self.z_loss
    )
    return Mean(total, self.denominator(batch))


class NoOutputs(nn.Module):
  """Nothing: the loss reads the hidden states."""

  def __call__(self, states: States, batch: Batch, key=None):
    return ()
