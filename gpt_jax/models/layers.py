"""Layers that several trunks share: affine maps, layer norm, GELU."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.models.trunk import EPSILON
from gpt_jax.models.weight import multiply, weight
from gpt_jax.ops.product import activation_type
from gpt_jax.parallel.mesh import platform

STD = 0.02  # the paper's N(0, 0.02); the released code reads it as standard deviation
INITS = ("normal", "truncated")
ACTIVATIONS = ("gelu_tanh", "gelu")


def initializer(init: str, scale: float = 1.0) -> nn.initializers.Initializer:
  """Draws of standard deviation scale * STD, or as BERT's, which are cut at twice that.

  What is cut is drawn again, so the deviation of BERT's is 0.88 of it.
  """
  draw = {"normal": nn.initializers.normal, "truncated": nn.initializers.truncated_normal}[init]
  return draw(scale * STD)  # scale: see TransformerConfig.residual_scale


INIT = initializer("normal")


class Projection(nn.Module):
  """An affine map of the last axes of x, as one matrix product."""

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  dtype: str
  scale: float = 1.0  # of the first kernel
  kernel_init: str | nn.initializers.Initializer = "normal"

  @nn.compact
  def __call__(self, x):
    init = self.kernel_init
    if isinstance(init, str):
      init = initializer(init, self.scale)
    kernel = weight(self, "kernel", init, self.inputs + self.outputs, len(self.inputs))
    bias = self.param("bias", nn.initializers.zeros, self.outputs)
    # The parameter stays float32, for the optimizer; its copy in the compute type is for the
    # product.
    y = multiply(kernel, x.astype(self.dtype), len(self.inputs), self.outputs)
    # Added in float32, so that the bias's gradient is a sum in float32.
    bias = bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)
    return (y.astype(jnp.float32) + bias).astype(activation_type(self.dtype))


class LayerNorm(nn.Module):
  """Biased variance, epsilon inside the root, in float32 (openai/train.py:44-57)."""

  dtype: str
  epsilon: float = EPSILON

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    x = x.astype(jnp.float32)  # a mean of bfloat16 loses digits
    # Not flax's LayerNorm, which takes E[x^2] - E[x]^2 for the variance and so loses digits where
    # the mean is large.
    centered = x - x.mean(-1, keepdims=True)
    x = centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + self.epsilon)
    # Of x's rank: tests forbid NumPy's rank promotion, here and in all such reshapes.
    shape = (1,) * (x.ndim - 1) + scale.shape
    return (x * scale.reshape(shape) + bias.reshape(shape)).astype(activation_type(self.dtype))


def activate(x: jax.Array, activation: str) -> jax.Array:
  """GELU, in its tanh form (GPT, ALBERT) or exactly, by erf (BERT, RoBERTa).

  Of float16 in float32, since the cube of 41 is more than float16 holds.
  """
  wide = x.astype(jnp.float32) if x.dtype == jnp.float16 else x
  if activation == "gelu_tanh" and platform() == "gpu":
    return gelu_of_input(wide).astype(x.dtype)
  return jax.nn.gelu(wide, approximate=activation == "gelu_tanh").astype(x.dtype)


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


def uniform(limit: float) -> nn.initializers.Initializer:
  """Draws from U(-limit, limit)."""
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -limit, limit)
