"""Attention probabilities of every layer and head."""

from typing import Any

import jax
import jax.numpy as jnp


def attention_maps(intermediates: Any) -> jax.Array:
  """Attention probabilities before dropout, float32 [layers, B, H, T, T].

  Args:
    intermediates: the trunk's "intermediates" of an apply(…, mutable="intermediates").
  """
  maps = []
  for i in range(len(intermediates)):
    # Blocks of queries, each over its own prefix of keys (ops/attention_plain.py).
    blocks = intermediates[f"block_{i}"]["attention"]["probabilities"]
    length = blocks[-1].shape[-1]
    padded = [jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, length - x.shape[-1]))) for x in blocks]
    queries = jnp.concatenate(padded, axis=2)
    # A shared block has those of all layers, one after the other.
    maps += jnp.split(queries, queries.shape[2] // length, axis=2)
  return jnp.stack(maps)
