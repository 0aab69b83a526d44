"""Token files, and the windows over them: a data set is a pure function from (seed, step) to
rows.
"""

import dataclasses
import json
import os
import weakref
from collections.abc import Iterator
from typing import Literal

import numpy as np

from gpt_jax.config import option, validate
from gpt_jax.data.tokenizers.base import Vocabulary
from gpt_jax.errors import InputError

NOTHING = -1  # in rows: past the end of a document
_ALL = (1 << 64) - 1


class TokenWriter:
  """Writes one split: `<split>.bin` (the ids), `<split>.documents.npy` (where each document begins)
  and the header.

  The header, `<split>.json`, comes last; a split without one is not whole.
  """

  def __init__(self, folder: str, split: str, vocab_size: int):
    self._path = os.path.join(folder, split)
    self._dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    self.counts = np.zeros(vocab_size, np.int64)  # how often each id was written
    self.n_tokens = self.n_documents = self.n_bytes = self.n_words = 0
    self._ends_at = 0
    self._file = open(self._path + ".bin", "wb")
    self._documents = open(self._path + ".documents.npy", "wb")
    self._write_documents_header()
    self._documents.write(bytes(8))  # the first document begins at 0

  def add(self, ids: np.ndarray, n_bytes: int, n_words: int, last: bool = True) -> None:
    """Appends ids (int [n]) to the current document; `last` ends it. Documents without tokens
    leave no trace.
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

  def close(self, **more) -> dict:
    """Writes what is left and the header, which it returns; `more`: what else it should say,
    such as tokenizer_hash.
    """
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
      **more,
    }
    with open(self._path + ".json", "w", encoding="utf-8") as file:
      json.dump(header, file, indent=2)
      file.write("\n")
    return header

  def _write_documents_header(self) -> None:
    # numpy leaves room in the header for the first axis to grow, so it can be written again with
    # the final length.
    shape = {"descr": "<i8", "fortran_order": False, "shape": (self.n_documents + 1,)}
    np.lib.format.write_array_header_1_0(self._documents, shape)


def unigram_entropy(counts: np.ndarray) -> float:
  """Nats per token of the best model that ignores context; a loss that stays here has learned
  frequencies only.
  """
  share = counts[counts > 0] / max(1, counts.sum())
  return float(-(share * np.log(share)).sum())


class TokenFile:
  """One split of a prepared directory, read by position.

  Ids are read with pread rather than mapped, so that resident memory stays small whatever the
  file's size.

  Attributes: n_tokens, n_documents, n_bytes and n_words (of the cleaned text), unigram_entropy
  (nats per token), vocab_size, tokenizer_hash, offsets (int64 [n_documents + 1]), header (all of
  it).
  """

  def __init__(self, folder: str, split: str):
    """Raises InputError where the split is missing, truncated, or disagrees with its header."""
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
        f"{self.path}.bin: {state}, {size} bytes where {expected} should be; prepare the text again"
      )
    if (
      len(self.offsets) != self.n_documents + 1
      or self.offsets[0] != 0
      or self.offsets[-1] != self.n_tokens
    ):
      raise InputError(
        f"{self.path}.documents.npy: does not fit {self.path}.json; prepare the text again"
      )

  def check_vocabulary(self, tokenizer: Vocabulary) -> None:
    """Raises InputError where the file was written with another vocabulary."""
    if self.tokenizer_hash != tokenizer.hash:
      raise InputError(
        f"{self.path}.bin: a token file of another vocabulary, {tokenizer.difference(self.tokenizer_hash)}; "
        "prepare the text with --tokenizer=DIR, the folder of the vocabulary wanted"
      )

  def read(self, offset: int, count: int) -> np.ndarray:
    """The ids [offset, offset + count), int32 (all of uint32's ids that occur fit)."""
    size = self._dtype.itemsize
    return np.frombuffer(
      os.pread(self._descriptor, count * size, offset * size), self._dtype
    ).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class WindowsConfig:
  """How a token file becomes rows."""

  batch_size: int = option(64, "rows in a batch", unit="rows", low=1)
  length: int = option(512, "tokens predicted in a row, T", unit="tokens", low=1)
  sampling: Literal["within_documents", "across_documents", "random_offset"] = option(
    "within_documents",
    "within_documents: shuffled spans that never cross a document; across_documents: the same over all the text as "
    "one; random_offset: any place in the text, with replacement",
  )

  def __post_init__(self):
    validate(self)


class Windows:
  """The training batches of a token file: step -> rows, int32 [B, T + 1], -1 past the end of a
  document.

  Each epoch cuts every document (or the whole text) into spans of T + 1 tokens at stride T, from a
  new random phase, so that neighbours share one token and each token but a document's first is a
  target in some epoch; the spans come in a new random order. A document shorter than T + 1 is one
  row, filled up with -1. Epochs follow each other without a gap: a batch may hold the end of one
  and the beginning of the next. The paper: "randomly sampled, contiguous sequences".
  """

  def __init__(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0):
    """Raises InputError where the text has no window."""
    self.tokens = tokens
    self.config = config
    self.seed = seed
    stride = config.length
    offsets = tokens.offsets
    if config.sampling != "within_documents":
      if tokens.n_tokens < stride + 1:
        raise InputError(
          f"{tokens.path}.bin: {tokens.n_tokens} tokens are less than one window of length + 1 = {stride + 1}; "
          "use a smaller length, more text or, of held-out text, a larger --valid_share when it is prepared"
        )
      offsets = np.array([0, tokens.n_tokens])
    self._begin = offsets[:-1]
    self._size = np.diff(offsets)
    spans = np.where(self._size >= 2, np.maximum(1, (self._size - 1) // stride), 0)
    self._last = np.cumsum(spans)  # the spans of documents 0 to d, added up
    self.spans_per_epoch = int(self._last[-1]) if len(spans) else 0
    if not self.spans_per_epoch:
      raise InputError(
        f"{tokens.path}.bin: no document has two tokens, so there is nothing to predict; use more text"
      )

  @property
  def steps_per_epoch(self) -> int:
    """Batches until every span was seen; the last one may begin the next epoch."""
    return -(-self.spans_per_epoch // self.config.batch_size)

  def __call__(self, step: int, rows: slice = slice(None)) -> np.ndarray:
    """The batch of a step, or only some of its rows (a host's share)."""
    numbers = (step * self.config.batch_size + np.arange(self.config.batch_size, dtype=np.int64))[
      rows
    ]
    if self.config.sampling == "random_offset":
      places = self.tokens.n_tokens - self.config.length
      begins = (_hash(numbers, self.seed) % np.uint64(places)).astype(np.int64)
      return self._read(begins, np.full(len(begins), self.config.length + 1))
    begins, counts = np.empty_like(numbers), np.empty_like(numbers)
    epochs = numbers // self.spans_per_epoch
    for epoch in np.unique(epochs):
      here = epochs == epoch
      begins[here], counts[here] = self._spans(int(epoch), numbers[here] % self.spans_per_epoch)
    return self._read(begins, counts)

  def _spans(self, epoch: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the spans at these places of an epoch's order begin, and how many tokens they have."""
    stride = self.config.length
    spans = permute(places, self.spans_per_epoch, self.seed, epoch)
    document = np.searchsorted(self._last, spans, side="right")
    size = self._size[document]
    before = np.where(document > 0, self._last[document - 1], 0)
    slack = np.maximum(0, (size - 1) - np.maximum(1, (size - 1) // stride) * stride)
    phase = (_hash(document, self.seed, epoch, 1) % (slack + 1).astype(np.uint64)).astype(np.int64)
    begin = phase + (spans - before) * stride
    return self._begin[document] + begin, np.minimum(stride + 1, size - begin)

  def _read(self, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    rows = np.full((len(begins), self.config.length + 1), NOTHING, np.int32)
    for row, begin, count in zip(rows, begins.tolist(), counts.tolist(), strict=True):
      row[:count] = self.tokens.read(begin, count)
    return rows

  def sequential(
    self, batch_size: int | None = None, rows: slice = slice(None)
  ) -> Iterator[np.ndarray]:
    """The whole file in order, for evaluation; every token but a document's first is a target
    exactly once.

    Rows as in training, but from the document's first token to its last; the last batch is filled
    up with rows of -1. With sampling other than within_documents the text is one document.
    """
    size, stride = batch_size or self.config.batch_size, self.config.length
    last = np.cumsum(-(-np.maximum(0, self._size - 1) // stride))
    total = int(last[-1])
    for first in range(0, total, size):
      spans = np.arange(first, first + size)[rows]
      document = np.minimum(np.searchsorted(last, spans, side="right"), len(last) - 1)
      begin = (spans - np.where(document > 0, last[document - 1], 0)) * stride
      count = np.where(spans < total, np.minimum(stride + 1, self._size[document] - begin), 0)
      yield self._read(self._begin[document] + begin, count)


def permute(places: np.ndarray, size: int, *key: int) -> np.ndarray:
  """A random permutation of range(size), applied to places, in constant memory.

  A Feistel network permutes the next power of four; what falls outside walks on along its cycle
  until it is inside.
  """
  half = max(1, -(-(size - 1).bit_length() // 2))
  shift, mask = np.uint64(half), np.uint64((1 << half) - 1)

  def encrypt(values):
    left, right = values >> shift, values & mask
    for turn in range(6):
      left, right = right, left ^ (_hash(right, *key, turn) & mask)
    return left << shift | right

  values = encrypt(places.astype(np.uint64))
  while (outside := values >= size).any():
    values[outside] = encrypt(values[outside])
  return values.astype(np.int64)


def _hash(values: np.ndarray, *key: int) -> np.ndarray:
  """64 random-looking bits per value: splitmix64's finaliser over the value and, word by word,
  the key.
  """
  state = 0
  for word in key:
    state = _mix((state + word * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _ALL, int)
  return _mix(
    values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state), np.uint64
  )


def _mix(bits, number):
  """The finaliser, on Python integers or uint64 arrays; `number` makes constants of the same
  kind.
  """
  bits = (bits ^ (bits >> number(30))) * number(0xBF58476D1CE4E5B9) & number(_ALL)
  bits = (bits ^ (bits >> number(27))) * number(0x94D049BB133111EB) & number(_ALL)
  return bits ^ (bits >> number(31))
