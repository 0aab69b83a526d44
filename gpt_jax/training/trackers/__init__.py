"""Experiment trackers: one file per tracker, named as in tracker=NAME.

To add one, add a file with `PACKAGE`, `ELSEWHERE` and `start` (see TrackerFile) to this folder or
to apps/<app>/trackers/; it edits no other.
metrics.jsonl is the log of a run; a tracker gets the same values, and is never waited for.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import queue
import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

from gpt_jax.config import fields_of
from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.extensions import extensions
from gpt_jax.files import disk_folder, read_json, refuse_url, write_json

DEFAULT = "auto"  # TensorBoard events, if their package is installed
_STATE = "tracker_{}.json"  # the id of the run there, and the last step that it was given
_MAX_WAITING = 1000  # reports; a tracker that is so far behind is turned off
_CLOSING = 20.0  # seconds for the last reports; a preempted run has little more


class TrackedRun(NamedTuple):
  """Description of a run for a tracker.

  Attributes:
    name: the run's name, for people.
    id: of the run in this tracker if an earlier start of the run has made one; "": there is none.
    root: folder on a disk for what the tracker writes, which may have to be made. Several seeds or
      folds share it, unless the run is on a store.
    workdir: of the run; `root` or a folder in it, or a folder on a store.
    is_remote: whether `workdir` is on a store, so that `root` is a temporary folder.
  """

  name: str
  id: str
  root: str
  workdir: str
  step: int
  settings: Mapping[str, int | float | str]
  is_remote: bool = False


class Tracker(Protocol):
  """A run in a tracker.

  Attributes:
    id: under which a resumed run goes on there; "": it has no ids, and drops repeated steps itself.
  """

  id: str

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Adds metrics, which may be nan or infinite. Any exception turns the tracker off."""

  def close(self, failed: bool) -> None:
    """Ends the run there; `failed`: after an error, or before its end."""


class TrackerFile(Protocol):
  """The module of a tracker.

  Attributes:
    PACKAGE: what it imports; the extra of setup.py that installs it has the tracker's name.
    ELSEWHERE: variable of the environment that names a server in place of files in the workdir,
      needed where that is on a store; "": the files can be on a store.
  """

  PACKAGE: str
  ELSEWHERE: str

  def start(self, run: TrackedRun) -> Tracker:
    """Begins a run, or goes on with that of `run.id`. Any exception turns the tracker off."""


@dataclasses.dataclass(frozen=True)
class Trackers:
  """The trackers of a run.

  Attributes:
    root: workdir of all runs, which is TrackedRun.root if it is on a disk.
  """

  names: tuple[str, ...] = ()
  root: str = ""

  def open(self, workdir: str, step: int, config: Any = None) -> "list[Background]":
    """Starts the trackers of a run that goes on from `step`; only the process that logs may."""
    settings: dict[str, int | float | str] = {}
    for name, value, _ in fields_of(config) if config else ():
      settings[name] = value if isinstance(value, (int, float, str)) else str(value)
    return [Background(name, self.root, settings, workdir, step) for name in self.names]


class Background:
  """A tracker in a thread of its own: one that is slow or fails costs the run nothing."""

  def __init__(
    self,
    name: str,
    root: str,
    settings: Mapping[str, int | float | str],
    workdir: str,
    step: int,
  ):
    """Starts the tracker, not in the thread: packages set environment variables and handlers."""
    self.name, self._path = name, os.path.join(workdir, _STATE.format(name))
    self._reports: queue.Queue = queue.Queue(_MAX_WAITING)
    self._failure, self._told = "", False
    self._thread: threading.Thread | None = None
    state = {}
    with contextlib.suppress(OSError, ValueError):
      state = read_json(self._path)
    state = state if isinstance(state, dict) else {}
    last = state.get("step")
    self._last = last if isinstance(last, int) else -1
    title = os.path.basename(os.path.abspath(root))
    if (part := os.path.relpath(workdir, root)) != ".":
      title = f"{title}/{part}"
    folder, identity = disk_folder(root, name), str(state.get("id", ""))
    run = TrackedRun(title, identity, folder, workdir, step, settings, is_remote=folder != root)
    try:
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages, about themselves
        tracker = find_tracker(name).start(run)
      self._remember(tracker, self._last)
    except Exception as error:  # of any kind, from the package, its server or the disk
      self._fail(error)
      return
    self._thread = threading.Thread(target=self._run, args=(tracker,), daemon=True)
    self._thread.start()

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Hands metrics over, and returns at once."""
    if self._failure or self._thread is None:
      return
    try:
      self._reports.put_nowait((step, dict(values)))
    except queue.Full:
      self._failure = f"is {_MAX_WAITING:,} reports behind"

  def warning(self) -> str:
    """A line about a tracker that has failed, the first time it is asked for; else ""."""
    if not self._failure or self._told:
      return ""
    self._told = True
    return (
      f"warning: tracker={self.name}: {self._failure}; it gets nothing more of this start of the "
      "run, whose metrics.jsonl has everything"
    )

  def close(self, failed: bool = False) -> None:
    """Waits for the reports that were handed over, and ends the run in the tracker."""
    if self._thread is None:
      return
    with contextlib.suppress(queue.Full):
      # A bool in place of a report ends the thread, see _run.
      self._reports.put(failed, timeout=0 if self._failure else _CLOSING)
    self._thread.join(0 if self._failure else _CLOSING)
    if self._thread.is_alive() and not self._failure:
      self._failure = f"did not end within {_CLOSING:.0f} s"

  def _run(self, tracker: Tracker) -> None:
    before = newest = self._last  # a resumed run repeats the steps after its checkpoint
    try:
      while not self._failure:
        report = self._reports.get()
        if isinstance(report, bool):
          tracker.close(report)
          return
        step, values = report
        if tracker.id and step <= before:
          continue
        if step > newest:
          newest = step
          # Before it is given: a run that is killed in between loses a report, and repeats none.
          self._remember(tracker, newest)
        tracker.log(step, values)
    except Exception as error:
      self._fail(error)

  def _remember(self, tracker: Tracker, step: int) -> None:
    if tracker.id:
      write_json(self._path, {"id": tracker.id, "step": step})

  def _fail(self, error: Exception) -> None:
    text = " ".join(f"{error}".split())[:200]
    self._failure = f"{type(error).__name__}: {text}" if text else type(error).__name__


def names() -> list[str]:
  """Names of all trackers, without importing them."""
  return list(extensions(__name__))


def parse_trackers(trackers: str, workdir: str) -> Trackers:
  """The trackers of a flag such as "tensorboard,wandb"; "auto" is DEFAULT, "" none."""
  if trackers == DEFAULT:
    found = importlib.util.find_spec(find_tracker("tensorboard").PACKAGE)
    return Trackers(("tensorboard",) if found else (), workdir)
  given = dict.fromkeys(name.strip() for name in trackers.split(",") if name.strip())
  for name in given:
    if name not in names():
      guess = did_you_mean(name, names())
      raise InputError(f"tracker={name}: must be of {', '.join(names())}{guess}")
    file = find_tracker(name)
    if importlib.util.find_spec(file.PACKAGE) is None:
      raise InputError(
        f"tracker={name}: needs {file.PACKAGE}; install the extra {name}: "
        f"pip install 'gpt_jax[{name}]'"
      )
    if file.ELSEWHERE and file.ELSEWHERE not in os.environ:
      advice = f"set {file.ELSEWHERE}, or leave it out"
      refuse_url(workdir, f"tracker={name}: its files cannot be in {workdir}; {advice}")
  return Trackers(tuple(given), workdir)


def find_tracker(name: str) -> TrackerFile:
  """The module of a tracker."""
  return cast(TrackerFile, importlib.import_module(extensions(__name__)[name]))
