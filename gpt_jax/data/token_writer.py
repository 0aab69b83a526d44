"""Writing token files, which data/token_file.py describes and reads."""

import os
import zlib
from typing import Any

import numpy as np

from gpt_jax.data.token_file import BLOCK, DTYPES, shard_name
from gpt_jax.files import with_checksum, write_json


class TokenWriter:
  """Writes one split. The header is written last, so a split without one is incomplete."""

  def __init__(
    self,
    folder: str,
    split: str,
    vocab_size: int,
    sentences: bool = False,
    shard_tokens: int = 0,
  ):
    """Args:
    folder: an existing folder.
    split: the name of the files.
    vocab_size: of the tokenizer.
    sentences: whether to write where sentences end, too.
    shard_tokens: ids in a file, rounded up to whole blocks; 0: all.
    """
    self._path = os.path.join(folder, split)
    # The file holds ids of text only; special tokens above the vocabulary need no room.
    self._dtype = DTYPES["uint16" if vocab_size <= 1 << 16 else "uint32"]
    self.counts = np.zeros(vocab_size, np.int64)  # of each id
    self.n_tokens = self.n_bytes = self.n_words = 0
    block = BLOCK // self._dtype.itemsize
    # Whole blocks, so that no checksum covers parts of two files.
    self._shard_bytes = -(-shard_tokens // block) * BLOCK
    self._shards = [0]  # bytes of each
    self._file = open(shard_name(self._path, 0, 1), "wb")
    self._blocks = _BlockChecksums()
    self._documents = _OffsetsWriter(self._path + ".documents.npy")
    self._sentences = _OffsetsWriter(self._path + ".sentences.npy") if sentences else None

  @property
  def n_documents(self) -> int:
    return self._documents.count

  def add(
    self,
    ids: np.ndarray,
    n_bytes: int,
    n_words: int,
    last: bool = True,
    sentence_ends: np.ndarray | None = None,
  ) -> None:
    """Appends to the current document. Documents without tokens are dropped.

    Args:
      ids: int [n].
      n_bytes: of the text they encode.
      n_words: of the same text.
      last: whether they end the document.
      sentence_ends: int [k], ascending in 1..n; a document's end is one in any case.
    """
    content = ids.astype(self._dtype).tobytes()
    self._write(content)
    self._blocks.add(content)
    # Not counts[ids] += 1, which counts an id that occurs twice once.
    np.add.at(self.counts, ids, 1)
    if self._sentences and sentence_ends is not None:
      self._sentences.add(self.n_tokens + sentence_ends)
    self.n_tokens += len(ids)
    self.n_bytes += n_bytes
    self.n_words += n_words
    if last:
      for offsets in filter(None, (self._documents, self._sentences)):
        offsets.add(np.array([self.n_tokens]))

  def _write(self, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
      if self._shard_bytes and self._shards[-1] == self._shard_bytes:
        self._file.close()
        if len(self._shards) == 1:  # a single file has the plain name
          os.rename(shard_name(self._path, 0, 1), shard_name(self._path, 0, 2))
        self._file = open(shard_name(self._path, len(self._shards), 2), "wb")
        self._shards.append(0)
      room = self._shard_bytes - self._shards[-1] if self._shard_bytes else len(rest)
      self._shards[-1] += self._file.write(rest[:room])
      rest = rest[room:]

  def close(self, **entries: Any) -> dict[str, Any]:
    """Completes the files; returns the header, with `entries` such as tokenizer_hash."""
    documents_checksum = self._documents.close()
    if self._sentences:
      entries["n_sentences"] = self._sentences.count
      entries["sentences_checksum"] = self._sentences.close()
    self._file.close()
    if len(self._shards) > 1:
      entries["shards"] = [size // self._dtype.itemsize for size in self._shards]
    header = {
      "n_tokens": self.n_tokens,
      "n_documents": self.n_documents,
      "n_bytes": self.n_bytes,
      "n_words": self.n_words,
      "unigram_entropy": unigram_entropy(self.counts),
      "vocab_size": len(self.counts),
      "dtype": self._dtype.name,
      "block_bytes": BLOCK,
      "block_checksums": self._blocks.all(),
      "documents_checksum": documents_checksum,
      **entries,
    }
    write_json(self._path + ".json", with_checksum(header))
    return header


class _OffsetsWriter:
  """A file of ascending offsets that begin at 0, as np.save would write it."""

  def __init__(self, path: str):
    self.count = 0  # of the stretches between offsets
    self._last = 0
    self._file = open(path, "wb+")
    self._write_header()
    self._file.write(bytes(8))  # the first begins at 0

  def add(self, offsets: np.ndarray) -> None:
    """Appends those that are larger than the last one; `offsets` are ascending."""
    # A document without tokens ends at the last offset again; so may its last sentence.
    new = offsets[offsets > self._last].astype("<i8")
    if len(new):
      self._file.write(new.tobytes())
      self._last = int(new[-1])
      self.count += len(new)

  def close(self) -> int:
    """Completes the file; returns its CRC-32."""
    self._file.seek(0)
    self._write_header()
    self._file.seek(0)
    checksum = 0
    while content := self._file.read(1 << 20):
      checksum = zlib.crc32(content, checksum)
    self._file.close()
    return checksum

  def _write_header(self) -> None:
    # NumPy reserves space for the first axis to grow, so `close` can write the final length here.
    shape = {"descr": "<i8", "fortran_order": False, "shape": (self.count + 1,)}
    np.lib.format.write_array_header_1_0(self._file, shape)


class _BlockChecksums:
  """The CRC-32 of every BLOCK bytes of a stream."""

  def __init__(self):
    self._complete: list[int] = []
    self._checksum = self._size = 0  # of the current block

  def add(self, content: bytes) -> None:
    rest = memoryview(content)
    while len(rest):
      part = rest[: BLOCK - self._size]
      self._checksum = zlib.crc32(part, self._checksum)
      self._size += len(part)
      rest = rest[len(part) :]
      if self._size == BLOCK:
        self._complete.append(self._checksum)
        self._checksum = self._size = 0

  def all(self) -> str:
    """Eight hexadecimal digits for each block."""
    checksums = [*self._complete, self._checksum] if self._size else self._complete
    return np.array(checksums, ">u4").tobytes().hex()


def unigram_entropy(counts: np.ndarray) -> float:
  """Nats per token of the best model that ignores context.

  A model whose loss stays at this value has learned only how frequent each token is.
  """
  share = counts[counts > 0] / max(1, counts.sum())
  return float(-(share * np.log(share)).sum())
