"""Checkpoints on stores that orbax does not write to: s3://. They pass through this machine's disk.

For runs of one process: orbax's files of several hosts would have to meet on one disk.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import orbax.checkpoint as ocp

from gpt_jax import files
from gpt_jax.errors import InputError

COMMITTED = "commit_success.txt"  # written last, by orbax on gs:// as well


def is_staged(path: str) -> bool:
  """Whether checkpoints at a path pass through this machine's disk."""
  return os.fspath(path).startswith("s3://")


def check_workdir(workdir: str) -> None:
  """Raises InputError for a URL at which this run cannot save checkpoints."""
  files.check_path(workdir)
  if is_staged(workdir) and jax.process_count() > 1:
    raise InputError(
      f"{workdir}: the checkpoints of a run on several hosts can be on gs:// or a disk that all "
      "hosts share; on s3:// those of a single host can"
    )


def committed_steps(folder: str) -> list[int]:
  """The steps of the complete checkpoints in a folder of a store, oldest first."""
  steps = sorted(int(name) for name in files.list_existing(folder) if name.isdigit())
  return [step for step in steps if files.exists(os.path.join(folder, str(step), COMMITTED))]


class StagedManager:
  """The subset of ocp.CheckpointManager that `Checkpoints` uses; writes the same files.

  A checkpoint is written to a temporary folder while the run waits, and uploaded in the background.
  The lease of the run folder keeps other runs out of this temporary folder. A failed upload is
  retried.

  Args:
    folder: URL of the checkpoints.
    kept: which of the saved steps to keep.
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
    del force
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
