"""Experiment trackers: one file per tracker, named as in tracker=NAME.

To add one, add a file with `PACKAGE`, `EXTRA`, `ELSEWHERE` and `start` (see TrackerFile) to this
folder or to apps/<app>/trackers/; it edits no other.
metrics.jsonl is the log of a run; a tracker gets the same values, and is never waited for.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

from gpt_jax.config import fields_of
from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.extensions import extensions
from gpt_jax.files import disk_folder, read_json, refuse_url, write_json
from gpt_jax.training.trackers.background import Background, Tracker

DEFAULT = "auto"  # TensorBoard events, if their package is installed
_STATE = "tracker_{}.json"  # the id of the run there, and what it was given; one for each thread


class TrackedRun(NamedTuple):
  """Description of a run for a tracker.

  Attributes:
    name: the run's name, for people.
    id: of the run in this tracker if an earlier start of the run has made one; "": there is none.
    root: folder on a disk for what the tracker writes, which may have to be made. Several seeds or
      folds share it, unless the run is on a store.
    workdir: of the run; `root` or a folder in it, or a folder on a store.
    step: the step that this start goes on from.
    settings: the fields of the config, by dotted name.
    is_remote: whether `workdir` is on a store, so that `root` is a temporary folder.
  """

  name: str
  id: str
  root: str
  workdir: str
  step: int
  settings: Mapping[str, int | float | str]
  is_remote: bool = False


class TrackerFile(Protocol):
  """The module of a tracker.

  Attributes:
    PACKAGE: what it imports.
    EXTRA: the extra of setup.py that installs it.
    ELSEWHERE: variable of the environment that names a server or folder in place of files in the
      workdir, needed where that is on a store; "": the files can be on a store.
  """

  PACKAGE: str
  EXTRA: str
  ELSEWHERE: str

  def start(self, run: TrackedRun) -> Tracker:
    """Begins a run, or goes on with that of `run.id`. Any exception turns the tracker off."""


@dataclasses.dataclass(frozen=True)
class Trackers:
  """The trackers of a run.

  Attributes:
    names: of the trackers.
    root: workdir of all runs, which is TrackedRun.root if it is on a disk.
    settings: see TrackedRun.
  """

  names: tuple[str, ...] = ()
  root: str = ""
  settings: Mapping[str, int | float | str] = dataclasses.field(default_factory=dict)

  def with_config(self, config: Any) -> "Trackers":
    """These trackers, which are told the fields of a config."""
    settings = {name: _plain(value) for name, value, _ in fields_of(config)}
    return dataclasses.replace(self, settings=settings)

  def open(self, workdir: str, step: int) -> list[Background]:
    """Starts the trackers of a run; only the process that logs may.

    Args:
      workdir: of the run.
      step: the step that it goes on from.
    """
    return [_open(name, self, workdir, step) for name in self.names]


def names() -> list[str]:
  """Names of all trackers, without importing them."""
  return [name for name in extensions(__name__) if name != "background"]


def parse_trackers(trackers: str, workdir: str) -> Trackers:
  """The trackers of a flag such as "wandb,mlflow"; "auto" is DEFAULT, "" none."""
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
        f"tracker={name}: needs {file.PACKAGE}; install the extra {file.EXTRA}: "
        f"pip install 'gpt_jax[{file.EXTRA}]'"
      )
    if file.ELSEWHERE and file.ELSEWHERE not in os.environ:
      advice = f"set {file.ELSEWHERE}, or leave it out"
      refuse_url(workdir, f"tracker={name}: its files cannot be in {workdir}; {advice}")
  return Trackers(tuple(given), workdir)


def find_tracker(name: str) -> TrackerFile:
  """The module of a tracker."""
  return cast(TrackerFile, importlib.import_module(extensions(__name__)[name]))


def metric_name(name: str) -> str:
  """A metric's name with nothing in it that a tracker refuses, as a label of a task may have."""
  return re.sub(r"[^\w./ -]", "_", name)


def _open(name: str, trackers: Trackers, workdir: str, step: int) -> Background:
  """One tracker of a run, which is off if it does not start."""
  path = os.path.join(workdir, _STATE.format(name))
  state = _read_state(path)
  title = os.path.basename(os.path.abspath(trackers.root))
  if (part := os.path.relpath(workdir, trackers.root)) != ".":
    title = f"{title}/{part}"
  root = disk_folder(trackers.root, name)
  identity, is_remote = str(state.get("id", "")), root != trackers.root
  run = TrackedRun(title, identity, root, workdir, step, trackers.settings, is_remote)

  def remember(tracker: Tracker, given: Mapping[str, int]) -> None:
    if tracker.id:  # others know by themselves what they have
      write_json(path, {"id": tracker.id, "given": dict(given)})

  given = state.get("given", {})
  background = Background(name, given if isinstance(given, dict) else {}, remember)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages, about themselves
    background.start(lambda: find_tracker(name).start(run))
  return background


def _read_state(path: str) -> dict[str, Any]:
  with contextlib.suppress(OSError, ValueError):
    state = read_json(path)
    if isinstance(state, dict):
      return state
  return {}


def _plain(value: Any) -> int | float | str:
  return value if isinstance(value, (int, float, str)) else str(value)
