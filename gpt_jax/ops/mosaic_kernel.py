"""The kernels of fused attention for Mosaic GPU, which replaces Triton in JAX; for Hopper GPUs.

Mosaic GPU has no product of arrays. Its `wgmma` reads the second factor from shared memory; the
first may be in registers, as probabilities are. So a tile of scores is [own, other]: an instance of
a kernel has its own tile of queries (or keys), while those of the keys (or queries) pass by, one
copied to shared memory as another is computed. Mask, dropout and padding are of fused_kernel, and
so are the letters.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from gpt_jax.ops.fused_kernel import Call, Inputs, Kind, Tiles

PLATFORMS = ("cuda",)
MIN_SIZE = 64  # rows of wgmma


class _Side(NamedTuple):
  """Blocks of queries, or of keys: [B, H, T, K], and [B or 1, H or 1, T], or tiles."""

  q: Any = None
  k: Any = None
  v: Any = None
  d_output: Any = None
  segments: Any = None
  prefix: Any = None
  words: Any = None
  starts: Any = None
  log_sums: Any = None
  deltas: Any = None


@functools.partial(jax.jit, static_argnums=0)
def forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
  """See fused_kernel.forward."""
  call = Call(kind, inputs.q.shape)
  queries, keys = _sides(call.pad(inputs))

  def start():
    row = (call.size,)
    return jnp.full(row, -jnp.inf, jnp.float32), jnp.zeros(row, jnp.float32), _zeros(call)

  def step(tile, carry):
    largest, total, sums = carry
    scores = tile.masked(tile.own.q, tile.other.k)
    new_largest = jnp.maximum(largest, scores.max(1))
    correction = jnp.exp(largest - new_largest)
    weights = jnp.exp(scores - _wide(new_largest, scores))
    total = total * correction + weights.sum(1)
    sums = sums * _wide(correction, sums) + tile.sum(tile.dropped(weights), tile.other.v)
    return new_largest, total, sums

  def finish(largest, total, sums):
    return sums / _wide(total, sums), largest + jnp.log(total)

  rows = jax.ShapeDtypeStruct(queries.q.shape[:3], jnp.float32)
  run = _Run(call, "attention_forward", True, start, step, finish)
  output, log_sums = run(queries, keys, (queries.q, rows))
  return call.cut(output), log_sums[:, :, None, : call.length]


@functools.partial(jax.jit, static_argnums=0)
def backward(
  kind: Kind, inputs: Inputs, output: jax.Array, log_sums: jax.Array, d_output: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See fused_kernel.backward."""
  call = Call(kind, inputs.q.shape)
  queries, keys = _sides(call.pad(inputs))
  deltas = (output.astype(jnp.float32) * d_output.astype(jnp.float32)).sum(-1)
  queries = queries._replace(
    d_output=call.pad_array(d_output),
    log_sums=call.pad_last(log_sums[:, :, 0]),
    deltas=call.pad_last(deltas),
  )

  def query_step(tile, carry):
    _, d_scores = tile.gradients((tile.own.q, tile.other.k), (tile.own.d_output, tile.other.v))
    return (carry[0] + tile.sum(d_scores, tile.other.k),)

  def key_step(tile, carry):
    kept, d_scores = tile.gradients((tile.own.k, tile.other.q), (tile.own.v, tile.other.d_output))
    d_k, d_v = carry
    return d_k + tile.sum(d_scores, tile.other.q), d_v + tile.sum(kept, tile.other.d_output)

  run = _Run(
    call,
    "attention_query_gradient",
    True,
    lambda: (_zeros(call),),
    query_step,
    lambda d_q: (d_q * call.width**-0.5,),
  )
  (d_q,) = run(queries, keys, (queries.q,))
  run = _Run(
    call,
    "attention_key_gradient",
    False,
    lambda: (_zeros(call),) * 2,
    key_step,
    lambda d_k, d_v: (d_k * call.width**-0.5, d_v),
  )
  d_k, d_v = run(keys, queries, (keys.k, keys.v))
  return call.cut(d_q), call.cut(d_k), call.cut(d_v)


def _sides(inputs: Inputs) -> tuple[_Side, _Side]:
  starts = None if inputs.starts is None else inputs.starts.swapaxes(0, 1)  # [1, H, T]
  queries = _Side(inputs.q, segments=inputs.segments, words=inputs.words, starts=starts)
  return queries, _Side(None, inputs.k, inputs.v, segments=inputs.segments, prefix=inputs.prefix)


class _Run(NamedTuple):
  """A kernel: the fold of `step` over the other side's tiles, from start() to finish(*carry)."""

  call: Call
  name: str
  of_queries: bool  # an instance has a tile of queries, or else of keys
  start: Callable
  step: Callable
  finish: Callable

  def __call__(self, own: _Side, other: _Side, outputs: tuple) -> tuple[jax.Array, ...]:
    call = self.call
    mosaic: Any = plgpu  # jax 0.10 has no such name in it
    interpret = mosaic.InterpretGPUParams() if call.kind.interpret else None
    tiles = jax.tree.map(lambda x: plgpu.SMEM((call.size, *x.shape[3:]), x.dtype), own)
    return plgpu.kernel(
      self._body,
      out_type=tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs),
      scratch_types=(tiles, plgpu.Barrier(num_arrivals=len(jax.tree.leaves(own)))),
      grid=(call.count, call.heads, call.batch),
      grid_names=("tile", "head", "row"),
      compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
      interpret=interpret,
      kernel_name=self.name,
    )(own, other)

  def _body(self, own, other, *rest):
    *outputs, tiles, barrier = rest
    call, size = self.call, self.call.size
    index, head, row = (jax.lax.axis_index(name) for name in ("tile", "head", "row"))

    def of_instance(x):
      return x.at[row if x.shape[0] > 1 else 0, head if x.shape[1] > 1 else 0]

    here = pl.ds(index * size, size)
    for source, target in zip(*map(jax.tree.leaves, (own, tiles)), strict=True):
      plgpu.copy_gmem_to_smem(of_instance(source).at[here], target, barrier)
    plgpu.barrier_wait(barrier)

    # Causal: the tiles on the other side of the diagonal would be masked as a whole.
    causal = call.kind.mask == "causal"
    first = index if causal and not self.of_queries else 0
    stop = index + 1 if causal and self.of_queries else call.count
    arrays, structure = jax.tree.flatten(other)

    def step(indices, *inputs):
      passing = jax.tree.unflatten(structure, inputs[:-1])
      tile = _Tile(self, tiles, passing, (index, indices[0] + first))
      return self.step(tile, inputs[-1])

    def spec(x):
      rest = x.shape[3:]
      return plgpu.BlockSpec((size, *rest), lambda i: (i + first, *(0 for _ in rest)))

    carry = plgpu.emit_pipeline(
      step,
      grid=(stop - first,),
      in_specs=[spec(x) for x in arrays],
      max_concurrent_steps=2,
      init_carry=self.start(),
    )(*map(of_instance, arrays))
    for output, value in zip(outputs, self.finish(*carry), strict=True):
      output[row, head, here] = value.astype(output.dtype)


class _Tile(Tiles):
  """Scores [own, other] of one tile, whose arrays are in shared memory."""

  def __init__(self, run: _Run, own: _Side, other: _Side, indices: tuple):
    super().__init__(run.call)
    self.own, self.other, self.of_queries = own, other, run.of_queries
    self.asking, keys = (own, other) if run.of_queries else (other, own)
    # Each row as a pair, for `read`: of the queries, of the keys.
    rows = (None if a is b is None else (a, b) for a, b in zip(self.asking, keys, strict=True))
    i, j = indices if run.of_queries else reversed(indices)
    self.arguments: Any = _Side(*rows), i, j

  def positions(self, i, keys: bool) -> jax.Array:
    axis = int(keys == self.of_queries)
    return jax.lax.broadcasted_iota(jnp.int32, (self.size, self.size), axis) + i * self.size

  def read(self, row, i, keys: bool) -> jax.Array:
    axis = int(keys == self.of_queries)
    return jax.lax.broadcast_in_dim(row[keys][...], (self.size, self.size), (axis,))

  def masked(self, own, other) -> jax.Array:
    return self.mask(self._scores(own, other), *self.arguments)

  def dropped(self, x: jax.Array) -> jax.Array:
    return self.drop(x, *self.arguments)

  def gradients(self, factors, d_factors) -> tuple[jax.Array, jax.Array]:
    """The dropped probabilities, and the gradient of the scores."""
    log_sums, deltas = (
      self.read((x,), None, keys=False) for x in (self.asking.log_sums, self.asking.deltas)
    )
    probabilities = jnp.exp(self.masked(*factors) - log_sums)
    d_probabilities = self.dropped(self._scores(*d_factors))
    return self.dropped(probabilities), probabilities * (d_probabilities - deltas)

  def _scores(self, own, other) -> jax.Array:
    """[own, other], float32: products over the width."""
    return _product(own, other.T, self.size)

  def sum(self, weights: jax.Array, values) -> jax.Array:
    """[own, K], float32: sums of the other side's values."""
    weights = weights.astype(values.dtype)
    if self.kind.interpret:  # which has no wgmma of an array
      return jnp.dot(weights, values[...], preferred_element_type=jnp.float32)
    return _product(weights, values, values.shape[1])


def _product(a, b, columns: int) -> jax.Array:
  def multiply(sums):
    plgpu.wgmma(sums, a, b)
    return sums[...]

  return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], columns), jnp.float32))


def _zeros(call: Call) -> jax.Array:
  return jnp.zeros((call.size, call.padded_width), jnp.float32)


def _wide(row: jax.Array, like: jax.Array) -> jax.Array:
  """[own] to the shape of `like`, [own, …]."""
  return jax.lax.broadcast_in_dim(row, like.shape, (0,))
