"""InfoNCE with in-batch negatives: classify which candidate is the anchor's partner, by cosine.

SimCSE (Gao et al. 2021, eq. 4): anchors are the first texts of the pairs, candidates all second
ones. Symmetric, as QuickThoughts (Logeswaran and Lee 2018): every text is an anchor, and all others
are its candidates. QuickThoughts has two encoders and inner products without a temperature; this
head has one encoder, and cosines.

Letters: B pairs, so 2 B rows; T positions, D width.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.models.heads.head import Head
from gpt_jax.models.layers import Projection, text_vectors
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.objectives.contrastive import TextVectors
from gpt_jax.parallel.mesh import constrain

_MIN_SQUARE = 1e-16  # squared length of a vector, of an empty row


@register("contrastive")
@dataclasses.dataclass(frozen=True)
class ContrastiveHead(TextVectors, Head):
  """Cross-entropy of cosine / tau over the candidates; rows 2i and 2i + 1 are a pair."""

  symmetric: bool = option(False, "whether the second text of a pair is an anchor, too")
  weight: float = option(1.0, "loss weight", low=0.0)

  scope = "contrastive"
  needs_whole_batch = True

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Embedder(self.pooling, trunk.width if self.mlp else 0)

  def denominator(self, batch: Batch) -> jax.Array:
    """The number of anchors."""
    return self._weights(batch).sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Outputs are vectors [2 B, D] of length 1.

    The texts of an incomplete pair, which only fill the batch, are neither anchors nor candidates.
    Nor is a text that is equal to the anchor or its partner, which would be a wrong negative.
    """
    texts = _text_hashes(batch).reshape(-1, 2, 2)  # [B, 2, 2]
    pairs = outputs.reshape(-1, 2, outputs.shape[-1])  # [B, 2, D]
    weights = self._weights(batch)  # [A], of the anchors
    if self.symmetric:
      anchors, candidates, partners = outputs, outputs, pairs[:, ::-1].reshape(outputs.shape)
      own = others = texts.reshape(-1, 2)
      partner = texts[:, ::-1].reshape(-1, 2)
      index = jnp.arange(len(outputs))
      is_partner = index[:, None] == (index ^ 1)[None]
    else:
      anchors, candidates, partners = pairs[:, 0], pairs[:, 1], pairs[:, 1]
      own, others, partner = texts[:, 0], texts[:, 1], texts[:, 1]
      is_partner = jnp.eye(len(pairs), dtype=bool)
    others = constrain(others)
    # A text is no candidate of its own, either.
    is_same = (own[:, None] == others[None]).all(-1) | (partner[:, None] == others[None]).all(-1)
    excluded = is_same & ~is_partner | (weights == 0)[None]
    # Each device compares its anchors with the candidates of all devices.
    scores = jnp.einsum(
      "ad,cd->ac",
      constrain(anchors, "data"),
      constrain(candidates),
      precision=jax.lax.Precision.HIGHEST,  # division by tau enlarges rounding errors
    )
    # [A, candidates] -> [A].
    everything = jax.nn.logsumexp(jnp.where(excluded, -1e9, scores / self.temperature), axis=-1)
    # -log softmax of the partner among all candidates.
    per_text = everything - (anchors * partners).sum(-1) / self.temperature
    return Mean((per_text * weights).sum(), weights.sum())

  def chance(self, size: int) -> float:
    """As Head.chance, of `size` pairs."""
    return math.log(2 * size - 1 if self.symmetric else size)

  def _weights(self, batch: Batch) -> jax.Array:
    """1 for each anchor, [B] or [2 B]; 0 where a pair is incomplete."""
    used = jnp.asarray(batch.rows.is_token).any(axis=1).reshape(-1, 2).all(axis=1)
    return jnp.repeat(used, 2 if self.symmetric else 1).astype(jnp.float32)


def _text_hashes(batch: Batch) -> jax.Array:
  """Two hashes of the ids of each row, uint32 [rows, 2]: polynomials modulo 2^32."""
  is_token = jnp.asarray(batch.rows.is_token)
  ids = jnp.where(is_token, jnp.asarray(batch.rows.inputs) + 1, 0).astype(jnp.uint32)
  bases = np.array([0x9E3779B1, 0x85EBCA77], np.uint32)
  powers = np.cumprod(np.broadcast_to(bases, (ids.shape[1], 2)), axis=0, dtype=np.uint32)  # [T, 2]
  return (ids[..., None] * jnp.asarray(powers)[None]).sum(axis=1, dtype=jnp.uint32)


class _Embedder(nn.Module):
  """The vectors that the loss compares, scaled to length 1; width is that of the layer, 0: none."""

  pooling: str
  width: int

  @nn.compact
  def __call__(self, states: States, batch: Batch, key=None):
    x = text_vectors(states.hidden, jnp.asarray(batch.rows.is_token), self.pooling)
    if self.width:
      x = jnp.tanh(Projection((self.width,), (self.width,), "float32", name="dense")(x))
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), _MIN_SQUARE))
