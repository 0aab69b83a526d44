"""Trackio: a database in `trackio/` of the run's folder; TRACKIO_DIR names another place."""

import contextlib
import contextvars
import io
import os
from collections.abc import Mapping

from gpt_jax.training.trackers import TrackedRun

PACKAGE, EXTRA = "trackio", "trackio"
ELSEWHERE = "TRACKIO_DIR"


class Run:
  """A run in a project of Trackio."""

  def __init__(self, run: TrackedRun):
    folder = os.path.join(os.path.abspath(run.root), "trackio")
    # Trackio reads it when it is imported; a process has one folder.
    os.environ.setdefault("TRACKIO_DIR", folder)
    import trackio

    self.id = run.id or run.name.replace("/", "-")
    # In a context of its own, so that it is not "the current run": a process may log several, and
    # trackio would end that one again at exit.
    begin = contextvars.copy_context().run
    with contextlib.redirect_stdout(io.StringIO()):  # how to look at it, at each start
      self._run = begin(
        trackio.init,
        os.environ.get("TRACKIO_PROJECT", "gpt_jax"),
        name=self.id,
        config=dict(run.settings),
        resume="allow",
        auto_log_cpu=False,  # memory is among the values
      )

  def log(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log(dict(values), step=step)

  def close(self, failed: bool) -> None:
    self._run.finish()  # prints a line


def start(run: TrackedRun) -> Run:
  return Run(run)
