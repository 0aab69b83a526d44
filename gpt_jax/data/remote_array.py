"""Arrays in files on a store (gs://, s3://): ranged requests, a bounded cache, read-ahead."""

import bisect
import collections
import itertools
import queue
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.files import read_range, size

BLOCK = 1 << 16  # bytes; requests are aligned to it, as are a token file's checksums
CACHE = 1024  # blocks kept, 64 MiB
AHEAD = CACHE // 2  # blocks that may wait for their reader
REQUEST = 16  # blocks in a request, where they are adjacent: 1 MiB
THREADS = 16  # requests at the same time; a store answers each after tens of milliseconds

# URL of the file, the first byte in it, one past the last one, and the blocks to complete.
_Request = tuple[str, int, int, list[Future[bytes]]]


class RemoteArray:
  """The numbers in files on a store, one after the other: `len(array)`, and `array[start:stop]` as
  an np.ndarray.

  Only the blocks that a slice touches are read. The last ones stay in memory, of any number of
  slices at most CACHE. `expect` reads ahead on threads of its own. May be used from several
  threads.

  Attributes:
    sizes: of each file, in bytes.
    n_bytes: in all files.
  """

  def __init__(self, paths: Sequence[str], dtype: np.dtype):
    """`paths`: all but the last should end with a whole block. Raises OSError if one is missing."""
    self.paths, self.dtype = paths, dtype
    with ThreadPoolExecutor(THREADS) as pool:
      self.sizes = list(pool.map(size, paths))
    self._begins = [0, *itertools.accumulate(self.sizes)]
    self.n_bytes = self._begins[-1]
    self._lock = threading.Lock()
    self._blocks: collections.OrderedDict[int, Future[bytes]] = collections.OrderedDict()
    self._expected: set[int] = set()  # not read yet
    self._waiting: collections.deque[int] = collections.deque()  # those not requested yet
    self._ahead = 0  # those requested
    self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
    self._threads: list[threading.Thread] = []
    weakref.finalize(self, _end_threads, self._requests)

  def __len__(self) -> int:
    return self.n_bytes // self.dtype.itemsize

  def __getitem__(self, part: slice) -> np.ndarray:
    """The numbers [start:stop], read-only."""
    start, stop, step = part.indices(len(self))
    if step != 1:
      raise ValueError(f"a step of {step}; only adjacent numbers can be read")
    begin, end = start * self.dtype.itemsize, max(start, stop) * self.dtype.itemsize
    first = begin // BLOCK
    content = self._read(range(first, -(-end // BLOCK)))
    return np.frombuffer(content[begin - first * BLOCK : end - first * BLOCK], self.dtype)

  def expect(self, parts: Iterable[tuple[int, int]]) -> None:
    """Begins to read what is needed next; returns at once.

    Args:
      parts: (start, stop) in the order in which they will be read. They replace those of the call
        before; what has been requested stays in memory as if it had been read.
    """
    blocks: dict[int, None] = {}  # in order
    for start, stop in parts:
      begin, end = start * self.dtype.itemsize, min(stop * self.dtype.itemsize, self.n_bytes)
      blocks |= dict.fromkeys(range(begin // BLOCK, -(-end // BLOCK)))
    with self._lock:
      self._expected = set(blocks)
      self._ahead = 0
      self._waiting.clear()
      for block in blocks:
        if block in self._blocks:
          self._blocks.move_to_end(block)
          self._ahead += 1
        else:
          self._waiting.append(block)
      self._read_ahead()
      self._discard_oldest()

  def _read(self, blocks: range) -> bytes:
    """The content of adjacent blocks: from memory, or else from the store."""
    with self._lock:
      missing = [block for block in blocks if block not in self._blocks]
      # The futures are entered under the lock and completed outside it: another thread that needs
      # one of these blocks waits for this request instead of making its own.
      requests = self._add(missing)
      for block in blocks:
        self._blocks.move_to_end(block)
        if block in self._expected:
          self._expected.remove(block)
          # One that was missing had not been requested, so it did not count.
          self._ahead -= block not in missing
      futures = [self._blocks[block] for block in blocks]
      self._read_ahead()
      self._discard_oldest()
    for request in requests:  # by this thread, so that it need not wait for those ahead of it
      _answer(request)
    contents: list[bytes] = []
    try:
      for future in futures:
        contents.append(future.result())
    except BaseException as error:
      with self._lock:  # so that those that could not be read are requested again
        for block in blocks:
          stored = self._blocks.get(block)
          if stored and stored.done() and stored.exception():
            del self._blocks[block]
      if isinstance(error, OSError | ValueError):
        path = self.paths[self._file_of(blocks[len(contents)])]
        raise InputError(f"{path}: cannot be read ({error})") from error
      raise
    return b"".join(contents)

  def _add(self, blocks: list[int]) -> list[_Request]:
    """Makes room for blocks that are not there; returns the requests that bring them."""
    requests: list[_Request] = []
    for block in blocks:
      self._blocks[block] = future = Future[bytes]()
      file = self._file_of(block)
      path, offset = self.paths[file], self._begins[file]
      begin = block * BLOCK - offset
      end = min(begin + BLOCK, self.sizes[file])
      last_path, first, last_end, futures = requests[-1] if requests else ("", 0, 0, [])
      if (last_path, last_end) == (path, begin) and len(futures) < REQUEST:
        requests[-1] = (path, first, end, [*futures, future])
      else:
        requests.append((path, begin, end, [future]))
    return requests

  def _file_of(self, block: int) -> int:
    return bisect.bisect_right(self._begins, block * BLOCK) - 1

  def _read_ahead(self) -> None:
    """Requests expected blocks, as many as may wait for their reader."""
    blocks: list[int] = []
    while self._waiting and self._ahead + len(blocks) < AHEAD:
      block = self._waiting.popleft()
      if block in self._expected and block not in self._blocks:
        blocks.append(block)
    for request in self._add(blocks):
      self._requests.put(request)
      if len(self._threads) < THREADS:
        arguments = (self._requests,)  # not self, which could never be freed
        thread = threading.Thread(target=_answer_all, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
    self._ahead += len(blocks)

  def _discard_oldest(self) -> None:
    while len(self._blocks) > CACHE:
      # It may still be on its way: those who wait for it hold its future.
      block, _ = self._blocks.popitem(last=False)
      if block in self._expected:
        self._expected.remove(block)
        self._ahead -= 1


def _answer(request: _Request) -> None:
  """Reads the bytes of a request and completes its blocks."""
  path, begin, end, futures = request
  try:
    content = read_range(path, begin, end)
    if len(content) != end - begin:
      raise OSError(f"{len(content)} bytes from {begin:,} on instead of {end - begin}")
  except BaseException as error:  # raised by the reader of the blocks
    for future in futures:
      future.set_exception(error)
    return
  for number, future in enumerate(futures):
    future.set_result(content[number * BLOCK : (number + 1) * BLOCK])


def _answer_all(requests: "queue.SimpleQueue[_Request | None]") -> None:
  while (request := requests.get()) is not None:
    _answer(request)


def _end_threads(requests: "queue.SimpleQueue[_Request | None]") -> None:
  for _ in range(THREADS):
    requests.put(None)
