"""Run folders on stores: the lock, uploads from this machine's disk, what libraries say of a store.

A run of one process writes a checkpoint to a temporary folder while it waits, and uploads it in the
background. One of several hosts on gs:// writes there by orbax, whose files of several hosts would
have to meet on one disk.
"""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TextIO

import jax
import orbax.checkpoint as ocp

from gpt_jax import files
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.parallel.processes import is_main_process

COMMITTED = "commit_success.txt"  # written last, by orbax on gs:// as well
# In TensorStore's messages.
_OUTAGES, _REFUSALS = "UNAVAILABLE|DEADLINE_EXCEEDED", "UNAUTHENTICATED|PERMISSION_DENIED"
LEASE_SECONDS = 60.0  # so long does a killed run keep its folder
_RENEWALS = 4  # of a lease, before it runs out
_BOOT = "/proc/sys/kernel/random/boot_id"
_PROCESSES = "/proc/self/ns/pid"  # containers with numbers of processes of their own
_held: set[str] = set()  # keys of the leases of this process


class Lease:
  """Owns a run folder on a store, which has no file locks, until `close`. Only process 0 takes it.

  `<workdir>/lock/<n>` names the n-th owner and when its lease runs out. An object is created only
  if there is none of this name, so one process becomes the n-th owner; whoever sees a later number
  has lost the folder. The last object stays, so that no number is given twice. Clocks of the
  machines may differ by less than the lease; so a lease whose time is later than that allows, of a
  wrong clock or damaged, is waited for no longer than that.
  """

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
      self._write(number, time.time() + LEASE_SECONDS, overwrite=False)
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
    longest = 2 * LEASE_SECONDS  # a lease, and as much for the difference of the clocks
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
      time.sleep(min(1.0, LEASE_SECONDS / _RENEWALS))
      before, lease = lease, self._read(number)

  def _renew(self) -> None:
    until = time.time() + LEASE_SECONDS
    while not self._closed.wait(LEASE_SECONDS / _RENEWALS):
      try:
        if max(self._numbers(), default=0) > self._number:
          self._end("another run has taken this folder", os.EX_TEMPFAIL)
          return
        renewed = time.time() + LEASE_SECONDS
        self._write(self._number, renewed)
        until = renewed
      except OSError as error:
        # Others may take the folder from here on: better one run less than two that write.
        if time.time() > until:
          # After a refusal the user must sign in; after an outage the same command is enough.
          code = 2 if error.errno == errno.EACCES else os.EX_TEMPFAIL
          self._end(
            f"the lease could not be renewed for {LEASE_SECONDS:.0f} s ({error.strerror})", code
          )

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
    was_killed = machine == _machine() and key not in _held and not files.is_running(process)
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


def check_workdir(workdir: str) -> None:
  """Raises InputError for a URL at which this run cannot save checkpoints."""
  files.check_path(workdir)
  if os.fspath(workdir).startswith("s3://") and jax.process_count() > 1:
    raise InputError(
      f"{workdir}: the checkpoints of a run on several hosts can be on gs:// or a disk that all "
      "hosts share; on s3:// those of a single host can"
    )


def lock(workdir: str) -> TextIO | Lease:
  """Opens and locks `<workdir>/lock` until it is closed or the process ends.

  On a store it is a lease, which runs out after a process that was killed.
  """
  if files.is_url(workdir):
    return Lease(workdir)
  # By process 0 alone: the others of this run would be refused on a shared file system.
  taken = "another run is at work there; wait until it ends, or use another folder"
  return files.lock_folder(workdir, taken, is_main_process())


def is_staged(workdir: str) -> bool:
  """Whether checkpoints are written to this machine's disk first, and then uploaded."""
  return files.is_url(workdir) and jax.process_count() == 1


def committed_steps(folder: str) -> list[int]:
  """The steps of the complete checkpoints in a folder, oldest first.

  Unfinished and damaged ones on a disk have names that are no numbers. A store has no atomic
  rename: there a checkpoint counts when its last object is there.
  """
  steps = sorted(int(name) for name in files.list_existing(folder) if name.isdigit())
  if not files.is_url(folder):
    return steps
  return [step for step in steps if files.exists(os.path.join(folder, str(step), COMMITTED))]


class StagedManager:
  """The subset of ocp.CheckpointManager that `Checkpoints` uses; writes the same files to a store.

  The run folder's lease keeps other runs out of the temporary folder; failed uploads are retried.
  """

  def __init__(self, folder: str, kept: Callable[[Iterable[int]], set[int]]):
    self._folder, self._kept = folder, kept
    # The same name for the next run of this folder, which then finds what a killed one left.
    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    self._disk = os.path.join(tempfile.gettempdir(), f"gpt_jax-checkpoints-{os.getuid()}-{name}")
    shutil.rmtree(self._disk, ignore_errors=True)  # of a killed run
    # Fails where another user has made a folder of this name, which could not be removed.
    os.mkdir(self._disk, 0o700)
    self._checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    # A single thread: checkpoints are committed in the order of their steps.
    self._thread = ThreadPoolExecutor(1)
    self._upload: Future[None] | None = None
    self._uploading: list[int] = []
    complete = committed_steps(self._folder)
    for name in files.list_existing(self._folder):
      if name.isdigit() and int(name) not in complete:  # a killed run's upload
        files.remove_folder(os.path.join(self._folder, name))

  def all_steps(self) -> list[int]:
    return sorted({*committed_steps(self._folder), *self._uploading})

  def save(self, step: int, args: Any, force: bool = True) -> None:
    """Writes a checkpoint, and begins to upload it when the one before it is there."""
    self.wait_until_finished()
    copy = os.path.join(self._disk, str(step))
    self._checkpointer.save(copy, args=args)
    self._uploading = [step]
    self._upload = self._thread.submit(self._publish_with_retry, step, copy)

  def wait_until_finished(self) -> None:
    """Returns when all checkpoints are on the store. Raises the error of an upload."""
    upload, self._upload = self._upload, None
    try:
      if upload:
        upload.result()
    finally:
      self._uploading = []

  def check_for_errors(self) -> None:
    """Does nothing: wait_until_finished raises the errors."""

  def reload(self) -> None:
    """Does nothing: there is no cache to refresh."""

  def delete(self, step: int) -> None:
    folder = os.path.join(self._folder, str(step))
    files.remove(os.path.join(folder, COMMITTED))  # first, so that no part is taken for the whole
    files.remove_folder(folder)

  def close(self) -> None:
    self._thread.shutdown()
    self._checkpointer.close()
    shutil.rmtree(self._disk, ignore_errors=True)

  def _publish_with_retry(self, step: int, copy: str) -> None:
    try:
      self._publish(step, copy)
    except files.StoreError as error:
      if error.errno == errno.EACCES:
        raise
      print(f"{self._folder}/{step}: not written; trying again", file=sys.stderr, flush=True)
      self._publish(step, copy)
    self._delete_superseded()

  def _publish(self, step: int, copy: str) -> None:
    target = os.path.join(self._folder, str(step))
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(copy, COMMITTED))  # written anew when all else is there
    files.upload_folder(copy, target)
    with files.atomic_file(os.path.join(target, COMMITTED)) as file:
      file.write("This checkpoint is complete.\n")
    shutil.rmtree(copy, ignore_errors=True)

  def _delete_superseded(self) -> None:
    try:
      steps = set(committed_steps(self._folder))
      for step in sorted(steps - self._kept(steps)):
        self.delete(step)
    except files.StoreError as error:  # the new one is there; the next start removes what is left
      print(f"{self._folder}: an old step is not deleted ({error})", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------- What libraries say of it


@contextlib.contextmanager
def store_errors(folder: str) -> Iterator[None]:
  """Raises Unavailable for what orbax, TensorStore and fsspec raise about a store they write to.

  Raises InputError if it says that the user may not.
  """
  try:
    yield
  except Exception as error:
    disk_is_full = os.strerror(errno.ENOSPC) in str(error)  # of the temporary folder
    if not files.is_url(folder) or isinstance(error, InputError) or disk_is_full:
      raise
    raise _explained(
      error, folder, "cannot be written", "the same command again resumes from the last checkpoint"
    ) from error


def check_reached(error: Exception, folder: str) -> None:
  """Raises Unavailable for an error of reading where a store did not answer, InputError where it
  refuses the user: what it holds may be in order.
  """
  is_outage = isinstance(error, files.StoreError) or files.is_refusal(error)
  is_outage = is_outage or bool(re.search(f"{_OUTAGES}|{_REFUSALS}", str(error)))
  if files.is_url(folder) and is_outage:
    raise _explained(error, folder, "cannot be read") from error


def _explained(error: Exception, folder: str, problem: str, advice: str = "") -> InputError:
  """The one line of an error: an InputError if a store refuses the user, or else Unavailable."""
  if isinstance(error, files.StoreError):
    is_refusal, reason = error.errno == errno.EACCES, str(error.strerror)
  else:
    is_refusal = files.is_refusal(error) or bool(re.search(_REFUSALS, str(error)))
    reason = " ".join(str(error).split())[:200]
    reason += f"; {files.sign_in_advice(folder)}" if is_refusal else ""
  line = f"{folder}: {problem} ({reason}){f'; {advice}' if advice else ''}"
  return InputError(line) if is_refusal else Unavailable(line)


@functools.cache
def hide_noise() -> None:
  """Hides what orbax and TensorStore print, until the process ends.

  Orbax logs every step of its work through absl's logger, which is also ours, and raises its errors
  as well. After the error of an array, TensorStore's threads report the others in flight to an
  event loop that is closed, and asyncio those that nobody asked for: a traceback for each. Neither
  has a switch: messages are told apart by the file they come from, or by their words.
  """
  of_orbax = f"{os.sep}orbax{os.sep}"
  of_tensorstore = re.compile("tensorstore|Error (open|read|writ)ing ")
  logging.getLogger("absl").addFilter(lambda record: of_orbax not in record.pathname)
  logging.getLogger("asyncio").addFilter(
    lambda record: not of_tensorstore.search(record.getMessage())
  )
  hook = sys.unraisablehook

  def unraisable(error: Any) -> None:
    message = str(error.exc_value)
    if "Event loop is closed" not in message and "TensorStore" not in message:
      hook(error)

  sys.unraisablehook = unraisable


def _machine() -> str:
  """Identifies a machine, and a container on it, until it starts again."""
  with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as file:
    boot, processes = file.read().strip(), os.stat(_PROCESSES).st_ino
    return f"{socket.gethostname()} {boot} {processes}"
  return f"{socket.gethostname()} {uuid.getnode()}"
