"""Word counts in bounded memory, from which a vocabulary is trained."""

import collections
import zlib
from collections.abc import Callable, Iterable, Mapping

from gpt_jax.errors import InputError


class WordCounts:
  """Counts of words; beyond `max_characters` of distinct words the rarest are dropped.

  The default keeps SentencePiece's memory below 600 MB. A checksum decides among equally rare
  words, so that a text without spaces, whose sentences are its words, keeps a fair sample.
  """

  def __init__(self, max_characters: int = 6_000_000):
    self.max_characters = max_characters
    self.words: dict[str, int] = {}
    self._characters = 0

  def add(self, counts: Mapping[str, int]) -> None:
    for word, count in counts.items():
      if word not in self.words:
        self._characters += len(word)
      self.words[word] = self.words.get(word, 0) + count
    if self._characters <= self.max_characters:
      return
    # Keeps the most frequent words, up to half of the bound.
    kept, self._characters = {}, 0
    for word in sorted(self.words, key=lambda word: (-self.words[word], zlib.crc32(word.encode()))):
      if self._characters + len(word) > self.max_characters // 2:
        break
      self._characters += len(word)
      kept[word] = self.words[word]
    self.words = kept


def counts_of(
  words: Mapping[str, int] | Iterable[str], split: Callable[[str], list[str]] = str.split
) -> Mapping[str, int]:
  """How often each word occurs: as given, or in texts that `split` cuts into words."""
  if not isinstance(words, Mapping):
    counts = WordCounts()
    for text in words:
      counts.add(collections.Counter(split(text)))
    words = counts.words
  if not words:
    raise InputError("there is no text to train a vocabulary on")
  return words


def wrong_size(vocab_size: int, possible: int) -> InputError:
  """Why no vocabulary of this size can be trained; `possible` is the largest or smallest one."""
  if possible < vocab_size:
    fault = f"is more than this text supports; the most is vocab_size={possible}"
  else:
    fault = f"is too small for the characters of this text; the least is vocab_size={possible}"
  return InputError(f"vocab_size {vocab_size} {fault}")
