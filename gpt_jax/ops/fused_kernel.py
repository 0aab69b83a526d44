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

  qkv: Any  # [B, T, 3, H, K]: queries, keys, values
  segments: Any = None  # int32 [B, 1, T]
  prefix: Any = None  # int32 [B, 1, T], not 0 where the whole segment attends
  # The dropout of query t and key s of head h in row b is decided by
  # random_bits(starts[h, t] + s, words[b, t]).
  words: Any = None  # uint32 [B, 1, T]
  starts: Any = None  # uint32 [H, 1, T]


class Blocks(NamedTuple):
  """Blocks that an instance of a kernel reads; also the arrays they are in, and their specs."""

  q: Any  # [T, K], a tile or all positions; as k and v
  k: Any
  v: Any
  segments: Any  # [1, T], as those below
  prefix: Any
  words: Any
  starts: Any


# Compiled apart, so that they are traced once and not in each block of a model.
@functools.partial(jax.jit, static_argnums=0)
def forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
  """Attention [B, T, H, K], and the log-sum-exp of its scores, float32 [B, H, T]."""
  call = Call(kind, inputs.qkv.shape)
  arrays, specs = call.blocks(inputs)
  output, log_sums = call.run(
    _forward_kernel,
    "attention_forward",
    (specs._replace(q=call.tile(0)),),
    (call.tile(), call.row_tile),
    (call.heads_type(inputs.qkv.dtype), jax.ShapeDtypeStruct(call.rows, jnp.float32)),
  )(arrays)
  return call.cut(call.in_order(output)), log_sums[:, :, 0, : call.length]


@functools.partial(jax.jit, static_argnums=0)
def backward(
  kind: Kind, inputs: Inputs, output: jax.Array, log_sums: jax.Array, d_output: jax.Array
) -> jax.Array:
  """The gradient of qkv."""
  call = Call(kind, inputs.qkv.shape)
  # sum_s P dP of each query, with or without dropout (FlashAttention-2, section 2.3.2).
  products = output.astype(jnp.float32) * d_output.astype(jnp.float32)
  deltas = call.pad_last(products.sum(-1).swapaxes(1, 2)[:, :, None])
  # Queries that are padding: probabilities of any finite value, times a gradient of 0.
  log_sums = call.pad_last(log_sums[:, :, None])
  arrays, specs = call.blocks(inputs)
  arguments = (arrays, call.in_order(call.pad_heads(d_output)), log_sums, deltas)
  row, gradient = call.whole_row, call.heads_type(inputs.qkv.dtype)
  (d_q,) = call.run(
    _query_gradient_kernel,
    "attention_query_gradient",
    (specs._replace(q=call.tile(0)), call.tile(), row, row),
    (call.tile(),),
    (gradient,),
  )(*arguments)
  d_k, d_v = call.run(
    _key_gradient_kernel,
    "attention_key_gradient",
    (specs._replace(k=call.tile(1), v=call.tile(2)), call.whole(), row, row),
    (call.tile(), call.tile()),
    (gradient, gradient),
  )(*arguments)
  return jnp.stack([call.cut(call.in_order(x)) for x in (d_q, d_k, d_v)], axis=2)


class Call:
  """Grid, tiles and padding of the kernels for qkv of one shape."""

  def __init__(self, kind: Kind, shape: tuple[int, ...]):
    self.kind = kind
    self.batch, self.length, _, self.heads, self.width = shape
    self.size = kind.tile(self.length)
    self.count = pl.cdiv(self.length, self.size)
    self.padded_length = self.count * self.size
    self.padded_width = max(kind.least, pl.next_power_of_2(self.width))
    self.rows = (self.batch, self.heads, 1, self.padded_length)
    one = (None, None, 1)
    self.row_tile = self._spec((*one, self.size), lambda b, h, i: (b, h, 0, i))
    self.whole_row = self._spec((*one, self.padded_length), lambda b, h, i: (b, h, 0, 0))

  @property
  def tile_axis(self) -> int:
    """The axis of the grid along T, which runs fastest: the last on a TPU, the first on a GPU."""
    return 0 if self.kind.platform == "cuda" else 2

  def order(self, axes: Any) -> tuple:
    """Axes (B, T, …, H, K), or what belongs to each of them, in the order that the kernels read.

    A GPU reads heads where they are. A TPU copies whole blocks of the last two axes, which
    therefore are T and K: (B, H, …, T, K).
    """
    if self.kind.platform == "cuda":
      return tuple(axes)
    batch, positions, *planes, heads, width = axes
    return batch, heads, *planes, positions, width

  def in_order(self, x: jax.Array) -> jax.Array:
    """The array transposed as `order` has it; applied twice, as it was."""
    return x.transpose(self.order(range(x.ndim)))

  def heads_type(self, dtype: Any) -> jax.ShapeDtypeStruct:
    """An array [B, T, H, K], in order."""
    shape = (self.batch, self.padded_length, self.heads, self.padded_width)
    return jax.ShapeDtypeStruct(self.order(shape), dtype)

  def tile(self, *plane: int) -> pl.BlockSpec:
    """A tile of one head of an array [B, T, H, K], or of a plane of [B, T, 3, H, K], in order."""
    shape = self.order((None, self.size, *(None for _ in plane), None, self.padded_width))
    return self._spec(shape, lambda b, h, i: self.order((b, i, *plane, h, 0)))

  def whole(self, *plane: int) -> pl.BlockSpec:
    """All positions of it."""
    shape = self.order((None, self.padded_length, *(None for _ in plane), None, self.padded_width))
    return self._spec(shape, lambda b, h, i: self.order((b, 0, *plane, h, 0)))

  def blocks(self, inputs: Inputs) -> tuple[Blocks, Blocks]:
    """The arrays, padded and in order, and specs of whole ones.

    The caller replaces the specs of those that it reads tile by tile.
    """
    padded = self.pad(inputs)
    qkv = self.in_order(padded.qkv)
    arrays = Blocks(qkv, qkv, qkv, *padded[1:])
    by_row = self._spec((None, 1, self.padded_length), lambda b, h, i: (b, 0, 0))
    by_head = self._spec((None, 1, self.padded_length), lambda b, h, i: (h, 0, 0))
    q, k, v = map(self.whole, range(3))
    specs = Blocks(q, k, v, by_row, by_row, by_row, by_head)
    pairs = zip(specs, arrays, strict=True)
    return arrays, Blocks(*(None if x is None else spec for spec, x in pairs))

  def _spec(self, shape, index) -> pl.BlockSpec:
    if self.tile_axis == 0:
      return pl.BlockSpec(shape, lambda i, h, b: index(b, h, i))
    return pl.BlockSpec(shape, index)

  def run(self, kernel, name: str, in_specs, out_specs, outputs):
    """The kernel as a function of arrays; `outputs`: shapes and types of its results."""
    grid = (self.batch, self.heads, self.count)
    return pl.pallas_call(
      functools.partial(kernel, Tiles(self)),
      out_shape=outputs,
      grid=grid[::-1] if self.tile_axis == 0 else grid,
      in_specs=in_specs,
      out_specs=out_specs,
      interpret=self.kind.interpret,
      compiler_params=_compiler_params(self.kind.platform),
      name=name,
    )

  def pad(self, inputs: Inputs) -> Inputs:
    """With zeros after the last position: keys there are hidden, queries cut off the output."""
    rows = (None if x is None else self.pad_last(x) for x in inputs[1:])
    return Inputs(self.pad_heads(inputs.qkv), *rows)

  def pad_heads(self, x: jax.Array) -> jax.Array:
    """[B, T, …, H, K], its positions and features."""
    length, width = self.padded_length - self.length, self.padded_width - self.width
    return _pad(x, (0, length, *(0,) * (x.ndim - 3), width))

  def pad_last(self, x: jax.Array) -> jax.Array:
    return _pad(x, (0,) * (x.ndim - 1) + (self.padded_length - self.length,))

  def cut(self, x: jax.Array) -> jax.Array:
    """The inverse of pad_heads."""
    return x[:, : self.length, ..., : self.width]


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

  def scores(self, inputs: Blocks, q: jax.Array, k: jax.Array, i, j) -> jax.Array:
    """Masked and scaled scores, float32 [S, T]."""
    return self.mask(_product(k, q, 1, 1), inputs, i, j)

  def mask(self, products: jax.Array, inputs: Blocks, i, j) -> jax.Array:
    """The scores of the products of queries and keys."""
    scores = products * self.scale
    allowed = self._allowed(inputs, i, j)
    return scores if allowed is None else jnp.where(allowed, scores, _MASKED)

  def _allowed(self, inputs: Blocks, i, j) -> jax.Array | None:
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

  def drop(self, x: jax.Array, inputs: Blocks, i, j) -> jax.Array:
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


def _forward_kernel(tiles: Tiles, inputs: Blocks, output, log_sums):
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


def _query_gradient_kernel(tiles: Tiles, inputs: Blocks, d_output, log_sums, deltas, d_q):
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


def _key_gradient_kernel(tiles: Tiles, inputs: Blocks, d_output, log_sums, deltas, d_k, d_v):
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
