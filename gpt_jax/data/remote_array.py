"""Arrays in files on a store (gs://, s3://): ranged requests, a bounded cache, read-ahead."""

import collections
import queue
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future

import numpy as np

from gpt_jax.errors import Unavailable
from gpt_jax.files import read_range, size

BLOCK = 1 << 16  # bytes; requests are aligned to it, as are a token file's checksums
CACHE = 1024  # blocks kept, 64 MiB
AHEAD = CACHE // 2  # blocks that may wait for their reader
REQUEST = 16  # blocks in a request, where they are adjacent: 1 MiB
THREADS = 16  # requests at the same time; a store answers each after tens of milliseconds

# The first byte, one past the last one, and the blocks to complete.
_Request = tuple[int, int, list[Future[bytes]]]


class RemoteArray:
  """The numbers in a file on a store: `len(array)`, and `array[start:stop]` as an np.ndarray.

  Only the blocks that a slice touches are read. The last ones stay in memory, of any number of
  slices at most CACHE. `expect` reads ahead on threads of its own. May be used from several
  threads.

  Attributes:
    path: URL of the file.
    dtype: of the numbers.
    n_bytes: in the file.
  """

  def __init__(self, path: str, dtype: np.dtype):
    """Raises OSError if there is no such file."""
    self.path, self.dtype, self.n_bytes = path, dtype, size(path)
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
    """The numbers [start:stop], read-only.

    Raises:
      Unavailable: the store does not give them, after the attempts of `files.read_range`.
    """
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
      requests = self._add(missing)
      for block in blocks:
        self._blocks.move_to_end(block)
        if block in self._expected:
          self._expected.remove(block)
          self._ahead -= block not in missing
      futures = [self._blocks[block] for block in blocks]
      self._read_ahead()
      self._discard_oldest()
    for request in requests:  # by this thread, so that it need not wait for those ahead of it
      _answer(self.path, request)
    try:
      return b"".join(future.result() for future in futures)
    except BaseException as error:
      self._forget(blocks)
      if isinstance(error, OSError | ValueError):
        raise Unavailable(f"{self.path}: cannot be read ({error})") from error
      raise

  def _add(self, blocks: list[int]) -> list[_Request]:
    """Makes room for blocks that are not there; returns the requests that bring them."""
    requests: list[_Request] = []
    previous = None
    for block in blocks:
      self._blocks[block] = future = Future[bytes]()
      end = min((block + 1) * BLOCK, self.n_bytes)
      if previous is not None and block == previous + 1 and len(requests[-1][2]) < REQUEST:
        begin, _, futures = requests[-1]
        requests[-1] = (begin, end, [*futures, future])
      else:
        requests.append((block * BLOCK, end, [future]))
      previous = block
    return requests

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
        arguments = (self.path, self._requests)  # not self, which could never be freed
        thread = threading.Thread(target=_answer_all, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
    self._ahead += len(blocks)

  def _discard_oldest(self) -> None:
    while len(self._blocks) > CACHE:
      block, _ = self._blocks.popitem(last=False)
      if block in self._expected:
        self._expected.remove(block)
        self._ahead -= 1

  def _forget(self, blocks: range) -> None:
    """Discards blocks that could not be read, so that they are requested again."""
    with self._lock:
      for block in blocks:
        future = self._blocks.get(block)
        if future and future.done() and future.exception():
          del self._blocks[block]


def _answer(path: str, request: _Request) -> None:
  """Reads the bytes of a request and completes its blocks."""
  begin, end, futures = request
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


def _answer_all(path: str, requests: "queue.SimpleQueue[_Request | None]") -> None:
  while (request := requests.get()) is not None:
    _answer(path, request)


def _end_threads(requests: "queue.SimpleQueue[_Request | None]") -> None:
  for _ in range(THREADS):
    requests.put(None)
