"""Fused attention by kernels of Mosaic GPU, which replaces Triton in JAX: see attention_fused.

For Hopper GPUs, bfloat16 and float16, from jax 0.11: 0.10 finds no layout of registers for the
kernels. On a CPU they run in Mosaic GPU's interpreter, for tests.
"""

import jax
import jax.numpy as jnp

from gpt_jax.ops import attention_fused, fused_kernel, mosaic_kernel
from gpt_jax.ops.attention_auto import JAX, is_hopper
from gpt_jax.ops.product import on_gpu


def attend(qkv, mask, bias, dropout, observe) -> jax.Array:
  """See attention_fused.attend, whose kernels take what these cannot."""
  other = on_gpu() and not is_hopper()
  exact = qkv.dtype == jnp.float32 and not attention_fused.INTERPRETED
  kernels = fused_kernel if exact or other or jax.__version_info__ < JAX else mosaic_kernel
  return attention_fused.attend(qkv, mask, bias, dropout, observe, kernels)
