"""Kernels of fused attention and its gradient: scores of one tile at a time, never all of them.

Dao 2023, FlashAttention-2: the softmax of a query is computed while its keys pass by, and its
log-sum-exp is all that the gradient needs to compute the probabilities anew. Dropout is computed
anew as well, from the counter hash. Written in Pallas, compiled by Mosaic for TPUs and by Triton
for NVIDIA GPUs.

A tile of scores is [S, T], keys by queries: what belongs to a query is then a row [1, T], which a
TPU stores without padding. K and V of one head are in fast memory as a whole.

Letters: B rows, H heads, T queries, S keys, K width of a head.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gpt_jax.ops.dropout import random_bits

_MASKED = -1e9  # a masked score; no query is without a key, so its probability becomes 0
PLATFORMS = ("tpu", "cuda")
MIN_SIZE = 16  # positions, or features of a head, of Triton's matrix products


@dataclasses.dataclass(frozen=True)
class Kind:
  """Compile-time settings of the kernels."""

  mask: str  # kind of the AttentionMask
  rate: float  # dropout rate
  platform: str  # one of PLATFORMS
  interpret: bool = False  # run as array operations instead, on any device; for tests
  least: int = MIN_SIZE  # positions, or features of a head, of the smallest matrix product

  def tile(self, length: int) -> int:
    """Positions of a tile: a TPU's vectors have 128 lanes (not measured); on an H200 tiles of 32,
    64 and 128 take the same time within 5 %.
    """
    if self.platform == "tpu":
      return 128
    return min(64, max(self.least, pl.next_power_of_2(length)))


class Inputs(NamedTuple):
  """Inputs of the forward and gradient kernels; parts that are not needed are None."""

  q: Any  # [B, H, T, K], as k and v
  k: Any
  v: Any
  segments: Any = None  # int32 [B, 1, T]
  prefix: Any = None  # int32 [B, 1, T], not 0 where the whole segment attends
  # The dropout of query t and key s of head h in row b is decided by
  # random_bits(starts[h, t] + s, words[b, t]).
  words: Any = None  # uint32 [B, 1, T]
  starts: Any = None  # uint32 [H, 1, T]


# Compiled apart, so that they are traced once and not in each block of a model.
@functools.partial(jax.jit, static_argnums=0)
def forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
  """Attention [B, H, T, K], and the log-sum-exp of its scores, float32 [B, H, 1, T]."""
  call = Call(kind, inputs.q.shape)
  # Zeros after the last position: keys there are hidden, queries there are cut off the output.
  padded = call.pad(inputs)
  specs = call.specs(padded)._replace(q=call.tile)
  output, log_sums = call.run(
    _forward_kernel,
    "attention_forward",
    (specs,),
    (call.tile, call.row_tile),
    (padded.q, jax.ShapeDtypeStruct(call.rows, jnp.float32)),
  )(padded)
  return call.cut(output), log_sums[..., : call.length]


@functools.partial(jax.jit, static_argnums=0)
def backward(
  kind: Kind, inputs: Inputs, output: jax.Array, log_sums: jax.Array, d_output: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The gradients of q, k and v."""
  call = Call(kind, inputs.q.shape)
  # sum_s P dP of each query, with or without dropout (FlashAttention-2, section 2.3.2).
  products = output.astype(jnp.float32) * d_output.astype(jnp.float32)
  deltas = call.pad_last(products.sum(-1)[:, :, None])
  # Queries that are padding: probabilities of any finite value, times a gradient of 0.
  log_sums = call.pad_last(log_sums)
  padded, d_output = call.pad(inputs), call.pad_array(d_output)
  arguments = (padded, d_output, log_sums, deltas)
  specs, row = call.specs(padded), call.whole_row
  (d_q,) = call.run(
    _query_gradient_kernel,
    "attention_query_gradient",
    (specs._replace(q=call.tile), call.tile, row, row),
    (call.tile,),
    (padded.q,),
  )(*arguments)
  d_k, d_v = call.run(
    _key_gradient_kernel,
    "attention_key_gradient",
    (specs._replace(k=call.tile, v=call.tile), call.whole, row, row),
    (call.tile, call.tile),
    (padded.k, padded.v),
  )(*arguments)
  return call.cut(d_q), call.cut(d_k), call.cut(d_v)


class Call:
  """Grid, tiles and padding of the kernels for q, k and v of one shape."""

  def __init__(self, kind: Kind, shape: tuple[int, ...]):
    self.kind = kind
    self.batch, self.heads, self.length, self.width = shape
    self.size = kind.tile(self.length)
    self.count = pl.cdiv(self.length, self.size)
    self.padded_length = self.count * self.size
    self.padded_width = max(kind.least, pl.next_power_of_2(self.width))
    self.rows = (self.batch, self.heads, 1, self.padded_length)
    length, width = self.padded_length, self.padded_width
    one = (None, None)
    self.tile = self._spec((*one, self.size, width), lambda b, h, i: (b, h, i, 0))
    self.whole = self._spec((*one, length, width), lambda b, h, i: (b, h, 0, 0))
    self.row_tile = self._spec((*one, 1, self.size), lambda b, h, i: (b, h, 0, i))
    self.whole_row = self._spec((*one, 1, length), lambda b, h, i: (b, h, 0, 0))

  @property
  def tile_axis(self) -> int:
    """The axis of the grid along T, which runs fastest: the last on a TPU, the first on a GPU."""
    return 0 if self.kind.platform == "cuda" else 2

  def specs(self, inputs: Inputs) -> Inputs:
    """Specs of whole arrays; the caller replaces those of arrays that it reads tile by tile."""
    by_row = self._spec((None, 1, self.padded_length), lambda b, h, i: (b, 0, 0))
    by_head = self._spec((None, 1, self.padded_length), lambda b, h, i: (h, 0, 0))
    specs = Inputs(self.whole, self.whole, self.whole, by_row, by_row, by_row, by_head)
    pairs = zip(specs, inputs, strict=True)
    return Inputs(*(None if x is None else spec for spec, x in pairs))

  def _spec(self, shape, index) -> pl.BlockSpec:
    if self.tile_axis == 0:
      return pl.BlockSpec(shape, lambda i, h, b: index(b, h, i))
    return pl.BlockSpec(shape, index)

  def run(self, kernel, name: str, in_specs, out_specs, outputs):
    """The kernel as a function of arrays; `outputs`: shapes and types of its results."""
    grid = (self.batch, self.heads, self.count)
    return pl.pallas_call(
      functools.partial(kernel, Tiles(self)),
      out_shape=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs),
      grid=grid[::-1] if self.tile_axis == 0 else grid,
      in_specs=in_specs,
      out_specs=out_specs,
      interpret=self.kind.interpret,
      compiler_params=_compiler_params(self.kind.platform),
      name=name,
    )

  def pad(self, inputs: Inputs) -> Inputs:
    arrays = [self.pad_array(x) for x in inputs[:3]]
    rows = [None if x is None else self.pad_last(x) for x in inputs[3:]]
    return Inputs(*arrays, *rows)

  def pad_array(self, x: jax.Array) -> jax.Array:
    missing = (self.padded_length - self.length, self.padded_width - self.width)
    return _pad(x, (0, 0, *missing))

  def pad_last(self, x: jax.Array) -> jax.Array:
    return _pad(x, (0,) * (x.ndim - 1) + (self.padded_length - self.length,))

  def cut(self, x: jax.Array) -> jax.Array:
    return x[:, :, : self.length, : self.width]


def _pad(x: jax.Array, after: tuple[int, ...]) -> jax.Array:
  return jnp.pad(x, [(0, count) for count in after]) if any(after) else x


def _compiler_params(platform: str) -> Any:
  if platform == "cuda":
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=4, num_stages=2)
  from jax.experimental.pallas import tpu

  return tpu.CompilerParams(dimension_semantics=("parallel",) * 3)


class Tiles:
  """Base of the three kernels: scores and dropout of the tile of queries i and keys j."""

  def __init__(self, call: Call):
    self.kind, self.size, self.count = call.kind, call.size, call.count
    self.tile_axis, self.length, self.scale = call.tile_axis, call.length, call.width**-0.5
    self.ends = call.padded_length > call.length

  @property
  def index(self) -> jax.Array:
    """The tile that this instance of the kernel computes."""
    return pl.program_id(self.tile_axis)

  def slice(self, i: jax.Array) -> Any:
    return pl.ds(pl.multiple_of(i * self.size, self.size), self.size)

  def scores(self, inputs: Inputs, q: jax.Array, k: jax.Array, i, j) -> jax.Array:
    """Masked and scaled scores, float32 [S, T]."""
    return self.mask(_product(k, q, 1, 1), inputs, i, j)

  def mask(self, products: jax.Array, inputs: Inputs, i, j) -> jax.Array:
    """The scores of the products of queries and keys."""
    scores = products * self.scale
    allowed = self._allowed(inputs, i, j)
    return scores if allowed is None else jnp.where(allowed, scores, _MASKED)

  def _allowed(self, inputs: Inputs, i, j) -> jax.Array | None:
    """bool [S, T], or None: everything; as attention_plain._allowed."""
    allowed = None
    keys = self.positions(j, keys=True)
    if self.kind.mask != "bidirectional":
      allowed = keys <= self.positions(i, keys=False)
      if inputs.prefix is not None:
        allowed = allowed | (self.read(inputs.prefix, j, keys=True) != 0)
    if inputs.segments is not None:
      queries = self.read(inputs.segments, i, keys=False)
      same = queries == self.read(inputs.segments, j, keys=True)
      allowed = same if allowed is None else allowed & same
    if self.ends and self.kind.mask == "bidirectional":
      exists = keys < self.length
      allowed = exists if allowed is None else allowed & exists
    return allowed

  def drop(self, x: jax.Array, inputs: Inputs, i, j) -> jax.Array:
    """Dropout on a tile [S, T]."""
    if inputs.words is None:
      return x
    keys = self.positions(j, keys=True).astype(jnp.uint32)
    index = self.read(inputs.starts, i, keys=False) + keys
    bits = random_bits(index, self.read(inputs.words, i, keys=False))
    keep = bits >= np.uint32(self.kind.rate * 2**32)
    return jnp.where(keep, x * np.float32(1 / (1 - self.kind.rate)), 0.0)

  def keys(self, i: jax.Array, body, start):
    """The fold over the tiles of keys that a query of tile i may attend to."""
    # Causal: the tiles after the diagonal would be masked as a whole.
    stop = i + 1 if self.kind.mask == "causal" else self.count
    return jax.lax.fori_loop(0, stop, body, start)

  def queries(self, j: jax.Array, body, start):
    """The fold over the tiles of queries that may attend to a key of tile j."""
    first = j if self.kind.mask == "causal" else 0
    return jax.lax.fori_loop(first, self.count, body, start)

  def positions(self, i, keys: bool) -> jax.Array:
    """int32 [S, T]: of the keys, or else the queries, of their tile i."""
    axis = 0 if keys else 1
    return jax.lax.broadcasted_iota(jnp.int32, (self.size, self.size), axis) + i * self.size

  def read(self, row: Any, i, keys: bool) -> jax.Array:
    """Values of the keys [S, 1], or else the queries [1, T], of their tile i, from a row of all."""
    values = row[:, self.slice(i)]
    return values.T if keys else values


def _forward_kernel(tiles: Tiles, inputs: Inputs, output, log_sums):
  i, q = tiles.index, inputs.q[...]

  def body(j, carry):
    largest, total, sums = carry
    scores = tiles.scores(inputs, q, inputs.k[tiles.slice(j), :], i, j)
    # FlashAttention-2, algorithm 1: all sums are relative to the largest score so far, and a larger
    # one scales them down. `total` counts dropped weights, too: dropout acts after the softmax.
    new_largest = jnp.maximum(largest, scores.max(0, keepdims=True))
    correction = jnp.exp(largest - new_largest)
    weights = jnp.exp(scores - new_largest)
    total = total * correction + weights.sum(0, keepdims=True)
    v = inputs.v[tiles.slice(j), :]
    kept = tiles.drop(weights, inputs, i, j).astype(v.dtype)
    return new_largest, total, sums * correction + _product(v, kept, 0, 0)

  row = (1, tiles.size)
  start = (
    jnp.full(row, -jnp.inf, jnp.float32),
    jnp.zeros(row, jnp.float32),
    jnp.zeros((q.shape[1], tiles.size), jnp.float32),  # [K, T]
  )
  largest, total, sums = tiles.keys(i, body, start)
  output[...] = (sums / total).T.astype(output.dtype)
  log_sums[...] = largest + jnp.log(total)


def _query_gradient_kernel(tiles: Tiles, inputs: Inputs, d_output, log_sums, deltas, d_q):
  i, q, d_out = tiles.index, inputs.q[...], d_output[...]
  log_sum, delta = log_sums[:, tiles.slice(i)], deltas[:, tiles.slice(i)]

  def body(j, total):
    k, v = inputs.k[tiles.slice(j), :], inputs.v[tiles.slice(j), :]
    probabilities = jnp.exp(tiles.scores(inputs, q, k, i, j) - log_sum)
    # dP has the mask of P. The softmax's gradient is dS = P (dP - delta), with the undropped P.
    d_probabilities = tiles.drop(_product(v, d_out, 1, 1), inputs, i, j)
    d_scores = probabilities * (d_probabilities - delta)
    return total + _product(k, d_scores.astype(k.dtype), 0, 0)

  start = jnp.zeros((q.shape[1], tiles.size), jnp.float32)  # [K, T]
  # `scale` once, since scores are scale q k^T.
  d_q[...] = (tiles.keys(i, body, start) * tiles.scale).T.astype(d_q.dtype)


def _key_gradient_kernel(tiles: Tiles, inputs: Inputs, d_output, log_sums, deltas, d_k, d_v):
  j, k, v = tiles.index, inputs.k[...], inputs.v[...]

  def body(i, totals):
    q, d_out = inputs.q[tiles.slice(i), :], d_output[tiles.slice(i), :]
    log_sum, delta = log_sums[:, tiles.slice(i)], deltas[:, tiles.slice(i)]
    probabilities = jnp.exp(tiles.scores(inputs, q, k, i, j) - log_sum)
    d_probabilities = tiles.drop(_product(v, d_out, 1, 1), inputs, i, j)
    # dV sums the dropped probabilities, dK those of the softmax's gradient.
    d_scores = (probabilities * (d_probabilities - delta)).astype(q.dtype)
    kept = tiles.drop(probabilities, inputs, i, j).astype(q.dtype)
    return totals[0] + _product(d_scores, q, 1, 0), totals[1] + _product(kept, d_out, 1, 0)

  start = (jnp.zeros(k.shape, jnp.float32),) * 2
  d_k_total, d_v_total = tiles.queries(j, body, start)
  d_k[...] = (d_k_total * tiles.scale).astype(d_k.dtype)
  d_v[...] = d_v_total.astype(d_v.dtype)


def _product(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
  """The matrix product that sums over axis_a of a and axis_b of b, float32."""
  numbers = (((axis_a,), (axis_b,)), ((), ()))
  return jax.lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32)
