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
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TextIO

import jax
import orbax.checkpoint as ocp

from gpt_jax import files
from gpt_jax.checkpoints.lease import Lease
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.parallel.processes import is_main_process

COMMITTED = "commit_success.txt"  # written last, by orbax on gs:// as well
# In TensorStore's messages.
_OUTAGES, _REFUSALS = "UNAVAILABLE|DEADLINE_EXCEEDED", "UNAUTHENTICATED|PERMISSION_DENIED"


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

  The lease of the run folder keeps other runs out of the temporary folder. A failed upload is
  retried.
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

  def _publish(self, step: int, copy: str) -> None:
    target = os.path.join(self._folder, str(step))
    with contextlib.suppress(FileNotFoundError):
      os.remove(os.path.join(copy, COMMITTED))  # written anew when all else is there
    files.upload_folder(copy, target)
    with files.atomic_file(os.path.join(target, COMMITTED)) as file:
      file.write("This checkpoint is complete.\n")
    shutil.rmtree(copy)
    steps = set(committed_steps(self._folder))
    for step in sorted(steps - self._kept(steps)):
      self.delete(step)


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
