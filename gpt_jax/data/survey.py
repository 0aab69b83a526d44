"""The first pass over a text: the sizes of its documents, and its words."""

import dataclasses
import os

from gpt_jax.data import splits
from gpt_jax.data.passes import Passes
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.progress import progress
from gpt_jax.data.sources.source import plain_size
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.files import read_json, verified, with_checksum, write_json

FILE = "survey.json"


@dataclasses.dataclass
class Survey:
  """Sizes and words of the documents.

  Attributes:
    n_documents: how many there are.
    n_characters: of all documents, before cleaning.
    sizes: characters of the first documents, at most splits.FEW.
    words: counts to train a vocabulary on; not saved.
  """

  n_documents: int = 0
  n_characters: int = 0
  sizes: list[int] = dataclasses.field(default_factory=list)
  words: WordCounts = dataclasses.field(default_factory=WordCounts)
  _size: int = 0  # of the current document

  def add(self, characters: int, last: bool) -> None:
    """Adds a piece of the current document; `last` ends it."""
    self.n_characters += characters
    self._size += characters
    if last:
      if self.n_documents < splits.FEW:
        self.sizes.append(self._size)
      self.n_documents += 1
      self._size = 0

  def save(self, folder: str) -> None:
    """Writes its sizes to a folder, beside the vocabulary that was learned from its words."""
    sizes = {
      "n_documents": self.n_documents,
      "n_characters": self.n_characters,
      "sizes": self.sizes,
    }
    write_json(os.path.join(folder, FILE), with_checksum(sizes))


def read_survey(folder: str) -> Survey:
  """The sizes that were saved in a folder. Raises OSError or ValueError: none there, or damaged."""
  return Survey(**verified(read_json(os.path.join(folder, FILE))))


def take_survey(corpus: Corpus, passes: Passes, kind: str, share: float) -> Survey:
  """Reads everything once: its size and, to train a vocabulary of a kind, its words."""
  survey = Survey()
  label = "counting words" if kind else "reading"
  with progress(label, plain_size(corpus.sources)) as add:
    for sizes, words in passes.words(corpus, kind, share):
      survey.words.add(words)
      for characters, last in sizes:
        survey.add(characters, last)
        add(characters, last)
  return survey
