"""Ends a run that hangs, with the stack of every thread, so that a scheduler starts it again."""

import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import jax

LEAST = 300.0  # seconds without a step before a run counts as hanging
MEDIANS = 20  # the same, in medians of the time that a step takes
_RECENT = 101  # steps that the median is of
_KNOWN = 5  # fewer tell nothing
_INTERVAL = 5.0  # seconds between two checks


class Watchdog:
  """Watches the steps of a run from a thread of its own, as a context manager.

  A run hangs if no step ends for LEAST seconds and for MEDIANS times as long as a step takes. It is
  not judged before it has made a few steps, the first of which compiles, nor while it is `paused`;
  and time in which the whole process is stopped, by Ctrl-Z or with its machine, does not count.
  """

  def __init__(
    self, end: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
  ):
    self._end, self._clock = end or end_with_stacks, clock
    self._step, self._is_paused, self._idle = 0, False, 0.0  # seconds awake since the last step
    self._since: float | None = None  # when the last step or pause ended
    self._seconds: deque[float] = deque(maxlen=_RECENT)  # of each of the last steps
    self._stopped = threading.Event()

  def __enter__(self):
    if not hasattr(sys, "ps1"):  # in a notebook somebody is there, whose variables would be lost
      threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
    return self

  def __exit__(self, *_):
    self._stopped.set()

  def step(self, number: int) -> None:
    """Records that a step has ended."""
    now = self._clock()
    if self._since is not None:
      self._seconds.append(now - self._since)
    self._step, self._since, self._idle = number, now, 0.0

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """A context in which no step is expected, as during an evaluation."""
    self._is_paused = True
    try:
      yield
    finally:
      self._since, self._idle, self._is_paused = self._clock(), 0.0, False

  def check(self) -> None:
    """Ends the process if it hangs; called every _INTERVAL seconds that the process is awake."""
    self._idle += _INTERVAL
    if self._is_paused or self._idle < LEAST or len(self._seconds) < _KNOWN:
      return
    # A copy: the loop's thread appends meanwhile.
    median = statistics.median(tuple(self._seconds))
    if self._idle >= MEDIANS * median and not _is_debugged():
      self._end(
        f"no step has ended for {self._idle:,.0f} s, and one takes {median:.3g} s: the run hangs "
        f"after step {self._step:,}; the same command resumes it"
      )

  def _watch(self) -> None:
    while not self._stopped.wait(_INTERVAL):
      self.check()


def end_with_stacks(message: str) -> None:
  """Prints the stack of every thread and one line, and ends the process with code 1."""
  sys.stderr.flush()
  faulthandler.dump_traceback(2, all_threads=True)
  count = jax.process_count()
  who = f"process {jax.process_index()} of {count}: " if count > 1 else ""
  os.write(2, f"error: {who}{message}\n".encode())
  os._exit(1)


def _is_debugged() -> bool:
  """Whether a thread waits in Python's debugger."""
  for frame in sys._current_frames().values():
    while frame is not None:
      if os.path.basename(frame.f_code.co_filename) == "bdb.py":
        return True
      frame = frame.f_back  # type: ignore[assignment]
  return False
