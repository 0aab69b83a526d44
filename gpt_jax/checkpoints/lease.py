"""The lock of a run folder on a store, which has no file locks: a lease that its owner renews.

`<workdir>/lock/<n>` names the n-th owner and when its lease runs out. An object is created only if
there is none of this name, so one process becomes the n-th owner; whoever sees a later number has
lost the folder. The last object stays, so that no number is given twice. Clocks of the machines may
differ by less than the lease; so a lease whose time is later than that allows, of a wrong clock or
damaged, is waited for no longer than that.
"""

import contextlib
import errno
import os
import socket
import sys
import threading
import time
import uuid
from typing import Any

from gpt_jax import files
from gpt_jax.errors import InputError
from gpt_jax.files import is_running
from gpt_jax.parallel.processes import is_main_process

SECONDS = 60.0  # that a lease lasts, and so that a killed run keeps its folder
_RENEWALS = 4  # tries within a lease
_BOOT = "/proc/sys/kernel/random/boot_id"
_PROCESSES = "/proc/self/ns/pid"  # containers with numbers of processes of their own
_held: set[str] = set()  # keys of the leases of this process


class Lease:
  """Owns a run folder on a store until `close`. Only process 0 takes it."""

  def __init__(self, workdir: str):
    self._folder = os.path.join(files.absolute(workdir), "lock")
    self._key = uuid.uuid4().hex
    self._owner = [_machine(), os.getpid(), self._key]
    self._closed = threading.Event()
    self._thread: threading.Thread | None = None
    if not is_main_process():
      return
    try:
      self._number = self._take(workdir)
    except OSError as error:
      raise InputError(f"{workdir}: cannot be written ({error.strerror})") from error
    _held.add(self._key)
    self._thread = threading.Thread(target=self._renew, daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Releases the lease; if that fails, it expires."""
    if self._thread is None or self._closed.is_set():
      return
    # The thread ends first: a renewal after the release would keep the folder taken.
    self._closed.set()
    self._thread.join()
    _held.discard(self._key)
    with contextlib.suppress(OSError):
      self._write(self._number, until=0.0)

  def __enter__(self) -> "Lease":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _take(self, workdir: str) -> int:
    """Becomes the next owner; its number."""
    numbers = self._numbers()
    if numbers:
      self._await_end(workdir, numbers[-1])
    number = numbers[-1] + 1 if numbers else 1
    with contextlib.suppress(FileExistsError):  # perhaps our own: written twice, one answer lost
      self._write(number, time.time() + SECONDS, overwrite=False)
    if self._read(number)["owner"] != self._owner:
      raise InputError(f"{workdir}: another run has begun there just now")
    # Only now: the highest number must always be there, so that none is given twice.
    for old in numbers:
      files.remove(self._path_of(old))
    return number

  def _await_end(self, workdir: str, number: int) -> None:
    """Waits until a lease runs out. Raises InputError if its owner renews it."""
    lease = before = self._read(number)
    if self._is_over(lease):
      return
    longest = 2 * SECONDS  # a lease, and as much for the difference of the clocks
    seconds = min(longest, lease["until"] - time.time())  # in this order also of NaN
    end = time.monotonic() + longest
    notice = f"a run that is at work, or was killed, has a lease for {seconds:.0f} s; waiting"
    print(f"{workdir}: {notice}", file=sys.stderr, flush=True)
    while not self._is_over(lease):
      if lease["until"] > before["until"]:
        raise InputError(
          f"{workdir}: another run is at work there; wait until it ends, or use another folder"
        )
      if time.monotonic() > end:
        return
      time.sleep(min(1.0, SECONDS / _RENEWALS))
      before, lease = lease, self._read(number)

  def _renew(self) -> None:
    until = time.time() + SECONDS
    while not self._closed.wait(SECONDS / _RENEWALS):
      try:
        if max(self._numbers(), default=0) > self._number:
          self._end("another run has taken this folder", os.EX_TEMPFAIL)
          return
        renewed = time.time() + SECONDS
        self._write(self._number, renewed)
        until = renewed
      except OSError as error:
        # Others may take the folder from here on: better one run less than two that write.
        if time.time() > until:
          # After a refusal the user must sign in; after an outage the same command is enough.
          code = 2 if error.errno == errno.EACCES else os.EX_TEMPFAIL
          self._end(f"the lease could not be renewed for {SECONDS:.0f} s ({error.strerror})", code)

  def _end(self, reason: str, code: int) -> None:
    # Not an exception: the main thread may wait on a device or a store for minutes.
    print(f"error: {self._folder}: {reason}; ending", file=sys.stderr, flush=True)
    os._exit(code)

  def _numbers(self) -> list[int]:
    if not files.is_folder(self._folder):
      return []
    return sorted(int(name) for name in files.list_folder(self._folder) if name.isdecimal())

  def _path_of(self, number: int) -> str:
    return os.path.join(self._folder, str(number))

  def _write(self, number: int, until: float, overwrite: bool = True) -> None:
    value = {"owner": self._owner, "until": until}
    files.write_json(self._path_of(number), value, overwrite=overwrite)

  def _is_over(self, lease: dict[str, Any]) -> bool:
    """Whether a lease has run out, or its owner was killed on this machine."""
    machine, process, key = lease["owner"]
    # is_running is false of this very process, whose leases are in _held.
    was_killed = machine == _machine() and key not in _held and not is_running(process)
    return was_killed or lease["until"] <= time.time()

  def _read(self, number: int) -> dict[str, Any]:
    """A lease; if it was given back or is damaged, one that has run out."""
    try:
      lease = files.read_json(self._path_of(number), 1 << 16)
      machine, process, key = lease["owner"]
      hash(key)  # it is looked up in a set; TypeError for a list
      return {"owner": [machine, int(process), key], "until": float(lease["until"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
      return {"owner": ["", 0, ""], "until": 0.0}


def _machine() -> str:
  """Identifies a machine, and a container on it, until it starts again."""
  with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as file:
    boot, processes = file.read().strip(), os.stat(_PROCESSES).st_ino
    return f"{socket.gethostname()} {boot} {processes}"
  return f"{socket.gethostname()} {uuid.getnode()}"
