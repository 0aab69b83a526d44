"""Fused attention on TPUs and NVIDIA GPUs: the scores are never an array, nor are dropout masks.

The kernels (fused_kernel.py) drop the same elements as plain attention. Elsewhere, as on a CPU,
this is plain attention, whose probabilities the backward pass computes anew.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.errors import InputError
from gpt_jax.ops import attention_plain, fused_kernel
from gpt_jax.ops.attention import AttentionMask, Dropout
from gpt_jax.ops.fused_kernel import Inputs, Kind

# A platform whose kernels run as array operations, on any device: slow, for tests.
INTERPRETED = ""


def attend(qkv, mask, bias, dropout, observe, kernels: ModuleType = fused_kernel) -> jax.Array:
  """See attention.Backend. An observer gets the probabilities of plain attention.

  kernels: the module of the kernels, as fused_kernel.
  """
  if bias is not None:
    raise InputError("trunk.attention_backend: only plain has an attention bias")
  if observe is not None:
    return attention_plain.attend(qkv, mask, bias, dropout, observe)
  if dropout.key is None or dropout.rate == 0:
    dropout = Dropout()
  return _attention(kernels, dropout.rate, qkv, mask, dropout.key)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(kernels, rate, qkv, mask, key):
  return _forward(kernels, rate, qkv, mask, key)[0]


def _forward(kernels, rate, qkv, mask, key):
  def plain(qkv, mask, key):
    batch, length, _, heads, _ = qkv.shape
    log_sums = jnp.zeros((batch, heads, length), jnp.float32)  # not needed
    return _plain(rate, mask, key)(qkv), log_sums

  arguments = (qkv, mask, key)
  fused = partial(_fused, kernels.forward, kernels.MIN_SIZE, rate)
  output, log_sums = by_platform(kernels.PLATFORMS, fused, plain, *arguments)
  return output, (*arguments, output, log_sums)


def _backward(kernels, rate, residuals, d_output):
  def plain(qkv, mask, key, output, log_sums, d_output):
    return jax.vjp(_plain(rate, mask, key), qkv)[1](d_output)[0]

  fused = partial(_fused, kernels.backward, kernels.MIN_SIZE, rate)
  return by_platform(kernels.PLATFORMS, fused, plain, *residuals, d_output), None, None


_attention.defvjp(_forward, _backward)


def _fused(kernel: Callable, least: int, rate: float, platform: str, qkv, mask, key, *rest):
  kind = Kind(mask.kind, rate, platform, bool(INTERPRETED), least)
  return on_mesh(partial(kernel, kind), _inputs(qkv, mask, key), *rest)


def _plain(rate: float, mask: AttentionMask, key: Any) -> Callable[..., jax.Array]:
  return lambda qkv: attention_plain.attend(qkv, mask, None, Dropout(rate, key), None)


def by_platform(names, fused: Callable, plain: Callable, *arguments: Any) -> Any:
  """fused(platform, …) or plain(…), by the device that the program is compiled for.

  That need not be the default one, as when a step is planned for a TPU on a machine without one.
  """
  if INTERPRETED:
    return fused(INTERPRETED, *arguments)
  platforms = {name: partial(fused, name) for name in names}
  return jax.lax.platform_dependent(*arguments, **platforms, default=plain)


def _inputs(qkv, mask: AttentionMask, key: Any) -> Inputs:
  words = starts = None
  if key is not None:
    batch, length, _, heads, _ = qkv.shape
    words, starts = attention_plain.dropout_words(mask.kind, key, batch, heads, length)
    words, starts = words[:, None], starts[:, None]  # [B, 1, T] and [H, 1, T]
  segments = None if mask.segments is None else mask.segments[:, None].astype(jnp.int32)
  prefix = None
  if mask.kind == "prefix" and mask.prefix is not None:
    prefix = mask.prefix[:, None].astype(jnp.int32)
  return Inputs(qkv, segments, prefix, words, starts)


def on_mesh(kernel: Callable, inputs: Inputs, *arrays: jax.Array) -> Any:
  """kernel(inputs, *arrays), on each device of the mesh for its rows and heads.

  XLA cannot partition a kernel. Rows and heads bring their words of the dropout hash with them, so
  a kernel need not know where in the batch it is.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or "data" not in mesh.axis_names or mesh.size == 1:
    return kernel(inputs, *arrays)
  batch, _, _, heads, _ = inputs.qkv.shape
  # What an axis does not divide, such as the single row of an example, every device computes.
  rows = "data" if batch % mesh.shape["data"] == 0 else None
  columns = "model" if heads % mesh.shape["model"] == 0 else None
  qkv, output, sums = P(rows, None, None, columns), P(rows, None, columns), P(rows, columns)
  all_specs = zip(Inputs(qkv, P(rows), P(rows), P(rows), P(columns)), inputs, strict=True)
  specs = Inputs(*(None if x is None else spec for spec, x in all_specs))
  in_specs: tuple = (specs,)
  out_specs: Any = (output, sums)
  if arrays:  # backward: the forward kernel's results, and the gradient of its output
    in_specs, out_specs = (specs, output, sums, output), qkv
  return jax.shard_map(kernel, in_specs=in_specs, out_specs=out_specs, check_vma=False)(
    inputs, *arrays
  )
