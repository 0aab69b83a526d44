"""Word vectors from a text file: GloVe's (Pennington et al. 2014), or word2vec's and fastText's."""

import collections

import numpy as np

from gpt_jax.data.sources.utf8 import lines, open_bytes
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError


def read_word_vectors(path: str, tokenizer: Tokenizer, width: int) -> np.ndarray:
  """The vector of each piece that is a word as it is spelled, or in lower case: [V, width].

  All others are zeros, as CoVe's unknown words: pieces inside words, and words that the file lacks.

  Args:
    path: lines of a word and its numbers, separated by spaces; compressed if it ends in .gz or
      .zst. A first line of two numbers, as fastText's, is skipped.
    tokenizer: of the vocabulary.
    width: numbers of a vector.
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
