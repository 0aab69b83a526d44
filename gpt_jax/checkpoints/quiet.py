"""Hides what orbax and TensorStore print while checkpoints are open.

Neither has a switch for it: messages are told apart by the file they come from, or by their words.
"""

import logging
import os
import re
import sys
import threading
from typing import Any


class _Quiet:
  """Reentrant context that hides two kinds of noise, and restores everything at its end.

  Orbax logs every step of its work through absl's logger, which is also ours, and raises its errors
  as well. After the error of an array, TensorStore's threads report the others in flight to an
  event loop that is closed, and asyncio those that nobody asked for: a traceback for each.
  """

  def __init__(self):
    self._lock, self._depth = threading.Lock(), 0
    self._hook = sys.unraisablehook

  def __enter__(self) -> None:
    with self._lock:
      self._depth += 1
      if self._depth > 1:
        return
      logging.getLogger("absl").addFilter(_not_by_orbax)
      logging.getLogger("asyncio").addFilter(_not_of_tensorstore)
      self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable

  def __exit__(self, *_) -> None:
    with self._lock:
      self._depth -= 1
      if self._depth:
        return
      logging.getLogger("absl").removeFilter(_not_by_orbax)
      logging.getLogger("asyncio").removeFilter(_not_of_tensorstore)
      if sys.unraisablehook == self._unraisable:  # else someone has replaced it since
        sys.unraisablehook = self._hook

  def stay(self) -> None:
    """Hides it until the process ends: after a store's error, whenever the other requests fail."""
    self.__enter__()

  def _unraisable(self, unraisable: Any) -> None:
    message = str(unraisable.exc_value)
    if "Event loop is closed" not in message and "TensorStore" not in message:
      self._hook(unraisable)


quiet = _Quiet()


def _not_by_orbax(record: logging.LogRecord) -> bool:
  return f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_of_tensorstore(record: logging.LogRecord) -> bool:
  return not re.search("tensorstore|Error (open|read|writ)ing ", record.getMessage())
