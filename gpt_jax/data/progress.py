"""Progress of long work: a line that is rewritten on a terminal, in a log a line now and then."""

import shutil
import sys
import threading
import time
from typing import TextIO

FIRST, LATER = 10.0, 50.0  # seconds until the first line in a log, and between the next ones
SHOWN = 0.5  # seconds between two lines on a terminal
_CLEAR = "\r\x1b[K"  # to the beginning of the line, and erase what is there


class Console:
  """Lines on a stream (default: standard error), of which a terminal can rewrite the last one."""

  def __init__(self, stream: TextIO | None = None):
    self._stream = stream or sys.stderr
    self.in_place, self._is_open = self._stream.isatty(), False

  def show(self, line: str, stays: bool = True) -> None:
    """Shows a line in the place of the last one if that does not stay; elsewhere all of them do."""
    stays = stays or not self.in_place
    if not stays:
      # A line that wraps could not be rewritten.
      line = line[: shutil.get_terminal_size().columns - 1]
    begin, end = _CLEAR if self.in_place else "", "\n" if stays else ""
    print(f"{begin}{line}", end=end, file=self._stream, flush=True)
    self._is_open = not stays

  def close(self, erase: bool = False) -> None:
    """Ends the last line, or erases it, if it does not stay."""
    if self._is_open:
      print(_CLEAR if erase else "\n", end="", file=self._stream, flush=True)
      self._is_open = False


class Progress:
  """Shows what is under way, from a thread of its own, until the block ends.

  `in_place`: whether a terminal's line is rewritten; not where the work writes lines of its own.
  """

  def __init__(
    self,
    work: str,
    total: int | None = 0,
    unit: str = "",
    in_place: bool = True,
    stream: TextIO | None = None,
  ):
    self._work, self._console = work, Console(stream)
    self._in_place = in_place and self._console.in_place
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._report, daemon=True)
    self.begin("", total, unit)

  def begin(self, part: str, total: int | None = 0, unit: str = "") -> None:
    """Names the part of the work that follows.

    It has `total` (0 or None: unknown) of what `update` counts, a unit such as "rows"; "": nothing
    is counted.
    """
    self._part, self._total, self._unit, self._done = part, total or 0, unit, 0
    self._began = time.monotonic()

  def update(self, done: int) -> None:
    """Says how many of the unit are done."""
    self._done = done

  def add(self, more: int) -> None:
    """Says how many more of the unit are done."""
    self._done += more

  def __enter__(self) -> "Progress":
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._ended.set()
    self._thread.join()
    self._console.close(erase=True)

  def _report(self) -> None:
    first, later = (SHOWN, SHOWN) if self._in_place else (FIRST, LATER)
    while not self._ended.wait(first):
      self._console.show(self._line(), stays=not self._in_place)
      first = later

  def _line(self) -> str:
    taken, done, total = time.monotonic() - self._began, self._done, self._total
    parts = [": ".join(filter(None, (self._work, self._part)))]
    if self._unit:
      parts.append(f"{done:,}{f' of {total:,}' if total else ''} {self._unit}")
    parts.append(f"{duration(taken)} so far")
    if 0 < done < total:
      parts.append(f"about {duration(taken * (total - done) / done)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
  """Such as "36 s", "36 min", "3 h 05 min" or "4.2 days"."""
  if seconds < 99.5:
    return f"{seconds:.0f} s"
  minutes = round(seconds / 60)
  if minutes < 100:
    return f"{minutes} min"
  hours = minutes // 60
  return f"{hours} h {minutes % 60:02} min" if hours < 100 else f"{hours / 24:.1f} days"
