"""Batches built and sent to the device ahead of the steps that take them, on a thread."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

AHEAD = 2  # batches that wait for their step; one more is being built


class Prefetch:
  """The batches of consecutive steps, in order; a context manager that ends its thread.

  Each batch is `batch_at(step)`, so that a run stays a pure function of the step. What it raises is
  raised by `take`, after the batches before it.
  """

  def __init__(self, batch_at: Callable[[int], Any], first: int, end: int):
    """Starts building the batches of the steps from `first` up to, not including, `end`."""
    self._batch_at, self._steps = batch_at, range(first, end)
    self._built: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(AHEAD)
    self._stopped = threading.Event()
    self._thread = threading.Thread(target=self._build, name="batches", daemon=True)

  def __enter__(self):
    if self._steps:
      self._thread.start()
    return self

  def __exit__(self, *_):
    self._stopped.set()
    while self._thread.is_alive():
      self._discard()  # makes room for a batch that the thread wants to hand over
      self._thread.join(0.01)
    self._discard()

  def take(self, running: Any) -> tuple[Any, float]:
    """The next batch, and the seconds that the device had nothing to do because of it.

    Args:
      running: arrays that the step before computes; None: nothing is running.
    """
    seconds = 0.0
    try:
      batch, error = self._built.get_nowait()  # usually the next batch is ready
    except queue.Empty:
      jax.block_until_ready(running)  # until then the device is busy
      began = time.perf_counter()
      batch, error = self._built.get()
      seconds = time.perf_counter() - began
    if error is not None:
      raise error
    return batch, seconds

  def _build(self) -> None:
    try:
      for step in self._steps:
        if self._stopped.is_set():
          return
        self._built.put((self._batch_at(step), None))
    except BaseException as error:  # the loop raises it
      self._built.put((None, error))

  def _discard(self) -> None:
    try:
      while True:
        self._built.get_nowait()
    except queue.Empty:
      pass
