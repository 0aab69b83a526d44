"""Token files: a split of prepared text as a flat array of ids, with document offsets."""

import json
import os
import weakref
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import write_json


class TokenWriter:
  """Writes one split: `<split>.bin` (ids), `<split>.documents.npy` (offsets of the documents) and
  `<split>.json` (the header).

  The header is written last, so a split without one is incomplete.
  """

  def __init__(self, folder: str, split: str, vocab_size: int):
    self._path = os.path.join(folder, split)
    self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    self.counts = np.zeros(vocab_size, np.int64)  # of each id
    self.n_tokens = self.n_documents = self.n_bytes = self.n_words = 0
    self._ends_at = 0
    self._file = open(self._path + ".bin", "wb")
    self._documents = open(self._path + ".documents.npy", "wb")
    self._write_documents_header()
    self._documents.write(bytes(8))  # the first document begins at 0

  def add(self, ids: np.ndarray, n_bytes: int, n_words: int, last: bool = True) -> None:
    """Appends to the current document. Documents without tokens are dropped.

    Args:
      ids: int [n].
      n_bytes: of the text they encode.
      n_words: of the same text.
      last: whether they end the document.
    """
    self._file.write(ids.astype(self._dtype).tobytes())
    np.add.at(self.counts, ids, 1)
    self.n_tokens += len(ids)
    self.n_bytes += n_bytes
    self.n_words += n_words
    if last and self.n_tokens > self._ends_at:
      self._documents.write(np.int64(self.n_tokens).tobytes())
      self._ends_at = self.n_tokens
      self.n_documents += 1

  def close(self, **entries: Any) -> dict[str, Any]:
    """Completes the files; returns the header, with `entries` such as tokenizer_hash."""
    self._documents.seek(0)
    self._write_documents_header()
    self._documents.close()
    self._file.close()
    header = {
      "n_tokens": self.n_tokens,
      "n_documents": self.n_documents,
      "n_bytes": self.n_bytes,
      "n_words": self.n_words,
      "unigram_entropy": unigram_entropy(self.counts),
      "vocab_size": len(self.counts),
      "dtype": self._dtype.name,
      **entries,
    }
    write_json(self._path + ".json", header)
    return header

  def _write_documents_header(self) -> None:
    # NumPy reserves space for the first axis to grow, so `close` can write the final length here.
    shape = {"descr": "<i8", "fortran_order": False, "shape": (self.n_documents + 1,)}
    np.lib.format.write_array_header_1_0(self._documents, shape)


def unigram_entropy(counts: np.ndarray) -> float:
  """Nats per token of the best model that ignores context.

  A model whose loss stays at this value has learned only how frequent each token is.
  """
  share = counts[counts > 0] / max(1, counts.sum())
  return float(-(share * np.log(share)).sum())


class TokenFile:
  """One split of a prepared folder, with random access.

  Ids are read by pread, not mapped, so that resident memory stays small for files of any size.

  Attributes:
    n_tokens: in the file.
    n_documents: in the file.
    n_bytes: of the cleaned text.
    n_words: of the cleaned text.
    unigram_entropy: nats per token.
    vocab_size: of the tokenizer.
    tokenizer_hash: see Tokenizer.hash.
    offsets: int64 [n_documents + 1], where each document begins, and the end.
    header: all entries of `<split>.json`.
  """

  def __init__(self, folder: str, split: str):
    """Raises InputError if the split is missing, truncated or inconsistent with its header."""
    self.path = os.path.join(folder, split)
    try:
      with open(self.path + ".json", encoding="utf-8") as file:
        self.header = json.load(file)
      self.offsets = np.load(self.path + ".documents.npy", allow_pickle=False)
      descriptor = os.open(self.path + ".bin", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError) as error:
      raise InputError(
        f"{error.filename}: missing; {folder!r} must be a folder made by launch/prepare.py"
      ) from error
    except (OSError, ValueError, EOFError) as error:
      raise InputError(
        f"{self.path}.*: cannot be read ({error}); prepare the text again"
      ) from error
    self._descriptor = descriptor
    weakref.finalize(self, os.close, descriptor)
    try:
      self.n_tokens: int = self.header["n_tokens"]
      self.n_documents: int = self.header["n_documents"]
      self.n_bytes: int = self.header["n_bytes"]
      self.n_words: int = self.header["n_words"]
      self.unigram_entropy: float = self.header["unigram_entropy"]
      self.vocab_size: int = self.header["vocab_size"]
      self.tokenizer_hash: str = self.header["tokenizer_hash"]
      self._dtype = np.dtype(self.header["dtype"])
    except (KeyError, TypeError) as error:
      raise InputError(
        f"{self.path}.json: not a token file's header ({error}); prepare the text again"
      ) from error
    size, expected = os.fstat(descriptor).st_size, self.n_tokens * self._dtype.itemsize
    if size != expected:
      state = "truncated" if size < expected else "longer than its header says"
      raise InputError(
        f"{self.path}.bin: {state}, {size} bytes instead of {expected}; prepare the text again"
      )
    bounds = (0, self.n_tokens)
    if len(self.offsets) != self.n_documents + 1 or (self.offsets[0], self.offsets[-1]) != bounds:
      raise InputError(
        f"{self.path}.documents.npy: does not fit {self.path}.json; prepare the text again"
      )

  def check_vocabulary(self, tokenizer: Tokenizer) -> None:
    """Raises InputError if the file was written with another tokenizer."""
    if self.tokenizer_hash != tokenizer.hash:
      raise InputError(
        f"{self.path}.bin: a token file of another vocabulary, "
        f"{tokenizer.difference(self.tokenizer_hash)}; prepare the text with --tokenizer=DIR, the "
        "folder of the right tokenizer"
      )

  def read(self, offset: int, count: int) -> np.ndarray:
    """The ids at [offset, offset + count), int32."""
    size = self._dtype.itemsize
    content = os.pread(self._descriptor, count * size, offset * size)
    return np.frombuffer(content, self._dtype).astype(np.int32)
