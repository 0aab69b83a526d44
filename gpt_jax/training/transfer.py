"""Fine-tuning starts from a checkpoint: all of its trunk, or its embeddings and first blocks."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.models.trunk import TrunkConfig

TABLES = ("tokens", "output")  # parameters of a trunk that have a row for each id


def transfer(
  fresh: Any, loaded: Any, layers: int | None, trunk: TrunkConfig, trained_rows: Sequence[int] = ()
) -> Any:
  """A new trunk's parameters, replaced by a checkpoint's where they are transferred.

  Args:
    fresh: parameters of the trunk, initialized for this run.
    loaded: those of the checkpoint, of the same shapes but for the tables' numbers of rows.
    layers: -1 nothing; 0 token and position embeddings; k also the first k blocks; None everything
      (`openai/train.py:413-417`).
    trunk: the config of both.
    trained_rows: rows of the tables after the vocabulary (special tokens) that the checkpoint has
      trained; all others keep their fresh values.
  """

  def choose(path, fresh, loaded):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    # At -1 the embeddings, of depth 0, stay fresh too.
    if layers is not None and trunk.depth(name) > layers:
      return fresh
    # A row for each id: the run may have special tokens that the checkpoint lacks.
    if name in TABLES:
      return with_trained_rows(fresh, loaded, trunk.vocab_size, trained_rows)
    return jnp.asarray(loaded)

  return jax.tree_util.tree_map_with_path(choose, fresh, loaded)


def with_trained_rows(
  fresh: jax.Array, loaded: Any, vocab_size: int, trained_rows: Sequence[int]
) -> jax.Array:
  """A new table [R, …] with a checkpoint's rows for the vocabulary and trained special tokens.

  The checkpoint's table may have another number of rows: special tokens and padding follow the
  vocabulary.
  """
  # New rows keep their fresh draw, as OpenAI's for start, delimiter, extract (openai/train.py:410).
  table = jnp.asarray(fresh).at[:vocab_size].set(loaded[:vocab_size])
  rows = jnp.asarray(trained_rows, jnp.int32)
  return table.at[rows].set(jnp.asarray(loaded)[rows])
