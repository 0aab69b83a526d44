"""BERT's masked-LM head: transform, tied table, bias (google-research/bert, run_pretraining.py)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.head import Head
from gpt_jax.models.layers import LayerNorm, Projection, activate
from gpt_jax.models.trunk import States, Style, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.lookup import select


@register("masked_head")
@dataclasses.dataclass(frozen=True)
class MaskedHead(Head):
  """-log P(token | the rest of its text) at the predicted positions."""

  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "masked"
  metric = "masked_loss"
  labeled = False
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
    outputs = (table_width,)
    hidden = Projection((hidden.shape[-1],), outputs, dtype, kernel_init=init, name="transform")(
      hidden
    )
    # BERT's order: dense, GELU, norm (run_pretraining.py, get_masked_lm_output).
    hidden = activate(hidden.astype(jnp.float32), activation)
    hidden = LayerNorm(dtype, epsilon, name="norm")(hidden)
    return hidden.astype(dtype), self.param("bias", nn.initializers.zeros, (rows,))
