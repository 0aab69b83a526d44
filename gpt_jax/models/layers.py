"""Layers that trunks and heads share: affine maps, layer norm, activations, a vector of a text; and
parameters that products read: arrays or, in decoding, what stands for them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.models.trunk import EPSILON
from gpt_jax.ops.lookup import select
from gpt_jax.ops.product import PROJECTED, activation_type, on_gpu, project
from gpt_jax.parallel.mesh import axis_size

STD = 0.02  # the paper's N(0, 0.02); the released code reads it as standard deviation
INITS = ("normal", "truncated")


def initializer(init: str, scale: float = 1.0) -> nn.initializers.Initializer:
  """Draws of standard deviation scale * STD, or as BERT's, which are cut at twice that.

  What is cut is drawn again, so the deviation of BERT's is 0.88 of it.
  """
  draw = {"normal": nn.initializers.normal, "truncated": nn.initializers.truncated_normal}[init]
  return draw(scale * STD)  # scale: see TransformerConfig.residual_scale


INIT = initializer("normal")


class Projection(nn.Module):
  """An affine map of the last axes of x, as one matrix product, and an activation of its result."""

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  dtype: str
  scale: float = 1.0  # of the first kernel
  kernel_init: str | nn.initializers.Initializer = "normal"
  activation: str = ""  # of ACTIVATIONS; "": none
  # Whether a GPU's product adds the bias, for a result that only kernels read (q, k, v). Elsewhere
  # the next elementwise operation adds it, in the pass that it makes anyway.
  bias_in_product: bool = False

  @nn.compact
  def __call__(self, x):
    init = self.kernel_init
    if isinstance(init, str):
      init = initializer(init, self.scale)
    kernel = weight(self, "kernel", init, self.inputs + self.outputs, len(self.inputs))
    bias = self.param("bias", nn.initializers.zeros, self.outputs)
    # The parameter stays float32, for the optimizer; its copy in the compute type is for the
    # product.
    x, inputs = x.astype(self.dtype), len(self.inputs)
    # What stands for a kernel has products of its own.
    is_array = isinstance(kernel, jax.Array)
    fused = self.bias_in_product and is_array and on_gpu() and axis_size("model") == 1
    if fused:
      y = project(x, kernel.astype(x.dtype), inputs, wide=True)
    else:
      y = multiply(kernel, x, inputs, self.outputs)
    bias = bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)
    in_16_bits = on_gpu() and y.dtype != jnp.float32

    def finish(y, bias):
      # Added in float32, so that the bias's gradient is a sum in float32.
      y = (y.astype(jnp.float32) + bias).astype(activation_type(self.dtype))
      y = rounded_gradient(y) if in_16_bits else y
      return activate(y, self.activation) if self.activation else y

    # The gradient of the activation reads the product, which is stored for it, and nothing else.
    finish = jax.checkpoint(finish) if in_16_bits and self.activation else finish
    y = finish(y, bias)
    return checkpoint_name(y, PROJECTED) if fused else y


@jax.custom_vjp
def rounded_gradient(x: jax.Array) -> jax.Array:
  """x, whose gradient is rounded to x's type before anything reads it.

  The bias's gradient sums it in float32, and XLA then drops its rounding to 16 bits: it writes the
  gradient (as of GELU's input) in float32, and reads it again to sum and to round. Where the
  rounding is explicit, the pass that computes the gradient sums it and writes 16 bits.
  """
  return x


def _rounded(_, d_output: jax.Array) -> tuple[jax.Array]:
  bits = jnp.finfo(d_output.dtype)
  return (jax.lax.reduce_precision(d_output, bits.nexp, bits.nmant),)


rounded_gradient.defvjp(lambda x: (x, None), _rounded)


class LayerNorm(nn.Module):
  """Biased variance, epsilon inside the root, in float32 (openai/train.py:44-57)."""

  dtype: str
  epsilon: float = EPSILON

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    normalize = _normalize_on_gpu if on_gpu() else _normalize
    return normalize(x, scale, bias, self.epsilon)[0].astype(activation_type(self.dtype))


def _normalize(
  x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, ...]:
  """The norm in float32, the mean, and the factor of what is centered."""
  x = x.astype(jnp.float32)  # a mean of bfloat16 loses digits
  mean = x.mean(-1, keepdims=True)
  # Not flax's LayerNorm, which takes E[x^2] - E[x]^2 for the variance and so loses digits where the
  # mean is large.
  centered = x - mean
  factor = jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + epsilon)
  x = centered * factor
  # Of x's rank: tests forbid NumPy's rank promotion, here and in all such reshapes.
  shape = (1,) * (x.ndim - 1) + scale.shape
  return x * scale.reshape(shape) + bias.reshape(shape), mean, factor


_normalize_on_gpu = jax.custom_vjp(_normalize, nondiff_argnums=(3,))


def _normalize_forward(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> tuple:
  results = _normalize(x, scale, bias, epsilon)
  return results, (x, scale, *results[1:])


def _normalize_gradient(epsilon: float, saved: Any, gradients: Any) -> tuple:
  """The formula, from the saved mean and factor of each row. A GPU then computes d_x and the sums
  for d_scale and d_bias in one pass over x and d_y, and writes no float32 array of their size.
  """
  x, scale, *of_rows = saved
  d_y = gradients[0]
  # Without the barrier, XLA computes them again, in kernels that cannot sum over columns as well.
  mean, factor = jax.lax.optimization_barrier(of_rows)
  normed = (x.astype(jnp.float32) - mean) * factor
  scaled = d_y * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
  along = scaled.mean(-1, keepdims=True) + normed * (scaled * normed).mean(-1, keepdims=True)
  d_x = (factor * (scaled - along)).astype(x.dtype)
  rows = tuple(range(x.ndim - 1))
  return d_x, (d_y * normed).sum(rows), d_y.sum(rows)


_normalize_on_gpu.defvjp(_normalize_forward, _normalize_gradient)


def activate(x: jax.Array, activation: str) -> jax.Array:
  """A function of ACTIVATIONS, elementwise; x of any shape and type.

  Of float16 in float32, since the cube of 41 is more than float16 holds.
  """
  wide = x.astype(jnp.float32) if x.dtype == jnp.float16 else x
  return ACTIVATIONS[activation](wide).astype(x.dtype)


def _gelu_tanh(x: jax.Array) -> jax.Array:
  return gelu_of_input(x) if on_gpu() else jax.nn.gelu(x, approximate=True)


@jax.custom_vjp
def gelu_of_input(x: jax.Array) -> jax.Array:
  """GELU's tanh form, stored by x alone: a GPU computes a tanh in less time than it reads one."""
  return jax.nn.gelu(x, approximate=True)


def _gelu_gradient(x: jax.Array, d_output: jax.Array) -> tuple[jax.Array]:
  wide, factor = x.astype(jnp.float32), 2 * np.sqrt(2 / np.pi)
  # (1 + tanh(u)) / 2 = sigmoid(2 u). As tanh, XLA would take it from the forward pass: store it.
  share = jax.nn.sigmoid(factor * (wide + 0.044715 * wide**3))
  slope = share + wide * share * (1 - share) * factor * (1 + 3 * 0.044715 * wide**2)
  return ((slope * d_output).astype(x.dtype),)


gelu_of_input.defvjp(lambda x: (gelu_of_input(x), x), _gelu_gradient)

# The choices of TransformerConfig.activation, without parameters of their own.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu_tanh": _gelu_tanh,  # GPT, ALBERT
  "gelu": functools.partial(jax.nn.gelu, approximate=False),  # by erf: BERT, RoBERTa
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,  # x sigmoid(x), also called swish
}


def uniform(limit: float) -> nn.initializers.Initializer:
  """Draws from U(-limit, limit)."""
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -limit, limit)


KEPT = "kept"  # the collection of what stands for parameters, under their names
MATRICES = "matrices"  # the collection that gets the Matrix of each parameter, where it is mutable


class Matrix(NamedTuple):
  """A parameter as products read it."""

  values: jax.Array  # float32 [O, I], the weights of an output side by side, as a table has them
  bias: jax.Array | None = None  # float32 [O]


def weight(
  module: nn.Module,
  name: str,
  init: Callable[..., Any],
  shape: tuple[int, ...],
  inputs: int = 0,
  has_bias: bool = False,
) -> Any:
  """The module's parameter `name`, or what the collection KEPT has in its place.

  Args:
    inputs: how many axes, from the first on, are a product's inputs; the others are its outputs.
      0: it is a table, whose last axis are the inputs.
    has_bias: whether the last column of a table is a bias.
  """
  kept: Any = module.get_variable(KEPT, name)
  if kept is not None:
    return kept
  value = module.param(name, init, shape)
  if module.is_mutable_collection(MATRICES) and not module.is_initializing():
    matrix = Matrix(value[:, :-1], value[:, -1]) if has_bias else Matrix(value)
    if inputs:
      matrix = Matrix(value.reshape(math.prod(shape[:inputs]), -1).T)
    module.put_variable(MATRICES, name, matrix)
  return value


@functools.singledispatch
def multiply(kernel: Any, x: jax.Array, inputs: int, outputs: tuple[int, ...]) -> jax.Array:
  """x [B, …, inputs…] times a kernel from `weight`, as `project`: [B, …, outputs…].

  This is the product with an array; what stands for one registers its own.
  """
  return project(x, kernel.astype(x.dtype), inputs)


def text_vectors(hidden: jax.Array, inside: jax.Array, pooling: str) -> jax.Array:
  """One vector per row of hidden states [B, T, D], as batch.POOLINGS has it: float32 [B, D].

  inside: bool [B, T], the positions of the row's text, which begins at 0.
  """
  if pooling == "cls":
    return hidden[:, 0].astype(jnp.float32)
  lengths = jnp.maximum(inside.sum(axis=1), 1)  # [B]; 1 for a row that only fills the batch
  if pooling == "last":
    return select(hidden, lengths[:, None] - 1)[:, 0].astype(jnp.float32)
  return jnp.where(inside[..., None], hidden.astype(jnp.float32), 0).sum(1) / lengths[:, None]
