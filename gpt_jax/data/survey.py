"""The result of the first pass over a text: document sizes and word counts.

A survey is saved beside the vocabulary trained from it, so that a later run need not repeat either.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from gpt_jax.data import splits
from gpt_jax.data.cleaning import cleaner
from gpt_jax.data.sources.source import Source
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.files import is_url, read_json, verified, with_checksum, write_json

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

  def save(self, folder: str, settings: dict[str, Any], sources: Sequence[Source]) -> None:
    """Writes it to a folder, with what it depends on: the settings and the state of the files."""
    content = {
      "settings": settings,
      "cleaner": cleaner(),
      "modified": modified(sources),
      "n_documents": self.n_documents,
      "n_characters": self.n_characters,
      "sizes": self.sizes,
    }
    write_json(os.path.join(folder, FILE), with_checksum(content))


def read_survey(folder: str, settings: dict[str, Any], sources: Sequence[Source]) -> Survey | None:
  """The survey saved in a folder; None if there is none, or if settings or files have changed."""
  try:
    content = verified(read_json(os.path.join(folder, FILE)))
  except (OSError, ValueError):
    return None
  known = {"settings": settings, "cleaner": cleaner(), "modified": modified(sources)}
  if any(content[name] != value for name, value in known.items()):
    return None
  return Survey(content["n_documents"], content["n_characters"], content["sizes"])


def modified(sources: Sequence[Source]) -> list[int]:
  """When each file was modified last, in ns; 0 for a data set, and on a store."""
  return [_time_of(name) if size else 0 for name, size in sources]


def _time_of(path: str) -> int:
  return 0 if is_url(path) else os.stat(path).st_mtime_ns
