"""Dropout whose masks are a pure function of (seed, step, layer, global element index).

A mask bit is a murmur3-style finalizer over the element's index and the words of its row. It
therefore fuses into the operation that consumes it (threefry costs 16-19 % of a training step on a
CPU, this 3 %), and is the same on every mesh, under pmap, and for every split into microbatches.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.product import on_gpu

_GOLDEN = np.uint32(0x9E3779B9)


class Key(NamedTuple):
  """A dropout key: all that a mask depends on besides the element's index."""

  word: jax.Array  # uint32 scalar, mixed from the seed, the step and the folded numbers
  # uint32 scalar; arrays are the shard-th of equal parts of the global batch (0: all of it)
  shard: jax.Array

  def fold(self, number: int) -> "Key":
    """The key of one use among several: of a layer, or of one dropout in a layer."""
    # + 1, since the finalizer maps 0 to 0, which would leave the word as it is in the xor.
    times_golden = np.uint32((number + 1) * int(_GOLDEN) % 2**32)
    return self._replace(word=_finalize(self.word ^ _finalize(times_golden)))


def step_key(seed: jax.Array | int, step: jax.Array | int, shard: jax.Array | int = 0) -> Key:
  """The key of a training step."""
  word = _finalize((jnp.asarray(seed, jnp.uint32) + np.uint32(1)) * _GOLDEN)
  word = _finalize(word + jnp.asarray(step, jnp.uint32) * _GOLDEN)  # other masks in each step
  return Key(word, jnp.asarray(shard, jnp.uint32))


def dropout(x: jax.Array, rate: float, key: Key | None, *, sharded: bool = True) -> jax.Array:
  """Sets elements to zero with probability `rate` and scales the others by 1 / (1 - rate).

  Args:
    x: [rows, ...]; devices and microbatches split the first axis.
    rate: probability of zero.
    key: None evaluates: x is returned unchanged.
    sharded: False for a parameter, which has one mask for all parts of the batch.
  """
  if key is None or rate == 0:
    return x
  drop = _drop_and_redraw if on_gpu() else _drop
  return drop(x, rate, key, sharded)


def _drop(x: jax.Array, rate: float, key: Key, sharded: bool) -> jax.Array:
  return _keep(x, rate, _bits(x.shape, key, sharded))


_drop_and_redraw = jax.custom_vjp(_drop, nondiff_argnums=(1, 3))


def _redraw(rate: float, sharded: bool, key: Key, gradient: jax.Array) -> tuple:
  # A GPU draws a mask again in less time than it reads a stored one. Without the barrier XLA would
  # see the same mask in both passes, and store it.
  return _drop(gradient, rate, jax.lax.optimization_barrier(key), sharded), None


_drop_and_redraw.defvjp(lambda x, rate, key, sharded: (_drop(x, rate, key, sharded), key), _redraw)


def dropout_rows(x: jax.Array, rows: jax.Array, rate: float, key: Key) -> jax.Array:
  """dropout(table, rate, key, sharded=False)[rows] for x = table[rows], [..., D], int [...].

  Only the rows that were looked up take a mask, in the gradient as well.
  """
  word = _finalize(key.word + rows[..., None].astype(jnp.uint32) * _GOLDEN)
  index = jax.lax.broadcasted_iota(jnp.uint32, (1,) * rows.ndim + x.shape[-1:], rows.ndim)
  return _keep(x, rate, random_bits(index, word))


def _keep(x: jax.Array, rate: float, bits: jax.Array) -> jax.Array:
  # Bits are uniform below 2^32, so a share `rate` of them is below the threshold. Those that are
  # kept are scaled, so that the expectation stays.
  return jnp.where(bits >= np.uint32(rate * 2**32), x / (1 - rate), 0).astype(x.dtype)


def _bits(shape: tuple[int, ...], key: Key, sharded: bool) -> jax.Array:
  """Random uint32 of the given shape."""
  word = row_words((shape[0],) + (1,) * (len(shape) - 1), key, sharded)
  # The element's number within its row, in row-major order; attention_plain.dropout_words counts
  # the same way.
  index, stride = jnp.uint32(0), 1
  for axis in range(len(shape) - 1, 0, -1):
    index = index + jax.lax.broadcasted_iota(jnp.uint32, (1,) + shape[1:], axis) * np.uint32(stride)
    stride *= shape[axis]
  return random_bits(index, word)


def row_words(shape: tuple[int, ...], key: Key, sharded: bool = True) -> jax.Array:
  """The mixed words of rows, uint32 of a shape [rows, 1, …], for random_bits."""
  row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
  if sharded:
    row = row + key.shard * np.uint32(shape[0])  # its number in the whole batch
  return _finalize(key.word + row * _GOLDEN)


def random_bits(index: jax.Array, word: jax.Array) -> jax.Array:
  """Random uint32 of elements with an index, uint32, in rows with a mixed word; broadcast."""
  # Two words per row: with one, rows with nearby words would share most of their masks.
  second = _finalize(word ^ _GOLDEN)
  x = index ^ word
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B) ^ second
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _finalize(x: jax.typing.ArrayLike) -> jax.Array:
  """murmur3's 32-bit finalizer: every input bit changes every output bit with probability near
  1/2.
  """
  x = jnp.asarray(x, jnp.uint32)
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
