"""The signals that ask a program to end: Ctrl-C, SIGTERM, a closed terminal, Slurm's warning."""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

# A terminal that closes sends SIGHUP; `sbatch --signal=USR1@120` sends SIGUSR1.
SAVING: tuple[int, ...] = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1


@contextlib.contextmanager
def handle(handler: Callable[[int, Any], None], numbers: tuple[int, ...]) -> Iterator[None]:
  """Calls `handler` at these signals until the block ends, in the main thread; those that the
  process ignores stay ignored, as SIGHUP under nohup.
  """
  before = {number: signal.getsignal(number) for number in numbers}
  before = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
  for number in before:
    signal.signal(number, handler)
  try:
    yield
  finally:
    for number, was in before.items():
      signal.signal(number, was)


def leave_closed_terminal() -> None:
  """Sends output that goes to a terminal that has closed nowhere: printing it would fail."""
  for descriptor in (1, 2):
    output = select.poll()
    output.register(descriptor, 0)
    if any(event & (select.POLLHUP | select.POLLERR) for _, event in output.poll(0)):
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, descriptor)
      os.close(nowhere)
