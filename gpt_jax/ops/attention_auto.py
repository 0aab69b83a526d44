"""The backend that is fastest where it was measured: kernels on GPUs in 16 bits, else plain."""

import jax
import jax.numpy as jnp

from gpt_jax.ops.attention import AttentionMask, Dropout, Observer, find_backend
from gpt_jax.parallel.mesh import platform


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None,
  dropout: Dropout,
  observe: Observer | None,
) -> jax.Array:
  """See attention.Backend."""
  kernels = platform() == "gpu" and q.dtype != jnp.float32 and bias is None
  backend = find_backend("mosaic" if kernels else "plain")
  return backend(q, k, v, mask, bias, dropout, observe)
