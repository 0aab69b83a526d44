"""T5's relative positions: a learned bias on attention scores for each bucket of distances.

Raffel et al. 2020, section 2.1; `_relative_position_bucket` of mesh's transformer_layers.py.

Letters: B rows, H heads, T queries, S keys, U buckets.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

BUCKETS = 32  # U
FARTHEST = 128  # this distance and all above share the last bucket


@functools.cache
def _bucket_of_distance(buckets: int) -> np.ndarray:
  """The bucket of the distances 0 … FARTHEST, int32 [FARTHEST + 1].

  The first half of the buckets has a distance each. The others, n of them, begin at
  exact * (FARTHEST / exact)^(k / n), rounded up: in whole numbers, so that no edge depends on how a
  logarithm is rounded.
  """
  exact = buckets // 2
  n = buckets - exact
  edges = list(range(1, exact))
  for k in range(n):
    least = exact**n * (FARTHEST // exact) ** k
    edges.append(next(d for d in range(exact, FARTHEST) if d**n >= least))
  return np.searchsorted(edges, np.arange(FARTHEST + 1), side="right").astype(np.int32)


def bucket(offset: jax.Array, bidirectional: bool) -> jax.Array:
  """The bucket of key position - query position, int32 of any shape.

  In both directions the first half of the buckets is for keys at or before the query, the second
  for those after it. A causal query has all buckets for the keys before it.
  """
  if bidirectional:
    table = jnp.asarray(_bucket_of_distance(BUCKETS // 2))
    after = jnp.where(offset > 0, BUCKETS // 2, 0)
    return table[jnp.minimum(jnp.abs(offset), FARTHEST)] + after
  table = jnp.asarray(_bucket_of_distance(BUCKETS))
  return table[jnp.clip(-offset, 0, FARTHEST)]


class RelativeBias(nn.Module):
  """A table [U, H] that all layers of a stack share."""

  heads: int
  bidirectional: bool

  def setup(self):
    init = nn.initializers.glorot_uniform()
    self.table = self.param("table", init, (BUCKETS, self.heads))

  def square(self, length: int) -> jax.Array:
    """float32 [1, H, T, T]: for a row of T positions that attends to itself.

    By columns. The positions of a sequence are consecutive, so within a sequence of a packed row
    the difference of two columns is that of the positions; between sequences nothing attends. One
    bias serves all rows, and its gradient is a sum of shifted rows, without a scatter.
    """
    offsets = jnp.arange(1 - length, length)  # [2 T - 1]
    one_hot = jax.nn.one_hot(bucket(offsets, self.bidirectional), BUCKETS)  # [2 T - 1, U]
    # A GPU would round float32 to 10 bits.
    values = jnp.dot(one_hot, self.table, precision=jax.lax.Precision.HIGHEST).T  # [H, 2 T - 1]
    # Row t of a tiling with one more column, read without it, is the vector shifted by t.
    width = 2 * length - 1
    tiled = jnp.tile(jnp.pad(values, ((0, 0), (0, 1))), (1, length))[:, : length * width]
    return tiled.reshape(1, self.heads, length, width)[..., length - 1 :]

  def __call__(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """[B, T] and [1, S] to float32 [B, H, T, S]."""
    offsets = key_positions[:, None, :] - query_positions[:, :, None]  # [B, T, S]
    return jnp.moveaxis(self.table[bucket(offsets, self.bidirectional)], -1, 1)
