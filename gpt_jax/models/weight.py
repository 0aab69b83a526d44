"""A parameter that products read: an array or, in decoding, what stands for it."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from gpt_jax.ops.product import project

KEPT = "kept"  # the collection of what stands for parameters, under their names
MATRICES = "matrices"  # the collection that gets the Matrix of each parameter, where it is mutable


class Matrix(NamedTuple):
  """A parameter as products read it.

  Attributes:
    values: float32 [O, I], the weights of an output side by side, as a token table has them.
    bias: float32 [O], or None.
  """

  values: jax.Array
  bias: jax.Array | None = None


def weight(
  module: nn.Module,
  name: str,
  init: Callable[..., Any],
  shape: tuple[int, ...],
  inputs: int = 0,
  has_bias: bool = False,
) -> Any:
  """The parameter `name`, float32 of that shape, or what the collection KEPT has in its place.

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
  if module.is_mutable_collection(MATRICES) and not module.is_initializing():
    module.put_variable(MATRICES, name, _as_matrix(value, inputs, has_bias))
  return value


@functools.singledispatch
def multiply(kernel: Any, x: jax.Array, inputs: int, outputs: tuple[int, ...]) -> jax.Array:
  """x [B, …, inputs…] times a kernel from `weight`, as `project`: [B, …, outputs…].

  This is the product with an array; what stands for one registers its own.
  """
  del outputs
  return project(x, kernel.astype(x.dtype), inputs)


def _as_matrix(value: jax.Array, inputs: int, has_bias: bool) -> Matrix:
  if inputs:
    return Matrix(value.reshape(math.prod(value.shape[:inputs]), -1).T)
  if has_bias:
    return Matrix(value[:, :-1], value[:, -1])
  return Matrix(value)
