"""What every vocabulary has, whatever its algorithm: ids, a hash that tells it from others, a
folder it is saved in.
"""

import abc
import importlib
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpt_jax.files import atomic_file


class SpecialIds(NamedTuple):
  """Ids above the vocabulary, in the padded rows of the embedding; only task inputs use them."""

  start: int
  delimiter: int
  extract: int


class Tokenizer(abc.ABC):
  """Text to ids and back.

  Attributes:
    kind: the algorithm.
    normalizer: what happens to a text before it is cut into pieces.
    line_id: the id of a line break.
    vocab_size: the number of ids.
    hash: sha256 of all that decides the ids.
    spelled: bool [vocab_size], the ids that stand for no piece: what is unknown, and bytes that are
      no character.
    files: what a folder holds of it beside `tokenizer.json`, by file name.
    record: what else `tokenizer.json` says.
  """

  kind: str
  normalizer: str
  line_id: int
  vocab_size: int
  hash: str
  byte_fallback: np.ndarray
  files: dict[str, bytes]
  record: dict[str, str]

  @abc.abstractmethod
  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, int32 [n]."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids below vocab_size, normalized as the vocabulary is."""

  @abc.abstractmethod
  def piece(self, i: int) -> str:
    """How the vocabulary spells an id below vocab_size."""

  def encode(self, text: str) -> np.ndarray:
    """The ids of a text, int32 [n]."""
    return self.encode_many([text])[0]

  @property
  def special(self) -> SpecialIds:
    return SpecialIds(self.vocab_size, self.vocab_size + 1, self.vocab_size + 2)

  def with_special(self, *names: str) -> "Tokenizer":
    """Interim: the default names only."""
    assert not names
    return self

  def difference(self, hash: str) -> str:
    """What sets the vocabulary of another hash apart from this one, as far as a hash can tell."""
    return f"{hash[:12]}, not {self.hash[:12]}"

  def save(self, folder: str) -> None:
    """Writes the files, the metadata last and each whole."""
    os.makedirs(folder, exist_ok=True)
    metadata = {
      "kind": self.kind,
      "normalizer": self.normalizer,
      "vocab_size": self.vocab_size,
      "hash": self.hash,
    }
    text = json.dumps(metadata | self.record, indent=2) + "\n"
    for name, content in (*self.files.items(), ("tokenizer.json", text.encode())):
      path = os.path.join(folder, name)
      with atomic_file(path, "wb") as file:
        file.write(content)


def load_tokenizer(folder: str) -> Tokenizer:
  """The tokenizer saved in a folder, of whatever kind, or as OpenAI released it.

  Raises:
    InputError: there is none, or its files do not agree.
  """
  module = importlib.import_module("gpt_jax.data.tokenizers.sentencepiece")
  return module.SentencePieceTokenizer.load(folder)
