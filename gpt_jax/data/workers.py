"""A pool of worker processes that maps a function over a stream, in order and in bounded memory;
and the progress of a long pass: a bar on a terminal, in a log a line now and then.
"""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from gpt_jax.errors import InputError, counted

MAX_WORKERS = 6  # a single process reads for all, and each takes about 100 MB

Pool = concurrent.futures.ProcessPoolExecutor
Task = TypeVar("Task")
Result = TypeVar("Result")


@contextlib.contextmanager
def worker_pool(count: int) -> Iterator[Pool | None]:
  """A pool of `count` processes; None, for this one, if that is enough or no others can be."""
  pool = None
  if count > 1:
    try:
      pool = spawned_pool(count)
    except InputError as error:
      warnings.warn(f"one process does the work: {error}", stacklevel=3)
  try:
    yield pool
  finally:
    if pool is not None:
      pool.shutdown(cancel_futures=True)


def spawned_pool(count: int) -> Pool:
  """A pool of fresh processes, which end when this one is gone. Raises InputError."""
  spawn = multiprocessing.get_context("spawn")  # forking a process that runs JAX's threads can hang
  try:
    return Pool(count, mp_context=spawn, initializer=_exit_with_parent)
  except (OSError, ImportError, NotImplementedError) as error:
    raise InputError(f"there can be no other processes: {error}; is /dev/shm writable?") from error


def map_in_order(
  pool: Pool | None, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[tuple[Task, Result]]:
  """Yields (task, function(task)) for each task, in order; few tasks are held at a time."""
  if pool is None:
    for task in tasks:
      yield task, function(task)
    return
  waiting: collections.deque[tuple[Task, concurrent.futures.Future[Result]]] = collections.deque()
  for task in tasks:
    # This may start a worker, which inherits the signal mask: only the parent handles an interrupt.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting.append((task, pool.submit(function, task)))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Results come in order: without a bound, those behind a slow task would pile up.
    if len(waiting) > 2 * MAX_WORKERS:
      task, future = waiting.popleft()
      yield task, future.result()
  for task, future in waiting:
    yield task, future.result()


def _exit_with_parent() -> None:
  """Ends a worker when its parent is gone, even if that was killed."""

  parent = multiprocessing.parent_process()
  assert parent, "runs in workers only"

  def watch():
    parent.join()
    # Not sys.exit, which would end this thread alone.
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


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
