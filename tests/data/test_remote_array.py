"""Arrays on a store: the numbers of the file, by few requests, in bounded memory, although the
store fails now and then.
"""

import asyncio
import itertools
import threading
import types

import numpy as np
import pytest
from range_server import serve_ranges
from refused import refused
from token_files import numbered, write

from gpt_jax import files
from gpt_jax.data import token_file
from gpt_jax.data.sentence_windows import PackedSentenceWindows, PairWindows
from gpt_jax.data.token_file import BLOCK, IN_ORDER, REQUEST, RemoteArray, TokenFile, TokenWriter
from gpt_jax.data.windows import Windows, WindowsConfig

URL = "gs://bucket/numbers.bin"
U16 = np.dtype("<u2")


class Store:
  """Objects in memory, and what is asked of them.

  Attributes:
    ranges: (path, first byte, one past the last) of each request.
    failures: how many of the next requests fail.
  """

  def __init__(self, folder=None):
    self.folder, self.objects = folder, {}
    self.ranges, self.failures = [], 0

  def content(self, path: str) -> bytes:
    if path in self.objects:
      return self.objects[path]
    return (self.folder / path.removeprefix("gs://")).read_bytes()

  def size(self, path: str) -> int:
    return len(self.content(path))

  def read_range(self, path: str, start: int, stop: int) -> bytes:
    self.ranges.append((path, start, stop))
    if self.failures:
      self.failures -= 1
      raise OSError("503 Service Unavailable")
    return self.content(path)[start:stop]

  @property
  def n_bytes(self) -> int:
    return sum(stop - start for _, start, stop in self.ranges)


@pytest.fixture
def store(monkeypatch, tmp_path):
  """A Store whose folder is tmp_path, in place of gs://."""
  store = Store(tmp_path)
  fakes = {"size": store.size, "read_range": store.read_range, "is_uploading": lambda folder: False}

  def from_folder(read):
    return lambda path, *limit: read(path.replace("gs://", f"{tmp_path}/"), *limit)

  for name in ("read_json", "read_bytes"):
    fakes[name] = from_folder(getattr(files, name))
  monkeypatch.setattr(token_file, "files", types.SimpleNamespace(**{**vars(files), **fakes}))
  return store


@pytest.fixture
def numbers(store):
  """Numbers on three and a half requests' worth of blocks."""
  values = np.random.default_rng(0).integers(1 << 16, size=(7 * REQUEST * BLOCK // 4) + 3)
  values = values.astype(U16)
  store.objects[URL] = values.tobytes()
  return values


def test_slices_are_those_of_the_numbers(store, numbers):
  array = RemoteArray([URL], U16)
  assert len(array) == len(numbers)
  rng = np.random.default_rng(1)
  for start in [0, *rng.integers(len(numbers), size=100).tolist(), len(numbers) - 5]:
    stop = start + int(rng.integers(3 * BLOCK))
    np.testing.assert_array_equal(array[start:stop], numbers[start:stop])
  assert len(array[5:5]) == len(array[7:3]) == len(array[len(numbers) :]) == 0
  np.testing.assert_array_equal(array[-7:], numbers[-7:])
  with pytest.raises(ValueError, match="a step of 2"):
    array[::2]


def test_only_the_blocks_of_a_slice_are_read_and_each_once(store, numbers):
  array = RemoteArray([URL], U16)
  per_block = BLOCK // 2
  array[10:20], array[30:40]
  assert store.ranges == [(URL, 0, BLOCK)]
  array[per_block - 1 : 3 * per_block + 1]  # blocks 0 to 3; adjacent ones in one request
  assert store.ranges[1:] == [(URL, BLOCK, 4 * BLOCK)]
  array[len(numbers) - 1 :]
  last = len(numbers) * 2 // BLOCK * BLOCK
  assert store.ranges[2:] == [(URL, last, len(numbers) * 2)]


def test_what_is_fetched_is_there_before_it_is_read(store, numbers):
  array = RemoteArray([URL], U16)
  per_block = BLOCK // 2
  parts = [(n * per_block, n * per_block + 9) for n in (40, 7, 8, 9, 3)]
  array.fetch([*parts, (len(numbers) + 7, len(numbers) + 7)])  # as of a row that only pads
  asked = sorted(store.ranges)
  assert asked == [(URL, n * BLOCK, m * BLOCK) for n, m in [(3, 4), (7, 10), (40, 41)]]
  for start, stop in parts:
    np.testing.assert_array_equal(array[start:stop], numbers[start:stop])
  array.fetch(parts)
  assert sorted(store.ranges) == asked


def test_text_in_order_is_read_by_few_requests(store):
  values = np.arange(200 * BLOCK // 2).astype(U16)
  store.objects[URL] = values.tobytes()
  array = RemoteArray([URL], U16)
  for start in range(0, len(values), 1000):
    np.testing.assert_array_equal(array[start : start + 1000], values[start : start + 1000])
  assert store.n_bytes == 200 * BLOCK  # no block twice
  assert len(store.ranges) <= 2 + 200 / REQUEST + 200 / IN_ORDER


def test_memory_is_bounded(store, monkeypatch):
  monkeypatch.setattr(token_file, "CACHE", 24)
  values = np.arange(100 * BLOCK // 2).astype(U16)
  store.objects[URL] = values.tobytes()
  array = RemoteArray([URL], U16)
  order = np.random.default_rng(0).permutation(100)
  parts = [(n * BLOCK // 2, n * BLOCK // 2 + 5) for n in order.tolist()]
  array.fetch(parts)
  assert store.n_bytes <= 24 * BLOCK
  for start, stop in parts:
    np.testing.assert_array_equal(array[start:stop], values[start:stop])
    assert len(array._blocks) <= 24


def test_several_files_are_one_array_with_one_cache(store):
  """Requests do not cross the end of a file."""
  values = np.random.default_rng(0).integers(1 << 16, size=40 * BLOCK // 2 - 100).astype(U16)
  content, ends = values.tobytes(), [0, *range(2 * BLOCK, 40 * BLOCK, 2 * BLOCK), len(values) * 2]
  paths = [f"gs://bucket/numbers-{file:05}.bin" for file in range(20)]
  for path, (begin, end) in zip(paths, itertools.pairwise(ends), strict=True):
    store.objects[path] = content[begin:end]
  array = RemoteArray(paths, U16)
  assert len(array) == len(values)
  begins = np.random.default_rng(1).permutation(40) * (BLOCK // 2)
  parts = [(begin, begin + BLOCK) for begin in begins.tolist()]
  array.fetch(parts)
  for begin, end in parts:
    np.testing.assert_array_equal(array[begin:end], values[begin:end])
  np.testing.assert_array_equal(array[:], values)
  assert store.n_bytes == len(content)  # no block twice
  store.objects[paths[7]] = b""
  del array._blocks[14]
  refused(rf"^{paths[7]}: cannot be read", lambda: array[: len(array)])


def test_several_threads_read_one_array(store, numbers):
  array, wrong = RemoteArray([URL], U16), []

  def read(seed):
    rng = np.random.default_rng(seed)
    for start in rng.integers(len(numbers), size=200).tolist():
      array.fetch([(start, start + 10), (start // 2, start // 2 + 3)])
      if (array[start : start + 10] != numbers[start : start + 10]).any():
        wrong.append(start)

  threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(20)
  assert not wrong
  assert store.n_bytes <= len(numbers) * 2  # no block twice


def test_a_failed_request_is_one_line_and_is_asked_again(store, numbers):
  """A short answer is not taken for the end of the file."""
  array, whole = RemoteArray([URL], U16), store.objects[URL]
  store.failures = 1
  refused(rf"^{URL}: cannot be read \(503 Service Unavailable\)", lambda: array[:10])
  store.objects[URL] = whole[: BLOCK // 2]
  refused(rf"{BLOCK // 2} bytes from 0 on instead of {BLOCK}", lambda: array[:10])
  store.objects[URL] = whole
  np.testing.assert_array_equal(array[:10], numbers[:10])


@pytest.fixture(params=["one_file", "shards"])
def texts(store, tmp_path, request):
  """The same text with sentences on a disk and on the store, of 13 blocks."""
  (tmp_path / "text").mkdir()
  shard_tokens = 3 * BLOCK // 2 if request.param == "shards" else 0
  writer = TokenWriter(str(tmp_path / "text"), "train", 60_000, True, shard_tokens)
  rng = np.random.default_rng(0)
  for size in [40_000, 7, 300, 90_000, 250_000, 20_000]:
    ends = np.unique(rng.integers(1, size + 1, size=1 + size // 12))
    writer.add(rng.integers(60_000, size=size), 3 * size, size // 2, sentence_ends=ends)
  writer.close(tokenizer_hash="abc")
  return TokenFile(str(tmp_path / "text"), "train"), TokenFile("gs://text", "train")


KINDS = {
  "within_documents": (Windows, "within_documents"),
  "across_documents": (Windows, "across_documents"),
  "pairs": (PairWindows, "within_documents"),
  "packed": (PackedSentenceWindows, "within_documents"),
  "packed_across": (PackedSentenceWindows, "across_documents"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_those_of_the_disk(texts, store, kind):
  make, sampling = KINDS[kind]
  local, remote = (
    make(text, WindowsConfig(batch_size=3, length=32, sampling=sampling), seed=1) for text in texts
  )
  for step in range(8):
    np.testing.assert_array_equal(remote(step), local(step))
  both = zip(remote.sequential(), local.sequential(), strict=True)
  for ours, theirs in itertools.islice(both, 40):
    np.testing.assert_array_equal(ours, theirs)
  assert store.n_bytes <= texts[1]._ids.n_bytes  # no block twice


def test_damage_on_the_store_is_noticed(store, tmp_path):
  (tmp_path / "text").mkdir()
  write(tmp_path / "text", numbered([100_000]), vocab_size=100_000)
  path = tmp_path / "text" / "train.bin"
  content = bytearray(path.read_bytes())
  content[BLOCK + 7] ^= 1
  path.write_bytes(content)
  file = TokenFile("gs://text", "train")  # reads its header and size, not its ids
  assert not store.ranges
  assert file.read(0, 5).tolist() == [0, 1, 2, 3, 4]
  refused(r"^gs://text/train.bin: wrong checksum of the bytes from", file.read, BLOCK // 4, 9)
  path.write_bytes(content[:-1])
  refused("^gs://text/train.bin: truncated", TokenFile, "gs://text", "train")


VALUES = np.arange(40 * BLOCK // 2).astype("<u2")


@pytest.fixture
def faults(monkeypatch):
  """The Faults of a server that has VALUES as gs://bucket/values.bin; no back-off is waited for."""
  content, sleep = VALUES.tobytes(), asyncio.sleep
  sizes = {"values.bin": len(content)}
  with serve_ranges(sizes, lambda name, start, stop: content[start:stop]) as (url, faults):
    from gcsfs.core import GCSFileSystem

    store = GCSFileSystem(token="anon", endpoint_url=url, skip_instance_cache=True)
    monkeypatch.setattr(files, "_file_system", lambda scheme: store)
    faults.waits = []

    async def no_wait(seconds, *more):
      if seconds:
        faults.waits.append(seconds)
      await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", no_wait)
    yield faults


@pytest.mark.store
def test_faults_are_not_noticed(faults):
  """Of all kinds, three for each request."""
  rng = np.random.default_rng(0)
  for _ in range(20):
    faults.pending = rng.choice([429, 503, 0], 3).tolist()
    array = RemoteArray(["gs://bucket/values.bin"], U16)
    start = int(rng.integers(len(VALUES) - 600))
    np.testing.assert_array_equal(array[start : start + 513], VALUES[start : start + 513])
    assert not faults.pending
  assert len(faults.waits) >= 40
  assert max(faults.waits) > 1.5 * min(faults.waits)  # longer each time


@pytest.mark.store
def test_a_store_that_stays_away_is_one_line(faults):
  array = RemoteArray(["gs://bucket/values.bin"], U16)
  faults.pending = [503] * 1000
  assert "\n" not in refused(r"^gs://bucket/values.bin: cannot be read \(", lambda: array[:10])
  faults.pending = []
  np.testing.assert_array_equal(array[:10], VALUES[:10])
