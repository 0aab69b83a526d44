"""The backend that is fastest where it was measured: kernels on Hopper GPUs, else plain."""

import jax
import jax.numpy as jnp

from gpt_jax.ops.attention import find_backend
from gpt_jax.ops.product import on_gpu
from gpt_jax.parallel.mesh import device_kind

HOPPER = ("NVIDIA H", "NVIDIA GH")  # so JAX's names of these GPUs begin
JAX = (0, 11)  # of an older one mosaic runs the kernels of fused
MAX_WIDTH = 128  # features of a head, for which the kernels were compiled


def attend(qkv, mask, bias, dropout, observe) -> jax.Array:
  """See attention.Backend."""
  measured = is_hopper() and jax.__version_info__ >= JAX
  possible = bias is None and qkv.dtype != jnp.float32 and qkv.shape[-1] <= MAX_WIDTH
  backend = find_backend("mosaic" if measured and possible else "plain")
  return backend(qkv, mask, bias, dropout, observe)


def is_hopper() -> bool:
  """Whether what is computed on, or compiled for, is a Hopper GPU."""
  return on_gpu() and device_kind().startswith(HOPPER)
