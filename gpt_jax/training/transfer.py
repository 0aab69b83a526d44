"""What a fine-tuned model takes from a pre-trained checkpoint: all of it, or its first blocks."""

from typing import Any

import jax
import jax.numpy as jnp


def transfer(fresh: Any, loaded: Any, layers: int | None, vocab_size: int) -> Any:
  """A fresh trunk's parameters with those of a checkpoint in their place.

  Args:
    fresh: parameters of the trunk, drawn for this run.
    loaded: those of the checkpoint, of the same shapes.
    layers: -1 nothing; 0 token and position embeddings; k also the first k blocks; None everything
      (released train.py:413-417).
    vocab_size: the rows of the token table behind the vocabulary (start, delimiter, extract) always
      stay fresh.
  """

  blocks = sum(name.startswith("block_") for name in fresh)

  def of_leaf(path, fresh, loaded):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    part = name.partition("/")[0]
    depth = {"tokens": 0, "positions": 0, "last_norm": blocks}.get(part, 1)
    if part.startswith("block_"):
      depth = int(part.removeprefix("block_")) + 1
    if layers is not None and depth > layers:
      return fresh
    if name == "tokens":
      return jnp.asarray(fresh).at[:vocab_size].set(loaded[:vocab_size])
    return jnp.asarray(loaded)

  return jax.tree_util.tree_map_with_path(of_leaf, fresh, loaded)
