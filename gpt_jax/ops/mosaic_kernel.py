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


class _Arrays(NamedTuple):
  """Arrays that a kernel reads, padded; None: it does not."""

  qkv: Any  # [B, T, 3, H, K]
  segments: Any = None  # [B, 1, T], as prefix and words
  prefix: Any = None
  words: Any = None
  starts: Any = None  # [1, H, T]
  output: Any = None  # [B, T, H, K], as d_output
  d_output: Any = None
  log_sums: Any = None  # [B, H, T], as deltas
  deltas: Any = None


class _Side(NamedTuple):
  """Queries or keys of one row and head, and their rows: [T, K], [T], or tiles of them."""

  q: Any = None
  k: Any = None
  v: Any = None
  segments: Any = None
  prefix: Any = None
  words: Any = None
  starts: Any = None
  output: Any = None
  d_output: Any = None
  log_sums: Any = None
  deltas: Any = None


@functools.partial(jax.jit, static_argnums=0)
def forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
  """See fused_kernel.forward."""
  call = Call(kind, inputs.qkv.shape)

  def start(own):
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

  arrays = _arrays(call, inputs)
  heads = jax.ShapeDtypeStruct(arrays.qkv[:, :, 0].shape, arrays.qkv.dtype)
  run = _Run(call, "attention_forward", True, start, step, finish)
  output, log_sums = run(arrays, (heads, _rows(call)))
  return call.cut(output), log_sums[..., : call.length]


@functools.partial(jax.jit, static_argnums=0)
def backward(
  kind: Kind, inputs: Inputs, output: jax.Array, log_sums: jax.Array, d_output: jax.Array
) -> jax.Array:
  """See fused_kernel.backward."""
  call = Call(kind, inputs.qkv.shape)
  arrays = _arrays(call, inputs)._replace(
    d_output=call.pad_heads(d_output), log_sums=call.pad_last(log_sums)
  )
  # Each kernel writes its planes. Not two arrays, which would have to be joined.
  d_qkv: Any = jax.empty_ref(jax.ShapeDtypeStruct(arrays.qkv.shape, arrays.qkv.dtype))

  def query_start(own):
    products = own.output[...].astype(jnp.float32) * own.d_output[...].astype(jnp.float32)
    return products.sum(1), _zeros(call)

  def query_step(tile, carry):
    deltas, d_q = carry
    factors = (tile.own.q, tile.other.k), (tile.own.d_output, tile.other.v)
    _, d_scores = tile.gradients(*factors, deltas)
    return deltas, d_q + tile.sum(d_scores, tile.other.k)

  def key_step(tile, carry):
    d_k, d_v = carry
    factors = (tile.own.k, tile.other.q), (tile.own.v, tile.other.d_output)
    kept, d_scores = tile.gradients(*factors, tile.other.deltas)
    return d_k + tile.sum(d_scores, tile.other.q), d_v + tile.sum(kept, tile.other.d_output)

  run = _Run(
    call,
    "attention_query_gradient",
    True,
    query_start,
    query_step,
    lambda deltas, d_q: (d_q * call.width**-0.5, deltas),
  )
  with_output = arrays._replace(output=call.pad_heads(output))
  (deltas,) = run(with_output, (_rows(call),), d_qkv, (0,))
  run = _Run(
    call,
    "attention_key_gradient",
    False,
    lambda own: (_zeros(call),) * 2,
    key_step,
    lambda d_k, d_v: (d_k * call.width**-0.5, d_v),
  )
  run(arrays._replace(deltas=deltas), (), d_qkv, (1, 2))
  return call.cut(d_qkv[...])


def _arrays(call: Call, inputs: Inputs) -> _Arrays:
  starts = None if inputs.starts is None else inputs.starts.swapaxes(0, 1)  # [1, H, T]
  padded = call.pad(inputs._replace(starts=starts))
  return _Arrays(padded.qkv, padded.segments, padded.prefix, padded.words, padded.starts)


def _rows(call: Call) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((call.batch, call.heads, call.padded_length), jnp.float32)


class _Run(NamedTuple):
  """A kernel: the fold of `step` over the other side's tiles, from start(own) to finish(*carry)."""

  call: Call
  name: str
  of_queries: bool  # an instance has a tile of queries, or else of keys
  start: Callable
  step: Callable
  finish: Callable

  def __call__(
    self, arrays: _Arrays, outputs: tuple, d_qkv: Any = None, planes: tuple[int, ...] = ()
  ) -> tuple[jax.Array, ...]:
    """The outputs. What `finish` gives before them is written into planes of d_qkv."""
    call = self.call
    mosaic: Any = plgpu  # jax 0.10 has no such name in it
    interpret = mosaic.InterpretGPUParams() if call.kind.interpret else None
    return plgpu.kernel(
      functools.partial(self._body, planes),
      out_type=outputs,
      grid=(call.count, call.heads, call.batch),
      grid_names=("tile", "head", "row"),
      compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
      interpret=interpret,
      kernel_name=self.name,
    )(arrays, d_qkv)

  def _body(self, planes, arrays, d_qkv, *outputs):
    own, other = _sides(arrays) if self.of_queries else reversed(_sides(arrays))
    targets = [_of_instance(d_qkv, plane) for plane in planes] + list(map(_of_instance, outputs))
    types = {name: plgpu.SMEM((self.call.size, *x.shape[1:]), x.dtype) for name, x in own.items()}
    instance = functools.partial(self._instance, own, other, targets)
    pl.run_scoped(instance, plgpu.Barrier(num_arrivals=len(own)), **types)

  def _instance(self, own, other, targets, barrier, **buffers):
    call, size, index = self.call, self.call.size, jax.lax.axis_index("tile")
    here = pl.ds(index * size, size)
    for name, buffer in buffers.items():
      plgpu.copy_gmem_to_smem(own[name].at[here], buffer, barrier)
    plgpu.barrier_wait(barrier)
    tiles = _Side(**buffers)

    # Causal: the tiles on the other side of the diagonal would be masked as a whole.
    causal = call.kind.mask == "causal"
    first = index if causal and not self.of_queries else 0
    stop = index + 1 if causal and self.of_queries else call.count

    def step(indices, *inputs):
      passing = _Side(**dict(zip(other, inputs[:-1], strict=True)))
      tile = _Tile(self, tiles, passing, (index, indices[0] + first))
      return self.step(tile, inputs[-1])

    def spec(x):
      rest = x.shape[1:]
      return plgpu.BlockSpec((size, *rest), lambda i: (i + first, *(0 for _ in rest)))

    carry = plgpu.emit_pipeline(
      step,
      grid=(stop - first,),
      in_specs=[spec(x) for x in other.values()],
      max_concurrent_steps=2,
      init_carry=self.start(tiles),
    )(*other.values())
    for target, value in zip(targets, self.finish(*carry), strict=True):
      target[here] = value.astype(target.dtype)


def _sides(arrays: _Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
  """References of an instance to queries, and to keys: fields of _Side."""
  q, k, v = (_of_instance(arrays.qkv, plane) for plane in range(3))
  rest = {name: _of_instance(x) for name, x in arrays._asdict().items() if name != "qkv"}
  queries = _Side(q, **rest)
  keys = _Side(k=k, v=v, segments=queries.segments, prefix=queries.prefix)
  return _given(queries._replace(prefix=None)), _given(keys)


def _given(side: _Side) -> dict[str, Any]:
  return {name: x for name, x in side._asdict().items() if x is not None}


def _of_instance(x: Any, plane: int | None = None) -> Any:
  """The part [T, …] of an array that belongs to the row and head of this instance of a kernel."""
  head, row = (jax.lax.axis_index(name) for name in ("head", "row"))
  if x is None:
    return None
  if x.ndim == 5:
    return x.at[row, :, plane, head]
  if x.ndim == 4:
    return x.at[row, :, head]
  return x.at[row if x.shape[0] > 1 else 0, head if x.shape[1] > 1 else 0]


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

  def gradients(self, factors, d_factors, deltas) -> tuple[jax.Array, jax.Array]:
    """The dropped probabilities, and the gradient of the scores."""
    log_sums, deltas = (self.read((x,), None, keys=False) for x in (self.asking.log_sums, deltas))
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
