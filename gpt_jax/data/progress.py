"""Progress of a long pass over documents: a bar on a terminal, in a log a line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from gpt_jax.errors import counted

FIRST_LINE, LINES = 10.0, 60.0  # seconds until the first line in a log, and between the next ones


@contextlib.contextmanager
def progress(
  label: str, total: int | None, stream: TextIO | None = None
) -> Iterator[Callable[[int, int], None]]:
  """Says what is done, and how much of it.

  Args:
    label: what is done.
    total: characters; None if unknown.
    stream: default: standard error.

  Yields:
    add(characters, documents): that so much has been done since the last call.
  """
  stream = stream or sys.stderr
  if bar := _bar(label, total, stream):
    with bar:
      yield _bar_adder(bar)
    return
  log = _Log(label, total, stream)
  yield log.add


def _bar(label: str, total: int | None, stream: TextIO):
  """A progress bar of tqdm; None if it is not installed, or if nobody watches."""
  if not stream.isatty():
    return None
  try:
    import tqdm
  except ImportError:
    return None
  bar = tqdm.tqdm(desc=label, total=total, unit="B", unit_scale=True, file=stream)
  bar.refresh()
  return bar


def _bar_adder(bar) -> Callable[[int, int], None]:
  documents = 0

  def add(characters: int, more: int) -> None:
    nonlocal documents
    documents += more
    bar.set_postfix_str(counted(documents, "document"), refresh=False)
    bar.update(characters)

  return add


class _Log:
  """Lines such as "counting words: 12 documents, 35.2 of 75.1 MB, 5.1 MB/s, 8 s left"."""

  def __init__(self, label: str, total: int | None, stream: TextIO):
    self._label, self._total, self._stream = label, total, stream
    self._characters = self._documents = 0
    self._began = time.monotonic()
    self._due = self._began + FIRST_LINE
    size = "" if total is None else f" {total / 1e6:,.1f} MB"
    self._print(f"{label}:{size} …")

  def add(self, characters: int, documents: int) -> None:
    self._characters += characters
    self._documents += documents
    now = time.monotonic()
    if now < self._due:
      return
    self._due = now + LINES
    rate = max(1.0, self._characters / (now - self._began))
    done, rest = f"{self._characters / 1e6:,.1f} MB", ""
    if self._total is not None and self._total > self._characters:
      done = f"{self._characters / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"
      rest = f", {(self._total - self._characters) / rate:,.0f} s left"
    self._print(
      f"{self._label}: {counted(self._documents, 'document')}, {done}, {rate / 1e6:.1f} MB/s{rest}"
    )

  def _print(self, line: str) -> None:
    print(line, file=self._stream, flush=True)
