"""A tracker in a thread of its own: one that is slow or fails costs the run nothing."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

_MAX_WAITING = 1000  # reports; a tracker that is so far behind is turned off
_CLOSING = 20.0  # seconds for the last reports; a preempted run has little more


class Tracker(Protocol):
  """A run in a tracker.

  Attributes:
    id: under which a resumed run goes on there; "" if nothing needs to be remembered.
  """

  id: str

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Adds metrics, which may be nan or infinite. Any exception turns the tracker off."""

  def close(self, failed: bool) -> None:
    """Ends the run there; `failed`: after an error, or before its end."""


class Background:
  """Hands reports to a tracker until it fails.

  Args:
    name: of the tracker.
    given: metric -> the last step at which the tracker was given it, by an earlier start too.
    remember: called with the tracker and `given` before the tracker gets them, so that a run that
      is killed in between loses a report rather than repeat it.
  """

  def __init__(
    self,
    name: str,
    given: Mapping[str, Any],
    remember: Callable[[Tracker, Mapping[str, int]], None],
  ):
    self.name = name
    self._given = {key: step for key, step in given.items() if isinstance(step, int)}
    self._remember = remember
    self._reports: queue.Queue = queue.Queue(_MAX_WAITING)
    self._failure, self._told = "", False
    self._thread: threading.Thread | None = None

  def start(self, make: Callable[[], Tracker]) -> None:
    """Starts the tracker, here: packages set environment variables and handlers meanwhile."""
    try:
      tracker = make()
      self._remember(tracker, self._given)
    except Exception as error:  # of any kind, from the package, its server or the disk
      self._fail(error)
      return
    self._thread = threading.Thread(target=self._run, args=(tracker,), daemon=True)
    self._thread.start()

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Hands metrics over, and returns at once."""
    if self._failure or self._thread is None:
      return
    try:
      self._reports.put_nowait((step, dict(values)))
    except queue.Full:
      self._failure = f"is {_MAX_WAITING:,} reports behind"

  def warning(self) -> str:
    """A line about a tracker that has failed, the first time it is asked for; else ""."""
    if not self._failure or self._told:
      return ""
    self._told = True
    return (
      f"warning: tracker={self.name}: {self._failure}; it gets nothing more of this start of the "
      "run, whose metrics.jsonl has everything"
    )

  def close(self, failed: bool = False) -> None:
    """Waits for the reports that were handed over, and ends the run in the tracker."""
    if self._thread is None:
      return
    try:
      # A bool in place of a report ends the thread, see _run.
      self._reports.put(failed, timeout=0 if self._failure else _CLOSING)
    except queue.Full:
      pass
    self._thread.join(0 if self._failure else _CLOSING)
    if self._thread.is_alive() and not self._failure:
      self._failure = f"did not end within {_CLOSING:.0f} s"

  def _run(self, tracker: Tracker) -> None:
    try:
      while not self._failure:
        report = self._reports.get()
        if isinstance(report, bool):
          tracker.close(report)
          return
        self._hand_over(tracker, *report)
    except Exception as error:
      self._fail(error)

  def _hand_over(self, tracker: Tracker, step: int, values: dict[str, float]) -> None:
    """Logs what the tracker was not given yet: a resumed run repeats steps after its checkpoint."""
    if tracker.id:
      values = {name: value for name, value in values.items() if self._given.get(name, -1) < step}
      if not values:
        return
      self._given.update(dict.fromkeys(values, step))
      self._remember(tracker, self._given)
    tracker.log(step, values)

  def _fail(self, error: Exception) -> None:
    text = " ".join(f"{error}".split())[:200]
    self._failure = f"{type(error).__name__}: {text}" if text else type(error).__name__
