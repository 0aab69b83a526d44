"""Experiment trackers: one file per tracker, named as in tracker=NAME.

To add one, add a file with `PACKAGE`, `ELSEWHERE` and `start` (see TrackerFile) to this folder or
to apps/<app>/trackers/; it edits no other.
metrics.jsonl is the log of a run; a tracker gets the same values.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from gpt_jax.config import fields_of
from gpt_jax.errors import InputError, did_you_mean, how_to_install
from gpt_jax.extensions import extensions
from gpt_jax.files import disk_folder, read_json, refuse_url, write_json

DEFAULT = "auto"  # TensorBoard events, if their package is installed
_STATE = "tracker_{}.json"  # the id of the run there, and the last step that it was given
_CLOSING = 20.0  # seconds for the last uploads; a preempted run has little more


class TrackedRun(NamedTuple):
  """Description of a run for a tracker."""

  name: str  # for people
  id: str  # in this tracker, if an earlier start of the run has made one; "": none
  # Folder on a disk for what the tracker writes, which may have to be made. Several seeds or folds
  # share it, unless the run is on a store.
  root: str
  workdir: str  # `root` or a folder in it, or a folder on a store
  step: int
  settings: Mapping[str, int | float | str]
  is_remote: bool = False  # whether `workdir` is on a store, so that `root` is a temporary folder


class Tracker(Protocol):
  """A run in a tracker."""

  # Under which a resumed run goes on there; "": it has no ids, and drops repeated steps itself.
  id: str

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Adds metrics, which may be nan or infinite. Any exception turns the tracker off."""

  def close(self, failed: bool) -> None:
    """Ends the run there; `failed`: after an error, or before its end."""


class TrackerFile(Protocol):
  """The module of a tracker."""

  PACKAGE: str  # what it imports; the extra of setup.py that installs it has the tracker's name
  # Variable of the environment that names a server in place of files in the workdir, needed where
  # that is on a store; "": the files can be on a store.
  ELSEWHERE: str

  def start(self, run: TrackedRun) -> Tracker:
    """Begins a run, or goes on with that of `run.id`. Any exception turns the tracker off."""


@dataclasses.dataclass(frozen=True)
class Trackers:
  """The trackers of a run."""

  names: tuple[str, ...] = ()
  root: str = ""  # workdir of all runs, which is TrackedRun.root if it is on a disk

  def open(
    self, workdir: str, step: int, say: Callable[[str], None], config: Any = None
  ) -> "list[OpenTracker]":
    """Starts the trackers of a run that goes on from `step`; only the process that logs may."""
    settings: dict[str, int | float | str] = {}
    for name, value, _ in fields_of(config) if config else ():
      settings[name] = value if isinstance(value, (int, float, str)) else str(value)
    return [OpenTracker(name, self.root, settings, workdir, step, say) for name in self.names]


class OpenTracker:
  """A tracker of a run, which goes on without it if it fails; `say` prints the line about that."""

  def __init__(
    self,
    name: str,
    root: str,
    settings: Mapping[str, int | float | str],
    workdir: str,
    step: int,
    say: Callable[[str], None],
  ):
    self.name, self._say = name, say
    self._path = os.path.join(workdir, _STATE.format(name))
    state = {}
    with contextlib.suppress(OSError, ValueError):
      state = read_json(self._path)
    state = state if isinstance(state, dict) else {}
    last = state.get("step")
    # A resumed run repeats the steps after its checkpoint, up to this one.
    self._before = self._newest = last if isinstance(last, int) else -1
    title = os.path.basename(os.path.abspath(root))
    if (part := os.path.relpath(workdir, root)) != ".":
      title = f"{title}/{part}"
    folder, identity = disk_folder(root, name), str(state.get("id", ""))
    run = TrackedRun(title, identity, folder, workdir, step, settings, is_remote=folder != root)
    self._tracker: Tracker | None = None
    with self._turned_off_by_errors(), warnings.catch_warnings():
      warnings.simplefilter("ignore")  # of the packages, about themselves
      tracker = find_tracker(name).start(run)
      self._remember(tracker)
      self._tracker = tracker

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Adds metrics, unless an earlier start of the run has."""
    tracker = self._tracker
    if tracker is None or (tracker.id and step <= self._before):
      return
    with self._turned_off_by_errors():
      if step > self._newest:
        self._newest = step
        # Before it is given: a run that is killed in between loses a report, and repeats none.
        self._remember(tracker)
      tracker.log(step, values)

  def close(self, failed: bool = False) -> None:
    """Ends the run in the tracker, in _CLOSING seconds at most."""
    tracker = self._tracker
    if tracker is None:
      return

    def end() -> None:
      with self._turned_off_by_errors():
        tracker.close(failed)

    closing = threading.Thread(target=end, daemon=True)
    closing.start()
    closing.join(_CLOSING)
    if closing.is_alive():
      self._turn_off(f"did not end within {_CLOSING:g} s")

  def _remember(self, tracker: Tracker) -> None:
    if tracker.id:
      write_json(self._path, {"id": tracker.id, "step": self._newest})

  @contextlib.contextmanager
  def _turned_off_by_errors(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # of any kind, from the package, its server or the disk
      text = " ".join(f"{error}".split())[:200]
      self._turn_off(f"{type(error).__name__}: {text}" if text else type(error).__name__)

  def _turn_off(self, failure: str) -> None:
    self._tracker = None
    self._say(
      f"warning: tracker={self.name}: {failure}; it gets nothing more of this start of the run, "
      "whose metrics.jsonl has everything"
    )


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
      raise InputError(f"tracker={name}: needs {file.PACKAGE}: {how_to_install(name)}")
    if file.ELSEWHERE and file.ELSEWHERE not in os.environ:
      advice = f"set {file.ELSEWHERE}, or leave it out"
      refuse_url(workdir, f"tracker={name}: its files cannot be in {workdir}; {advice}")
  return Trackers(tuple(given), workdir)


def find_tracker(name: str) -> TrackerFile:
  return cast(TrackerFile, importlib.import_module(extensions(__name__)[name]))
