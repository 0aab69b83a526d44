"""Fused attention by kernels of Mosaic GPU, which replaces Triton in JAX: see attention_fused.

For Hopper GPUs, bfloat16 and float16. On a CPU the kernels run in Mosaic GPU's interpreter, for
tests.
"""

import jax
import jax.numpy as jnp

from gpt_jax.ops import attention_fused, fused_kernel, mosaic_kernel
from gpt_jax.ops.attention import AttentionMask, Dropout, Observer

_JAX = (0, 11)  # jax 0.10.2 finds no layout of registers for the kernels
_HOPPER = "9.0"  # compute capability


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None,
  dropout: Dropout,
  observe: Observer | None,
) -> jax.Array:
  """See attention_fused.attend, whose kernels take what these cannot."""
  other = any(x.platform == "gpu" and x.compute_capability != _HOPPER for x in jax.devices())
  exact = q.dtype == jnp.float32 and not attention_fused.INTERPRETED
  kernels = fused_kernel if exact or other or jax.__version_info__ < _JAX else mosaic_kernel
  return attention_fused.attend(q, k, v, mask, bias, dropout, observe, kernels)
