"""Token files: a split of prepared text as a flat array of ids, with document offsets.

A split is three files: `<split>.bin` (ids), `<split>.documents.npy` (offsets of the documents) and
`<split>.json` (the header), and with `prepare --sentences` a fourth, `<split>.sentences.npy`
(offsets of the sentences). With `prepare --shard_tokens` the ids of a long split are in several
files, `<split>-00000.bin` and so on; all else is as with one. The header has a CRC-32 of every
block of ids, of the offsets and of itself, so that no damage goes unnoticed.
"""

import array
import bisect
import collections
import functools
import hashlib
import io
import itertools
import json
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpt_jax import files
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError


def shard_name(path: str, shard: int, count: int) -> str:
  """The file of a shard: PATH.bin of a single one, PATH-00000.bin and so on of several."""
  return f"{path}.bin" if count == 1 else f"{path}-{shard:05}.bin"


BLOCK = 1 << 16  # bytes with one checksum: a row of ids reads one or two blocks
CACHE = 1024  # blocks of a file on a store that are kept, 64 MiB
IN_ORDER = 64  # blocks read at once where one follows another: 4 MiB
REQUEST = 16  # blocks in a request, where they are adjacent: 1 MiB
THREADS = 16  # requests at the same time; a store answers each after tens of milliseconds
DTYPES: dict[str, np.dtype] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class RemoteArray:
  """The numbers in files on a store, one after the other: `len(array)`, and `array[start:stop]` as
  an np.ndarray; `sizes` and `n_bytes`, of each and of all files.

  Only the blocks that a slice touches are read, and the last CACHE kept. Threads may share it.
  """

  def __init__(self, paths: Sequence[str], dtype: np.dtype):
    """`paths`: all but the last should end with a whole block. Raises OSError if one is missing."""
    self.paths, self.dtype = paths, dtype
    with ThreadPoolExecutor(THREADS) as pool:
      self.sizes = list(pool.map(files.size, paths))
    self._begins = [0, *itertools.accumulate(self.sizes)]
    self.n_bytes = self._begins[-1]
    self._lock = threading.Lock()
    self._blocks: collections.OrderedDict[int, bytes] = collections.OrderedDict()

  def __len__(self) -> int:
    return self.n_bytes // self.dtype.itemsize

  def __getitem__(self, part: slice) -> np.ndarray:
    """The numbers [start:stop], read-only."""
    start, stop, step = part.indices(len(self))
    if step != 1:
      raise ValueError(f"a step of {step}; only adjacent numbers can be read")
    blocks = self._blocks_of(start, stop)
    content = b"".join(self._read(blocks))
    begin = start * self.dtype.itemsize - blocks.start * BLOCK
    end = begin + max(0, stop - start) * self.dtype.itemsize
    return np.frombuffer(content[begin:end], self.dtype)

  def fetch(self, parts: Iterable[tuple[int, int]]) -> None:
    """Reads what slices (start, stop) will need, as far as the cache holds it, at the same time."""
    blocks: dict[int, None] = {}
    for start, stop in parts:
      blocks |= dict.fromkeys(self._blocks_of(start, min(stop, len(self))))
    self._read(list(blocks)[:CACHE])

  def _blocks_of(self, start: int, stop: int) -> range:
    first = start * self.dtype.itemsize // BLOCK
    end = -(-stop * self.dtype.itemsize // BLOCK)
    return range(first, end if start < stop else first)

  def _read(self, blocks: Sequence[int]) -> list[bytes]:
    """The content of each block: from memory, or else from the store."""
    with self._lock:  # another thread that needs one of these blocks waits for these requests
      missing = sorted(block for block in blocks if block not in self._blocks)
      if len(missing) == 1 and missing[0] - 1 in self._blocks:  # the text is read in order
        end = min(missing[0] + IN_ORDER, -(-self.n_bytes // BLOCK))
        missing = [block for block in range(missing[0], end) if block not in self._blocks]
      if missing:
        requests = self._requests(missing)
        with ThreadPoolExecutor(min(THREADS, len(requests))) as pool:
          for request, content in zip(requests, pool.map(self._answer, requests), strict=True):
            for number, block in enumerate(request):
              self._blocks[block] = content[number * BLOCK : (number + 1) * BLOCK]
      for block in blocks:
        self._blocks.move_to_end(block)
      contents = [self._blocks[block] for block in blocks]
      while len(self._blocks) > CACHE:
        self._blocks.popitem(last=False)
    return contents

  def _requests(self, blocks: list[int]) -> list[list[int]]:
    """Ascending blocks, those together that are adjacent in one file."""
    requests: list[list[int]] = []
    for block in blocks:
      last = requests[-1] if requests else []
      follows = last and last[-1] == block - 1 and self._file_of(block - 1) == self._file_of(block)
      if follows and len(last) < REQUEST:
        last.append(block)
      else:
        requests.append([block])
    return requests

  def _answer(self, blocks: list[int]) -> bytes:
    """The bytes of a request."""
    file = self._file_of(blocks[0])
    path = self.paths[file]
    begin = blocks[0] * BLOCK - self._begins[file]
    end = min(begin + len(blocks) * BLOCK, self.sizes[file])
    try:
      content = files.read_range(path, begin, end)
      if len(content) != end - begin:
        raise OSError(f"{len(content)} bytes from {begin:,} on instead of {end - begin}")
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: cannot be read ({error})") from error
    return content

  def _file_of(self, block: int) -> int:
    return bisect.bisect_right(self._begins, block * BLOCK) - 1


class LocalArray:
  """As RemoteArray, of files on a disk: read by pread, not mapped, so that memory stays small."""

  def __init__(self, paths: Sequence[str], dtype: np.dtype):
    """Raises OSError, and ValueError for what is no regular file."""
    self.dtype = dtype
    self._descriptors, self.sizes = [], []
    for path in paths:
      file = files.open_regular(path)
      weakref.finalize(self, file.close)
      self._descriptors.append(file.fileno())
      self.sizes.append(os.fstat(file.fileno()).st_size)
    self._begins = [0, *itertools.accumulate(self.sizes)]
    self.n_bytes = self._begins[-1]

  def __len__(self) -> int:
    return self.n_bytes // self.dtype.itemsize

  def __getitem__(self, part: slice) -> np.ndarray:
    start, stop, _ = part.indices(len(self))
    begin, end = start * self.dtype.itemsize, stop * self.dtype.itemsize  # in bytes
    file = bisect.bisect_right(self._begins, begin) - 1
    contents = []
    while begin < end:
      length = min(end, self._begins[file + 1]) - begin
      # pread moves no file position, so several threads may read.
      contents.append(os.pread(self._descriptors[file], length, begin - self._begins[file]))
      begin, file = begin + length, file + 1
    return np.frombuffer(b"".join(contents), self.dtype)

  def fetch(self, parts: Iterable[tuple[int, int]]) -> None:
    """Nothing: reads of a disk do not wait."""


class TokenFile:
  """One split of a prepared folder, with random access, on a disk or on a store.

  A block of ids is verified when it is read for the first time.

  Attributes:
    n_bytes, n_words: of the cleaned text.
    unigram_entropy: nats per token.
    offsets: int64 [n_documents + 1], where each document begins, and the end.
    header: all entries of `<split>.json`.
  """

  def __init__(self, folder: str, split: str):
    self.path = os.path.join(folder, split)
    self.is_remote = files.is_url(folder)
    try:
      if files.is_uploading(folder):
        raise InputError(f"{folder}: its upload is not finished; give the command of prepare again")
      header = files.read_json(self.path + ".json")
      self._read_header(header)
      self.offsets = self._read_offsets("documents", self.n_documents)
      self._ids = self._open_ids()
    except InputError:
      raise
    except (FileNotFoundError, NotADirectoryError) as error:
      if split not in ("train", "valid"):
        raise InputError(f"{folder}: has no split {split!r}, only train and valid") from error
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

  def _open_ids(self) -> RemoteArray | LocalArray:
    sizes = self.header.get("shards", [self.n_tokens])
    if not isinstance(sizes, list) or sum(map(_count, sizes)) != self.n_tokens:
      raise self._damaged(".json", "its shards do not add up to its tokens")
    if any(n_tokens * self._dtype.itemsize % BLOCK for n_tokens in sizes[:-1]):
      raise self._damaged(".json", "a shard ends within a block")
    paths = [shard_name(self.path, shard, len(sizes)) for shard in range(len(sizes))]
    ids = (RemoteArray if self.is_remote else LocalArray)(paths, self._dtype)
    for path, n_tokens, n_bytes in zip(paths, sizes, ids.sizes, strict=True):
      expected = n_tokens * self._dtype.itemsize
      if n_bytes != expected:
        state = "truncated" if n_bytes < expected else "longer than its header says"
        suffix = path.removeprefix(self.path)
        raise self._damaged(suffix, f"{state}, {n_bytes} bytes instead of {expected}")
    return ids

  def _read_header(self, header: Any) -> None:
    try:
      self.header = header = files.verified(header)
      counts = ("n_tokens", "n_documents", "n_bytes", "n_words", "vocab_size")
      self.n_tokens, self.n_documents, self.n_bytes, self.n_words, self.vocab_size = (
        _count(header[name]) for name in counts
      )
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
    content = files.read_bytes(self.path + suffix, limit)
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
    """Refuses a file that was written with another tokenizer."""
    if self.tokenizer_hash != tokenizer.hash:
      raise InputError(
        f"{self.path}.bin: a token file of another vocabulary, "
        f"{tokenizer.difference(self.tokenizer_hash)}; prepare the text with "
        "PrepareConfig(tokenizer=DIR), the folder of the right tokenizer"
      )

  def read(self, offset: int, count: int) -> np.ndarray:
    """The ids at [offset, offset + count), int32; of no ids, the offset may be anywhere."""
    if not count:
      return np.empty(0, np.int32)
    begin, end = offset * self._dtype.itemsize, (offset + count) * self._dtype.itemsize
    self._verify(begin // BLOCK, -(-end // BLOCK))
    return self._ids[offset : offset + count].astype(np.int32)  # 16 or 32 bits in the file

  def fetch(self, parts: Iterable[tuple[int, int]]) -> None:
    """Reads the ids at these (begin, end) at the same time, if they are on a store."""
    self._ids.fetch(parts)

  def verify(self) -> None:
    """Reads the whole file, and refuses it if any part of it is damaged."""
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


class TokenWriter:
  """Writes one split. The header is written last, so a split without one is incomplete."""

  def __init__(
    self, folder: str, split: str, vocab_size: int, sentences: bool = False, shard_tokens: int = 0
  ):
    """`sentences`: whether to write where they end, too; `shard_tokens`: ids in a file, rounded up
    to whole blocks, 0: all.
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
    self._checksums: list[int] = []  # of each whole block
    self._checksum = self._in_block = 0  # the bytes of the current one so far
    # Where each document and, if asked for, each sentence ends; a reader has them in memory, too.
    self._documents = array.array("q", [0])
    self._sentences = array.array("q", [0]) if sentences else None

  @property
  def n_documents(self) -> int:
    return len(self._documents) - 1

  def add(
    self,
    ids: np.ndarray,
    n_bytes: int,
    n_words: int,
    last: bool = True,
    sentence_ends: np.ndarray | None = None,
  ) -> None:
    """Appends ids, int [n], to the current document, which ends with the `last` ones.

    `n_bytes` and `n_words` are of the text; `sentence_ends`: int [k], ascending in 1..n, a
    document's end is one in any case. Documents without tokens are dropped.
    """
    self._write(memoryview(ids.astype(self._dtype).tobytes()))
    # Not counts[ids] += 1, which counts an id that occurs twice once.
    np.add.at(self.counts, ids, 1)
    if self._sentences and sentence_ends is not None:
      _append(self._sentences, self.n_tokens + sentence_ends)
    self.n_tokens += len(ids)
    self.n_bytes += n_bytes
    self.n_words += n_words
    if last:
      for offsets in filter(None, (self._documents, self._sentences)):
        _append(offsets, np.array([self.n_tokens]))

  def _write(self, content: memoryview) -> None:
    """Appends bytes block by block: a checksum for each, and shards of whole blocks."""
    while content:
      if self._shard_bytes and self._shards[-1] == self._shard_bytes:
        self._file.close()
        if len(self._shards) == 1:  # a single file has the plain name
          os.rename(shard_name(self._path, 0, 1), shard_name(self._path, 0, 2))
        self._file = open(shard_name(self._path, len(self._shards), 2), "wb")
        self._shards.append(0)
      part = content[: BLOCK - self._in_block]
      self._shards[-1] += self._file.write(part)
      self._checksum = zlib.crc32(part, self._checksum)
      self._in_block += len(part)
      if self._in_block == BLOCK:
        self._checksums.append(self._checksum)
        self._checksum = self._in_block = 0
      content = content[len(part) :]

  def close(self, **entries: Any) -> dict[str, Any]:
    """Completes the files; returns the header, with `entries` such as tokenizer_hash."""
    documents_checksum = _save_offsets(self._path + ".documents.npy", self._documents)
    if self._sentences:
      entries["n_sentences"] = len(self._sentences) - 1
      checksum = _save_offsets(self._path + ".sentences.npy", self._sentences)
      entries["sentences_checksum"] = checksum
    self._file.close()
    if self._in_block:
      self._checksums.append(self._checksum)
    if len(self._shards) > 1:
      entries["shards"] = [n_bytes // self._dtype.itemsize for n_bytes in self._shards]
    header = {
      "n_tokens": self.n_tokens,
      "n_documents": self.n_documents,
      "n_bytes": self.n_bytes,
      "n_words": self.n_words,
      "unigram_entropy": unigram_entropy(self.counts),
      "vocab_size": len(self.counts),
      "dtype": self._dtype.name,
      "block_bytes": BLOCK,
      "block_checksums": np.array(self._checksums, ">u4").tobytes().hex(),
      "documents_checksum": documents_checksum,
      **entries,
    }
    files.write_json(self._path + ".json", files.with_checksum(header))
    return header


def _append(offsets: "array.array[int]", more: np.ndarray) -> None:
  """Appends those of ascending offsets that are larger than the last one."""
  # A document without tokens ends at the last offset again; so may its last sentence.
  offsets.frombytes(more[more > offsets[-1]].astype(np.int64).tobytes())


def _save_offsets(path: str, offsets: "array.array[int]") -> int:
  """Writes what np.save would; returns its CRC-32. np.save itself may not notice a full disk."""
  header = io.BytesIO()
  shape = {"descr": "<i8", "fortran_order": False, "shape": (len(offsets),)}
  np.lib.format.write_array_header_1_0(header, shape)
  content = np.frombuffer(offsets, np.int64).astype("<i8", copy=False).data
  with open(path, "wb") as file:
    file.write(header.getvalue())
    file.write(content)
  return zlib.crc32(content, zlib.crc32(header.getvalue()))


def unigram_entropy(counts: np.ndarray) -> float:
  """Nats per token of the best model that ignores context, and knows how frequent each token is."""
  share = counts[counts > 0] / max(1, counts.sum())
  return float(-(share * np.log(share)).sum())
