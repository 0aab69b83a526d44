"""A parameter that products read: an array in training, KeptWeights in decoding."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from gpt_jax.ops.kept_weights import KeptWeights
from gpt_jax.ops.product import activation_type, project

KEPT = "kept"  # the collection of KeptWeights, which have the names of the parameters


def weight(
  module: nn.Module,
  name: str,
  init: Callable[..., Any],
  shape: tuple[int, ...],
  inputs: int = 0,
  has_bias: bool = False,
) -> Any:
  """The parameter `name`, float32 of that shape, or the KeptWeights that stand for it.

  Where the collection KEPT is mutable, the parameter is written into it as float32 KeptWeights; see
  decoding_weights.keep_weights.

  Args:
    module: which has the parameter.
    init: as in module.param.
    inputs: how many axes, from the first on, are a product's inputs; the others are its outputs.
      0: it is a table, whose last axis are the inputs.
    has_bias: whether the last column of a table is a bias.
  """
  kept: Any = module.get_variable(KEPT, name)
  if kept is not None:
    return kept
  value = module.param(name, init, shape)
  if module.is_mutable_collection(KEPT) and not module.is_initializing():
    module.put_variable(KEPT, name, _as_kept(value, inputs, has_bias))
  return value


def multiply(
  x: jax.Array, kernel: jax.Array | KeptWeights, inputs: int, outputs: tuple[int, ...]
) -> jax.Array:
  """x [B, …, inputs…] times a kernel from `weight`, as `project`: [B, …, outputs…]."""
  if not isinstance(kernel, KeptWeights):
    return project(x, kernel.astype(x.dtype), inputs)
  before = x.shape[: x.ndim - inputs]
  y = kernel.multiply(x.reshape(*before, -1))
  return y.reshape(*before, *outputs).astype(activation_type(x.dtype.name))


def _as_kept(value: jax.Array, inputs: int, has_bias: bool) -> KeptWeights:
  if inputs:
    return KeptWeights(value.reshape(math.prod(value.shape[:inputs]), -1).T)
  if has_bias:
    return KeptWeights(value[:, :-1], bias=value[:, -1])
  return KeptWeights(value)
