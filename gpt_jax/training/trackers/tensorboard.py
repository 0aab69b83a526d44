"""TensorBoard: event files in `tensorboard/` of the run's folder, written without TensorFlow."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping

from gpt_jax.files import upload_folder
from gpt_jax.training.trackers import TrackedRun

PACKAGE, ELSEWHERE = "tensorboardX", ""

_SECONDS = 30.0  # between uploads to a store


class EventFiles:
  """Writes scalars; readers drop the steps after the one that a run has resumed from."""

  id = ""

  def __init__(self, run: TrackedRun):
    with _not_importing("torch"):  # takes seconds; only pictures of networks need it
      from tensorboardX import SummaryWriter
    self._folder = os.path.join(run.workdir, "tensorboard")
    # tensorboardX would transfer all events at each flush, and again when it is collected.
    self._copy = run.root if run.is_remote else ""
    self._uploaded = time.monotonic()
    self._writer = SummaryWriter(
      self._copy or self._folder, purge_step=run.step + 1 if run.step else 0
    )
    if not run.step:
      rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
      if rows:
        self._writer.add_text("config", f"| field | value |\n|---|---|\n{rows}", 0)

  def log(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)
    self._writer.flush()
    if self._copy and time.monotonic() - self._uploaded > _SECONDS:
      self._upload()

  def close(self, failed: bool) -> None:
    self._writer.close()
    if self._copy:
      self._upload()
      shutil.rmtree(self._copy)

  def _upload(self) -> None:
    upload_folder(self._copy, self._folder)
    self._uploaded = time.monotonic()


start = EventFiles


@contextlib.contextmanager
def _not_importing(package: str) -> Iterator[None]:
  """Makes the imports of a package within the block fail, unless it is imported already."""
  if package in sys.modules:
    yield
    return
  sys.modules[package] = None  # type: ignore[assignment]  # what importlib documents for this
  try:
    yield
  finally:
    del sys.modules[package]
