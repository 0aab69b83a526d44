"""Word vectors of a text file as the table of embeddings of an untrained trunk: GloVe's (Pennington
et al. 2014), or word2vec's and fastText's.
"""

import collections
import dataclasses
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import option, register
from gpt_jax.data.sources.utf8 import lines, open_bytes
from gpt_jax.data.tokenizers.base import Tokenizer
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

  def recipe(self, recipe: Any, start: Any) -> Any:
    shapes = parameter_shapes(recipe.spec)
    if _TABLE not in shapes:
      raise InputError("word_vectors: the trunk reads characters, and has no table of embeddings")
    vectors = read_word_vectors(self.file, start.tokenizer, shapes[_TABLE][1])

    def apply(state: Any, trainer: Any) -> Any:
      state, sharding = recipe.start(state, trainer), trainer.shardings.params["trunk"]["tokens"]
      place = jax.jit(lambda table: table.at[: len(vectors)].set(vectors), out_shardings=sharding)
      trunk = {**state.params["trunk"], "tokens": place(state.params["trunk"]["tokens"])}
      return state._replace(params={**state.params, "trunk": trunk})

    identity = {**recipe.identity, "word_vectors": checksum(vectors)}
    return dataclasses.replace(recipe, start=apply, identity=identity)


def read_word_vectors(path: str, tokenizer: Tokenizer, width: int) -> np.ndarray:
  """The vector of each piece that is a word as it is spelled, or in lower case: [V, width].

  All others are zeros, as CoVe's unknown words: pieces inside words, and words that the file lacks.
  The file, which may be compressed (.gz, .zst), has a word and its numbers in a line; a first line
  of two numbers, as fastText's, is skipped.
  """
  vectors, spelled = np.zeros((tokenizer.vocab_size, width), np.float32), set()
  ids = _ids(tokenizer)
  with open_bytes(path) as file:
    for number, line in lines(file, path):
      # Not split(): a word may be, or have in it, a space of another kind.
      size = line.rstrip().count(" ")
      if number == 1 and size == 1:
        continue
      # Some words of GloVe's have spaces inside; those at the beginning of a file do not.
      if size < width or (size > width and number <= 2):
        raise InputError(
          f"{path}:{number}: {size} numbers after the word; the trunk's embeddings have {width}"
        )
      word, *values = line.rstrip().rsplit(" ", width)
      for i, exactly in ids.get(word, ()):
        if exactly or i not in spelled:
          vectors[i] = _numbers(values, f"{path}:{number}")
          spelled.add(i)
  if not spelled:
    raise InputError(f"{path}: has none of the vocabulary's words")
  return vectors


def _ids(tokenizer: Tokenizer) -> dict[str, list[tuple[int, bool]]]:
  """The ids of each word, and whether it is spelled so, or is the lower case of the piece."""
  found = collections.defaultdict(list)
  for i in range(tokenizer.vocab_size):
    word = tokenizer.decode([i]).strip()
    if word and (tokenizer.begins_word[i] or not word.isalnum()):  # or punctuation
      found[word].append((i, True))
      if word.lower() != word:
        found[word.lower()].append((i, False))
  return found


def _numbers(values: list[str], location: str) -> np.ndarray:
  try:
    numbers = np.array(values, np.float32)
  except ValueError as error:
    raise InputError(f"{location}: {error}; a word is followed by numbers") from error
  if not np.isfinite(numbers).all():
    raise InputError(f"{location}: a number that is not finite")
  return numbers
