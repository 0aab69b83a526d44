"""Attention probabilities of every layer and head."""

import jax
import jax.numpy as jnp


def attention_maps(intermediates) -> jax.Array:
  """The attention probabilities of every layer and head, before dropout: float32 [layers, B, H, T,
  T].

  Args:
    intermediates: what the trunk kept, under "intermediates", in an apply(…,
      mutable="intermediates").
  """
  maps = []
  for i in range(len(intermediates)):
    blocks = intermediates[f"block_{i}"]["attention"][
      "probabilities"
    ]  # of queries, each over its own prefix
    length = blocks[-1].shape[-1]
    whole = [
      jnp.pad(block, ((0, 0), (0, 0), (0, 0), (0, length - block.shape[-1]))) for block in blocks
    ]
    maps.append(jnp.concatenate(whole, axis=2))
  return jnp.stack(maps)
