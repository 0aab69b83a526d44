"""News of long work: a line at least once a minute, on a terminal or not."""

import sys
import threading
import time
from types import TracebackType

from gpt_jax.parallel.processes import log
from gpt_jax.training.forecast import duration

SECONDS = 50.0  # between two lines
_CLEAR_LINE = "\r\x1b[K"  # fine-tuning may have an open one


class Progress:
  """Logs what is under way, from a thread of its own, until the block ends.

  Args:
    work: its name.
  """

  def __init__(self, work: str):
    self._work = work
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._report, daemon=True)
    self.begin("")

  def begin(self, part: str, total: int = 0, unit: str = "") -> None:
    """Names the part of the work that follows.

    Args:
      part: its name.
      total: how many of the unit it has; 0: unknown.
      unit: what `update` counts, such as "rows"; "": nothing.
    """
    self._part, self._total, self._unit, self._done = part, total, unit, 0
    self._began = time.monotonic()

  def update(self, done: int) -> None:
    """Says how many of the unit are done."""
    self._done = done

  def __enter__(self) -> "Progress":
    self._thread.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._ended.set()
    self._thread.join()

  def _report(self) -> None:
    while not self._ended.wait(SECONDS):
      log(f"{_CLEAR_LINE if sys.stderr.isatty() else ''}{self._line()}")

  def _line(self) -> str:
    taken, done, total = time.monotonic() - self._began, self._done, self._total
    parts = [": ".join(filter(None, (self._work, self._part)))]
    if self._unit:
      parts.append(f"{done:,}{f' of {total:,}' if total else ''} {self._unit}")
    parts.append(f"{duration(taken)} so far")
    if 0 < done < total:
      parts.append(f"about {duration(taken * (total - done) / done)} left")
    return ", ".join(parts)


class TimeLimit:
  """step -> whether the time is over: the same answer however often a step is asked about.

  Args:
    minutes: from now on; 0: for ever.
    progress: is told of each step.
  """

  def __init__(self, minutes: float, progress: Progress):
    self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
    self._progress, self._step, self._over = progress, 0, False

  def __call__(self, step: int) -> bool:
    if step != self._step:
      self._step, self._over = step, time.monotonic() >= self._end
      self._progress.update(step)
    return self._over
