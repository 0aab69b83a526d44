"""The blocks of an encoder-decoder: T5's, without biases, normalized at the input of each sublayer.

Raffel et al. 2020, section 2.1; mesh's transformer_layers.py and attention.py. What dropout drops
it drops at all positions of a row (`noise_shape` without the length).

Letters: B rows, T positions, S positions of the source, D width, H heads, K width of a head, F
units of the feed-forward layer.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.models.layers import activate
from gpt_jax.models.weight import multiply, weight
from gpt_jax.ops.attention import AttentionMask, attention, write_cache
from gpt_jax.ops.attention_plain import attend_allowed
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.product import activation_type
from gpt_jax.parallel.partition import constrain

_EPSILON = 1e-6


class Linear(nn.Module):
  """A linear map of the last axis."""

  outputs: int
  std: float
  dtype: str

  @nn.compact
  def __call__(self, x):
    shape = (x.shape[-1], self.outputs)
    kernel = weight(self, "kernel", nn.initializers.normal(self.std), shape, inputs=1)
    return multiply(kernel, x.astype(self.dtype), 1, (self.outputs,))


class RMSNorm(nn.Module):
  """x / sqrt(mean(x^2) + 1e-6) * scale, in float32."""

  dtype: str

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + _EPSILON)
    x = x * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    return x.astype(activation_type(self.dtype))


def row_dropout(x: jax.Array, rate: float, key: Key | None) -> jax.Array:
  """Dropout of x [B, T, D] with one mask for all positions of a row."""
  return _drop(x, (len(x), 1, x.shape[-1]), rate, key)


def _drop(x, shape, rate, key):
  """x times a mask of `shape`, which broadcasts to that of x."""
  if key is None or rate == 0:
    return x
  # In float32: bfloat16 would round 1 / (1 - rate), which is the same for all elements.
  mask = dropout(jnp.ones(shape, jnp.float32), rate, key)
  return (x.astype(jnp.float32) * mask).astype(x.dtype)


class Attention(nn.Module):
  """Multi-head attention whose scores are not divided by sqrt(K): that is in the queries' init.

  The kernels are matrices, [D, H K] and [H K, D], as optimizers that look at whole tensors want.
  """

  config: Any  # T5Config

  def setup(self):
    c = self.config
    inner = c.heads * c.head_width
    # Mesh's deviations: 1 / sqrt of a product's inputs; the queries' has 1 / sqrt(K) besides, in
    # place of a division of the scores.
    self.query = Linear(inner, (c.width * c.head_width) ** -0.5, c.dtype)
    self.key = Linear(inner, c.width**-0.5, c.dtype)
    self.value = Linear(inner, c.width**-0.5, c.dtype)
    self.out = Linear(c.width, inner**-0.5, c.dtype)

  def __call__(self, x, mask, bias, key: Key | None = None, slots: tuple | None = None):
    """x [B, T, D] attends to itself, or to slots; see transformer.Block, also for the results."""
    q = self._queries(x)
    if slots is None:
      k, v = kept = self.memory(x)
      return self._join(attention(q, k, self._drop_keys(v, key), mask, bias)), kept
    positions, *caches = slots
    new = self._split(self.key(x)), self._split(self.value(x))
    kept = [write_cache(y, z, positions) for y, z in zip(caches, new, strict=True)]
    k, v = (y.reshape(len(x), -1, *y.shape[1:]) for y in kept)
    return self._join(attend_allowed(q.astype(k.dtype), k, v, mask, bias)), kept

  def cross(self, x, memory, allowed, key: Key | None):
    """x [B, T, D] attends to a memory where allowed, bool [B, 1, T or 1, S], or None."""
    k, v = memory
    # Without a bias: target and source have no relative positions.
    q = self._queries(x).astype(k.dtype)
    return self._join(attend_allowed(q, k, self._drop_keys(v, key), allowed))

  def memory(self, x):
    """Keys and values of x [B, S, D]: [B, H, S, K] each."""
    return self._split(self.key(x)).swapaxes(1, 2), self._split(self.value(x)).swapaxes(1, 2)

  def _queries(self, x):
    """[B, H, T, K], times the sqrt(K) by which our attention divides the scores."""
    q = self.query(x) * self.config.head_width**0.5
    return self._split(q).swapaxes(1, 2)

  def _split(self, x):
    x = constrain(x, "data", None, "model")
    # [B, T, H K] -> [B, T, H, K]
    return x.reshape(*x.shape[:2], self.config.heads, self.config.head_width)

  def _join(self, update):
    """[B, H, T, K] to [B, T, D]."""
    update = update.swapaxes(1, 2)  # [B, T, H, K]
    return self.out(update.reshape(*update.shape[:2], -1))

  def _drop_keys(self, v, key):
    """Attention dropout with one mask for all queries, so a dropped key is a dropped value."""
    return _drop(v, (*v.shape[:3], 1), self.config.residual_dropout, key)


class FeedForward(nn.Module):
  """1.0: ReLU. 1.1: a tanh-GELU of one map times another (GEGLU, Shazeer 2020)."""

  config: Any  # T5Config

  @nn.compact
  def __call__(self, x, key: Key | None):
    c = self.config
    hidden = Linear(c.units, c.width**-0.5, c.dtype, name="in")(x)
    if c.gated:
      # `gate` is wi_0 of t5's code and `in` is wi_1: only the gate is activated.
      gate = Linear(c.units, c.width**-0.5, c.dtype, name="gate")(x)
      hidden = activate(gate, "gelu_tanh") * hidden
    else:
      hidden = jax.nn.relu(hidden)
    # T5 drops hidden units, too, unlike GPT.
    hidden = row_dropout(hidden, c.residual_dropout, key)
    return Linear(c.width, c.units**-0.5, c.dtype, name="out")(hidden)


class EncoderBlock(nn.Module):
  """x + Attention(RMS(x)), then x + FeedForward(RMS(x))."""

  config: Any  # T5Config

  def setup(self):
    self.attention = Attention(self.config)
    self.attention_norm = RMSNorm(self.config.dtype)
    self.mlp = FeedForward(self.config)
    self.mlp_norm = RMSNorm(self.config.dtype)

  def __call__(self, x, mask: AttentionMask, bias, key: Key | None):
    """x [B, T, D] to the same shape, and the keys and values of its attention to itself."""
    rate = self.config.residual_dropout
    # Of the attention, what it adds, the hidden units, and what they add.
    keys = [key and key.fold(i) for i in range(4)]
    update, kept = self.attention(self.attention_norm(x), mask, bias, keys[0])
    x = x + row_dropout(update, rate, keys[1])
    x = x + row_dropout(self.mlp(self.mlp_norm(x), keys[2]), rate, keys[3])
    return constrain(x, "data"), kept


class DecoderBlock(EncoderBlock):
  """As EncoderBlock, with attention to the source between the two."""

  def setup(self):
    super().setup()
    self.cross_attention = Attention(self.config)
    self.cross_attention_norm = RMSNorm(self.config.dtype)

  def __call__(  # type: ignore[override]
    self, x, source, mask, allowed, bias, key: Key | None = None, slots: tuple | None = None
  ):
    """As EncoderBlock.

    Args:
      source: the encoder's states [B, S, D], or with slots what memory makes of them.
      mask, bias, slots: as in transformer.Block.
      allowed: where the source is seen, bool [B, 1, T or 1, S], or None.
    """
    rate = self.config.residual_dropout
    keys = [key and key.fold(i) for i in range(6)]
    update, kept = self.attention(self.attention_norm(x), mask, bias, keys[0], slots)
    x = x + row_dropout(update, rate, keys[1])
    memory = self.memory(source) if slots is None else source
    update = self.cross_attention.cross(self.cross_attention_norm(x), memory, allowed, keys[2])
    x = x + row_dropout(update, rate, keys[3])
    x = x + row_dropout(self.mlp(self.mlp_norm(x), keys[4]), rate, keys[5])
    return constrain(x, "data"), kept

  def memory(self, source):
    """Keys and values of the source: [B, H, S, K] each."""
    return self.cross_attention.memory(source)


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
