"""Arrays in files on a store (gs://, s3://): ranged requests at the same time, a bounded cache."""

import bisect
import collections
import itertools
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.files import read_range, size

BLOCK = 1 << 16  # bytes; requests are aligned to it, as are a token file's checksums
CACHE = 1024  # blocks kept, 64 MiB
IN_ORDER = 64  # blocks read at once where one follows another: 4 MiB
REQUEST = 16  # blocks in a request, where they are adjacent: 1 MiB
THREADS = 16  # requests at the same time; a store answers each after tens of milliseconds


class RemoteArray:
  """The numbers in files on a store, one after the other: `len(array)`, and `array[start:stop]` as
  an np.ndarray; `sizes` and `n_bytes`, of each and of all files.

  Only the blocks that a slice touches are read, and the last CACHE of them kept. May be used from
  several threads.
  """

  def __init__(self, paths: Sequence[str], dtype: np.dtype):
    """`paths`: all but the last should end with a whole block. Raises OSError if one is missing."""
    self.paths, self.dtype = paths, dtype
    with ThreadPoolExecutor(THREADS) as pool:
      self.sizes = list(pool.map(size, paths))
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
      content = read_range(path, begin, end)
      if len(content) != end - begin:
        raise OSError(f"{len(content)} bytes from {begin:,} on instead of {end - begin}")
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: cannot be read ({error})") from error
    return content

  def _file_of(self, block: int) -> int:
    return bisect.bisect_right(self._begins, block * BLOCK) - 1
