"""Arrays in several files, read as one."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np


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
