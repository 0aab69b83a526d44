"""A pool of worker processes that maps a function over a stream, in order and in bounded memory."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from gpt_jax.errors import InputError

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
  """A pool of fresh processes, which end when this one is gone."""
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
