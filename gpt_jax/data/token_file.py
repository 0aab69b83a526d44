"""Token files: a split of prepared text as a flat array of ids, with document offsets.

A split is three files: `<split>.bin` (ids), `<split>.documents.npy` (offsets of the documents) and
`<split>.json` (the header), and with `prepare --sentences` a fourth, `<split>.sentences.npy`
(offsets of the sentences). With `prepare --shard_tokens` the ids of a long split are in several
files, `<split>-00000.bin` and so on; all else is as with one. The header has a CRC-32 of every
block of ids, of the offsets and of itself, so that no damage goes unnoticed.
"""

import bisect
import functools
import hashlib
import io
import itertools
import json
import os
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from gpt_jax.data.remote_array import RemoteArray
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import is_uploading, is_url, open_regular, read_bytes, read_json, verified


class Array(Protocol):
  """Numbers of which only the length and slices are used."""

  dtype: np.dtype

  def __len__(self) -> int: ...

  def __getitem__(self, part: slice) -> np.ndarray: ...


class ShardedArray:
  """Arrays one after the other: `len(array)`, and `array[start:stop]` as an np.ndarray.

  Attributes:
    dtype: that of the first one.
    n_bytes: of all of them.
  """

  def __init__(self, arrays: Sequence[Array]):
    self._arrays = arrays
    self._begins = [0, *itertools.accumulate(map(len, arrays))]
    self.dtype = arrays[0].dtype
    self.n_bytes = self._begins[-1] * self.dtype.itemsize

  def __len__(self) -> int:
    return self._begins[-1]

  def __getitem__(self, part: slice) -> np.ndarray:
    start, stop, _ = part.indices(len(self))
    parts = [self._arrays[shard][begin:end] for shard, begin, end in self._parts(start, stop)]
    if len(parts) == 1:
      return parts[0]
    return np.concatenate([np.empty(0, self.dtype), *parts])

  def _parts(self, start: int, stop: int) -> Iterable[tuple[int, int, int]]:
    """(shard, begin, end) of the parts of [start, stop), relative to their shards."""
    shard = bisect.bisect_right(self._begins, start) - 1
    while start < stop:
      begin, end = self._begins[shard : shard + 2]
      if start < end:
        yield shard, start - begin, min(stop, end) - begin
      start, shard = max(start, end), shard + 1


def shard_name(path: str, shard: int, count: int) -> str:
  """The file of a shard: PATH.bin of a single one, PATH-00000.bin and so on of several."""
  return f"{path}.bin" if count == 1 else f"{path}-{shard:05}.bin"


BLOCK = 1 << 16  # bytes with one checksum: a row of ids reads one or two blocks
IN_ORDER = 4 << 20  # bytes requested ahead where a text on a store is read in order
DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class LocalArray:
  """The numbers in a file on a disk: `len(array)`, and `array[start:stop]` as an np.ndarray.

  They are read by pread, not mapped, so that resident memory stays small for files of any size.

  Attributes:
    path: of the file.
    dtype: of the numbers.
    n_bytes: in the file.
  """

  def __init__(self, path: str, dtype: np.dtype):
    """Raises OSError, and ValueError if it is no regular file."""
    self.path, self.dtype = path, dtype
    file = open_regular(path)
    weakref.finalize(self, file.close)
    self._descriptor = file.fileno()
    self.n_bytes = os.fstat(self._descriptor).st_size

  def __len__(self) -> int:
    return self.n_bytes // self.dtype.itemsize

  def __getitem__(self, part: slice) -> np.ndarray:
    start, stop, _ = part.indices(len(self))
    begin, end = start * self.dtype.itemsize, stop * self.dtype.itemsize  # in bytes
    # pread moves no file position, so several threads may read.
    return np.frombuffer(os.pread(self._descriptor, end - begin, begin), self.dtype)


class TokenFile:
  """One split of a prepared folder, with random access, on a disk or on a store.

  A block of ids is verified when it is read for the first time.

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
    is_remote: whether it is on a store, so that reading ahead pays.
  """

  def __init__(self, folder: str, split: str):
    """Raises InputError if the split is missing, damaged or inconsistent with its header."""
    self.path = os.path.join(folder, split)
    self.is_remote = is_url(folder)
    try:
      if is_uploading(folder):
        raise InputError(f"{folder}: its upload is not finished; give the command of prepare again")
      header = read_json(self.path + ".json")
      self._read_header(header)
      self.offsets = self._read_offsets("documents", self.n_documents)
      self._ids = self._open_ids()
    except InputError:
      raise
    except (FileNotFoundError, NotADirectoryError) as error:
      raise InputError(
        f"{error.filename or self.path + '.*'}: missing; {folder!r} must be a folder made by "
        "prepare.run"
      ) from error
    except (OSError, ValueError) as error:
      advice = "" if self.is_remote else "; prepare the text again"
      raise InputError(f"{self.path}.*: cannot be read ({error}){advice}") from error
    if len(self._block_checksums) != -(-self._ids.n_bytes // BLOCK):
      raise self._damaged(".json", "not a checksum for every block")
    self._verified = np.zeros(len(self._block_checksums), bool)  # by block, as they are first read

  def _open_ids(self) -> RemoteArray | ShardedArray:
    sizes = self.header.get("shards", [self.n_tokens])
    if not isinstance(sizes, list) or sum(map(_count, sizes)) != self.n_tokens:
      raise self._damaged(".json", "its shards do not add up to its tokens")
    if any(n_tokens * self._dtype.itemsize % BLOCK for n_tokens in sizes[:-1]):
      raise self._damaged(".json", "a shard ends within a block")
    paths = [shard_name(self.path, shard, len(sizes)) for shard in range(len(sizes))]
    ids: RemoteArray | ShardedArray
    if self.is_remote:
      ids = RemoteArray(paths, self._dtype)
      lengths = ids.sizes
    else:
      arrays = [LocalArray(path, self._dtype) for path in paths]
      lengths = [array.n_bytes for array in arrays]
      ids = ShardedArray(arrays)
    for path, n_tokens, n_bytes in zip(paths, sizes, lengths, strict=True):
      expected = n_tokens * self._dtype.itemsize
      if n_bytes != expected:
        state = "truncated" if n_bytes < expected else "longer than its header says"
        suffix = path.removeprefix(self.path)
        raise self._damaged(suffix, f"{state}, {n_bytes} bytes instead of {expected}")
    return ids

  def _read_header(self, header: Any) -> None:
    if isinstance(header, dict) and "n_tokens" in header and "checksum" not in header:
      raise self._damaged(".json", "without checksums, written by an earlier version")
    try:
      self.header = header = verified(header)
      self.n_tokens = _count(header["n_tokens"])
      self.n_documents = _count(header["n_documents"])
      self.n_bytes = _count(header["n_bytes"])
      self.n_words = _count(header["n_words"])
      self.vocab_size = _count(header["vocab_size"])
      self.unigram_entropy = float(header["unigram_entropy"])
      self.tokenizer_hash = str(header["tokenizer_hash"])
      self._dtype: np.dtype = DTYPES[header["dtype"]]
      if header["block_bytes"] != BLOCK:
        raise ValueError(f"block_bytes should be {BLOCK}")
      checksums = bytes.fromhex(header["block_checksums"])
      self._block_checksums = np.frombuffer(checksums, np.dtype(">u4"))
      # Read later; a header without it is refused here.
      header["documents_checksum"]
    except (KeyError, TypeError, ValueError) as error:
      raise self._damaged(".json", f"not a token file's header ({error})") from error

  @functools.cached_property
  def sentences(self) -> np.ndarray:
    """Where each sentence begins, and the end: int64 [n_sentences + 1], all offsets among them."""
    if "n_sentences" not in self.header:
      raise InputError(
        f"{self.path}.json: this text has no sentence ends, which the objective needs; prepare it "
        "with PrepareConfig(sentences=True), in another folder"
      )
    try:
      sentences = self._read_offsets("sentences", _count(self.header["n_sentences"]))
    except InputError:
      raise
    except (KeyError, OSError, ValueError) as error:
      raise self._damaged(".sentences.npy", f"cannot be read ({error})") from error
    if (sentences[np.searchsorted(sentences, self.offsets)] != self.offsets).any():
      raise self._damaged(".sentences.npy", f"does not fit {self.path}.documents.npy")
    return sentences

  def _read_offsets(self, name: str, count: int) -> np.ndarray:
    suffix = f".{name}.npy"
    limit = 8 * (count + 1) + 1000  # the array and its header
    content = read_bytes(self.path + suffix, limit)
    if zlib.crc32(content) != self.header[f"{name}_checksum"]:
      raise self._damaged(suffix, "the checksum does not match")
    try:
      file = io.BytesIO(content)
      # Not np.load, which allocates whatever its header claims.
      np.lib.format.read_magic(file)
      shape, _, dtype = np.lib.format.read_array_header_1_0(file)
      offsets = np.frombuffer(content, np.dtype("<i8"), offset=file.tell())
    except ValueError as error:
      raise self._damaged(suffix, f"not an array of offsets ({error})") from error
    whole = dtype == "<i8" and shape == offsets.shape == (count + 1,)
    if not whole or (offsets[0], offsets[-1]) != (0, self.n_tokens) or (np.diff(offsets) < 1).any():
      raise self._damaged(suffix, f"does not fit {self.path}.json")
    return offsets

  def _damaged(self, suffix: str, problem: str) -> InputError:
    return InputError(f"{self.path}{suffix}: {problem}; prepare the text again, in another folder")

  @property
  def digest(self) -> str:
    """Identifies the ids, documents, sentences and the vocabulary: 16 hexadecimal digits."""
    content = ["block_checksums", "documents_checksum", "n_tokens", "dtype", "tokenizer_hash"]
    if "sentences_checksum" in self.header:
      content.append("sentences_checksum")
    values = json.dumps([self.header[name] for name in content])
    return hashlib.sha256(values.encode()).hexdigest()[:16]

  def check_vocabulary(self, tokenizer: Tokenizer) -> None:
    """Raises InputError if the file was written with another tokenizer."""
    if self.tokenizer_hash != tokenizer.hash:
      raise InputError(
        f"{self.path}.bin: a token file of another vocabulary, "
        f"{tokenizer.difference(self.tokenizer_hash)}; prepare the text with "
        "PrepareConfig(tokenizer=DIR), the folder of the right tokenizer"
      )

  def read(self, offset: int, count: int) -> np.ndarray:
    """The ids at [offset, offset + count), int32. Raises InputError if they are damaged."""
    begin, end = offset * self._dtype.itemsize, (offset + count) * self._dtype.itemsize
    self._verify(begin // BLOCK, -(-end // BLOCK))
    return self._ids[offset : offset + count].astype(np.int32)  # 16 or 32 bits in the file

  def expect(self, parts: Iterable[tuple[int, int]]) -> None:
    """Begins to read the ids at these (begin, end), if they are on a store; returns at once.

    See RemoteArray.expect.
    """
    if isinstance(self._ids, RemoteArray):
      self._ids.expect(parts)

  def expect_from(self, offset: int) -> None:
    """As `expect`, for text that is read in order from an offset on."""
    self.expect([(offset, offset + IN_ORDER // self._dtype.itemsize)])

  def verify(self) -> None:
    """Reads the whole file. Raises InputError if any part of it is damaged."""
    self._verify(0, len(self._verified))
    if "n_sentences" in self.header:
      self.sentences  # noqa: B018  reads the file

  def _verify(self, first: int, end: int) -> None:
    """Verifies the blocks [first, end) that have not been read before."""
    length = BLOCK // self._dtype.itemsize
    for block in range(first, end):
      if self._verified[block]:
        continue
      content = self._ids[block * length : (block + 1) * length]
      if zlib.crc32(content.tobytes()) != self._block_checksums[block]:
        raise self._damaged(".bin", f"wrong checksum of the bytes from {block * BLOCK:,} on")
      largest = content.max()
      # A lookup would take another row of the table without a word.
      if largest >= self.vocab_size:
        raise self._damaged(
          ".bin", f"it has the id {largest}, and its vocabulary ends at {self.vocab_size - 1}"
        )
      self._verified[block] = True


def _count(value: Any) -> int:
  if type(value) is not int or value < 0:
    raise ValueError(f"{value!r} should be a number of items")
  return value
