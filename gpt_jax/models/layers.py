"""Layers that several trunks share: affine maps and layer norm."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.data.tokenizers.base import DEFAULT_SPECIAL as SPECIAL_NAMES
from gpt_jax.parallel.mesh import axis_size

DEFAULT_SPECIAL = len(SPECIAL_NAMES)  # start, delimiter, extract
STD = 0.02  # the paper's N(0, 0.02); the released code reads it as standard deviation
INIT = nn.initializers.normal(STD)
_ROW_MULTIPLE = 128  # lets a table of any vocabulary be sharded, and fills a matrix unit's tiles
_EPSILON = 1e-5


def padded_rows(vocab_size: int, special_tokens: int) -> int:
  """Rows of the embedding table: vocabulary, special tokens, and padding to a multiple of 128."""
  return -(-(vocab_size + special_tokens) // _ROW_MULTIPLE) * _ROW_MULTIPLE


class Projection(nn.Module):
  """An affine map of the last axes of x, as one matrix product."""

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  dtype: str
  scale: float = 1.0  # of the first kernel

  @nn.compact
  def __call__(self, x):
    init = nn.initializers.normal(self.scale * STD)
    kernel = self.param("kernel", init, self.inputs + self.outputs).astype(self.dtype)
    bias = self.param("bias", nn.initializers.zeros, self.outputs).astype(self.dtype)
    before = x.shape[: x.ndim - len(self.inputs)]
    if axis_size("model") == 1:
      # In two dimensions: with more, XLA transposes the kernel and its gradient at every step.
      y = x.reshape(*before, -1) @ kernel.reshape(math.prod(self.inputs), -1)
      y = y.reshape(before + self.outputs)
    else:  # a reshape would hide which axis of a kernel is sharded
      axes = tuple(range(len(before), x.ndim))
      y = jax.lax.dot_general(x, kernel, ((axes, tuple(range(len(axes)))), ((), ())))
    return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


class LayerNorm(nn.Module):
  """Biased variance, epsilon inside the root, in float32 (openai/train.py:44-57)."""

  dtype: str

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
    x = x.astype(jnp.float32)
    centered = x - x.mean(-1, keepdims=True)
    x = centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + _EPSILON)
    shape = (1,) * (x.ndim - 1) + scale.shape
    return (x * scale.reshape(shape) + bias.reshape(shape)).astype(self.dtype)
