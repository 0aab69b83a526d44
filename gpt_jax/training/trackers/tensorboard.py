"""TensorBoard: event files in `tensorboard/` of the run's folder, written without TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

from gpt_jax.training.trackers import Start

PACKAGE, EXTRA = "tensorboardX", "tensorboard"
ELSEWHERE = ""


class EventFiles:
  """Writes scalars; readers drop the steps after the one that a run has resumed from."""

  id = ""

  def __init__(self, run: Start):
    with _not_importing("torch"):  # takes seconds; only pictures of networks need it
      from tensorboardX import SummaryWriter
    folder = os.path.join(run.workdir, "tensorboard")
    self._writer = SummaryWriter(folder, purge_step=run.step + 1 if run.step else 0)
    if not run.step:
      rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
      if rows:
        self._writer.add_text("config", f"| field | value |\n|---|---|\n{rows}", 0)

  def log(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)
    self._writer.flush()

  def close(self, failed: bool) -> None:
    self._writer.close()


def start(run: Start) -> EventFiles:
  return EventFiles(run)


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
