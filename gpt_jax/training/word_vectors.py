"""GloVe's vectors, or others, as the table of embeddings of an untrained trunk."""

import dataclasses
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import option, register
from gpt_jax.data.word_vectors import read_word_vectors
from gpt_jax.errors import InputError
from gpt_jax.models.method import Method
from gpt_jax.models.model import parameter_shapes

_TABLE = "trunk/tokens"  # the parameter whose rows the file gives


@register("word_vectors")
@dataclasses.dataclass(frozen=True)
class WordVectors(Method):
  """The vectors of a file stand in the trunk's table of embeddings, and stay as they are."""

  file: str = option("", "GloVe's text file, or one like it; for checkpoint=none")

  slot = "word_vectors"

  def change_layerwise(self, layerwise: Any, spec: Any, config: Any, steps_per_epoch: int) -> Any:
    return layerwise._replace(frozen=(*layerwise.frozen, f"^{_TABLE}$"))

  def check(self, config: Any, task: Any, start: Any) -> None:
    if start.params is not None:
      raise InputError("word_vectors: is for checkpoint=none; a checkpoint brings its embeddings")

  def recipe(self, recipe: Any, data: Any, start: Any) -> Any:
    shapes = parameter_shapes(recipe.spec)
    if _TABLE not in shapes:
      raise InputError("word_vectors: the trunk reads characters, and has no table of embeddings")
    vectors = read_word_vectors(self.file, start.tokenizer, shapes[_TABLE][1])

    def apply(state: Any, trainer: Any) -> Any:
      return _with_vectors(recipe.start(state, trainer), trainer, vectors)

    identity = {**recipe.identity, "word_vectors": checksum(vectors)}
    return dataclasses.replace(recipe, start=apply, identity=identity)


def _with_vectors(state: Any, trainer: Any, vectors: np.ndarray) -> Any:
  """The first state with these rows in the trunk's table of embeddings."""
  params, sharding = state.params, trainer.shardings.params["trunk"]["tokens"]
  place = jax.jit(lambda table: table.at[: len(vectors)].set(vectors), out_shardings=sharding)
  tokens = place(params["trunk"]["tokens"])
  return state._replace(params={**params, "trunk": {**params["trunk"], "tokens": tokens}})
