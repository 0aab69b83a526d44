"""ALiBi (Press et al. 2021): attention scores fall linearly with distance, without embeddings.

TransformerConfig(attention_bias=Alibi(), learned_positions=False)
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.config import register


@register("alibi")
@dataclasses.dataclass(frozen=True)
class Alibi:
  """A penalty on the distance between query and key, with a fixed slope per head."""

  def build(self, heads: int) -> nn.Module:
    return _Penalty(heads)


def slopes(heads: int) -> np.ndarray:
  """float32 [H], from 2^(-8 / n) to 2^-8 in a geometric series (section 3).

  For a number of heads that is no power of two: the series of the next lower power n, then every
  second one of 2 n, as in the paper's code (ofirpress/attention_with_linear_biases).
  """
  n = 1 << (heads.bit_length() - 1)
  series = 2.0 ** (-8 / n * np.arange(1, n + 1))
  between = 2.0 ** (-4 / n * np.arange(1, 2 * n + 1, 2))
  return np.concatenate([series, between])[:heads].astype(np.float32)


class _Penalty(nn.Module):
  heads: int

  def __call__(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """-slope x |query position - key position|: [B, T] and [B, S] to float32 [B, H, T, S]."""
    # Of positions, not of columns: in a packed row each text counts from 0.
    distance = jnp.abs(query_positions[:, :, None] - key_positions[:, None, :])
    return -jnp.asarray(slopes(self.heads))[None, :, None, None] * distance[:, None]
