"""Files of JSON lines that a run appends to, each line with its "step": metrics, samples.

The objects of a store cannot be appended to. There, FILE is a folder of segments FILE/000001, …;
each is written again until it is long enough. FILE/000007-whole has all lines before it.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator
from typing import IO

from gpt_jax import files
from gpt_jax.files import atomic_file, exists, list_existing, open_regular, remove

METRICS = "metrics.jsonl"
_SEGMENT = 256 << 10  # characters
_SECONDS = 10.0  # between uploads that nobody asks for
_WHOLE = "-whole"


def read_lines(path: str) -> Iterator[str]:
  """The lines, with their ends. Raises OSError."""
  segments = _segments(path)
  # The last whole segment repeats all lines before it.
  whole = [i for i, name in enumerate(segments) if name.endswith(_WHOLE)]
  segments = segments[whole[-1] if whole else 0 :]
  for part in [os.path.join(path, name) for name in segments] or [path]:
    with io.TextIOWrapper(open_regular(part), "utf-8", "replace") as file:
      yield from file


def cut_back(path: str, step: int) -> None:
  """Removes the entries after a step, and a line cut off by a kill; atomic.

  Args:
    path: of JSON lines, each with its "step"; nothing happens if there is no such file.
    step: the last one that is kept; 0 removes all.
  """
  if not exists(path):
    return

  def is_kept(line: str) -> bool:
    with contextlib.suppress(ValueError):
      return bool(step) and line.endswith("\n") and json.loads(line)["step"] <= step
    return False

  kept = filter(is_kept, read_lines(path))
  before = _segments(path)
  with atomic_file(os.path.join(path, _name(before, _WHOLE)) if before else path) as file:
    file.writelines(kept)
  # Removed after the new segment is there: a kill in between leaves all lines readable.
  for name in before:
    remove(os.path.join(path, name))


def open_to_append(path: str) -> "IO[str] | Segments":
  """Opens a file whose lines are appended; on a store, `flush` uploads now and then."""
  return files.open_to_append(path) or Segments(path)


class Segments:
  """A file of a store that is appended to. `flush` passes over errors of the store."""

  def __init__(self, path: str):
    self._path, self._names = path, _segments(path)
    self._lines: list[str] = []
    self._name, self._uploaded = _name(self._names), time.monotonic()
    self._is_dirty = False

  def write(self, text: str) -> int:
    self._lines.append(text)
    self._is_dirty = True
    return len(text)

  def flush(self) -> None:
    if time.monotonic() - self._uploaded < _SECONDS:
      return
    with contextlib.suppress(OSError):  # tried again with the next lines
      self.upload()

  def close(self) -> None:
    self.upload()

  def __enter__(self) -> "Segments":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def upload(self) -> None:
    """Raises OSError."""
    self._uploaded = time.monotonic()
    if not self._is_dirty:
      return
    with atomic_file(os.path.join(self._path, self._name)) as file:
      file.writelines(self._lines)
    self._is_dirty = False
    if sum(map(len, self._lines)) > _SEGMENT:
      self._names.append(self._name)
      self._name, self._lines = _name(self._names), []


def _segments(path: str) -> list[str]:
  """The names of the segments, in order; none of a file on a disk."""
  return sorted(list_existing(path))


def _name(segments: list[str], kind: str = "") -> str:
  """Name of the next segment."""
  last = int(segments[-1].removesuffix(_WHOLE)) if segments else 0
  return f"{last + 1:06}{kind}"
