"""FlashAttention-2 and -3 on NVIDIA GPUs, by dew-flash-attn (extra `flash`), which has no dropout.

For evaluation and for training without dropout, of whole rows. Everything else runs as
attention_fused: dropout, packed rows, prefixes, float32 and other devices. The package packs by
offsets, of as many sequences as a program was compiled for; ours may have any segments, and its
buffers for one sequence per token would be larger than the scores.
"""

import jax
import jax.numpy as jnp

from gpt_jax.errors import require
from gpt_jax.ops import attention_fused
from gpt_jax.ops.attention import AttentionMask, Dropout, Observer
from gpt_jax.ops.fused_kernel import Inputs

_MAJOR = ("8", "9", "12")  # compute capabilities that the package is compiled for
_WIDEST = 256  # features of a head


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None,
  dropout: Dropout,
  observe: Observer | None,
) -> jax.Array:
  """See attention_fused.attend.

  Raises:
    InputError: the package is missing, where it is needed.
  """

  def fused(q, k, v):
    return attention_fused.attend(q, k, v, mask, bias, dropout, observe)

  def flash(platform, q, k, v):
    del platform
    return attention_fused.on_mesh(kernel, Inputs(q, k, v))

  def kernel(inputs):
    heads_last = (x.swapaxes(1, 2) for x in inputs[:3])  # [B, T, H, K]
    return package.flash_mha(*heads_last, is_causal=mask.kind == "causal").swapaxes(1, 2)

  drops = dropout.key is not None and dropout.rate > 0
  whole = mask.segments is None and mask.kind != "prefix"
  if drops or not whole or bias is not None or observe is not None or not _is_supported(q):
    return fused(q, k, v)
  user = "trunk.attention_backend=flash"
  package = require("dew_flash_attn", user, "dew-flash-attn-cu12", "flash")
  return attention_fused.by_platform(("cuda",), flash, fused, q, k, v)


def _is_supported(q: jax.Array) -> bool:
  if q.dtype == jnp.float32 or q.shape[-1] > _WIDEST:
    return False
  return all(
    x.platform == "gpu" and x.compute_capability.split(".")[0] in _MAJOR for x in jax.devices()
  )
