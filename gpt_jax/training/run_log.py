"""What a run writes about itself, read leniently: metrics.jsonl and other files of JSON lines, each
with its "step", and plan.json: what it set out to do, on what, and how it ended.

The objects of a store cannot be appended to. There, FILE is a folder of segments FILE/000001, …;
each is written again until it is long enough. FILE/000007-whole has all lines before it.
"""

import contextlib
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

import jax

from gpt_jax import files
from gpt_jax.errors import InputError
from gpt_jax.files import (
  atomic_file,
  exists,
  list_existing,
  open_regular,
  parse_json,
  read_json,
  remove,
  write_json,
)
from gpt_jax.parallel.memory import Forecast

METRICS = "metrics.jsonl"
_SEGMENT = 256 << 10  # characters
_SECONDS = 10.0  # between uploads that nobody asks for
_WHOLE = "-whole"
_PLAN = "plan.json"
_MAX_PLAN = 1 << 20  # bytes
# Their command resumes the run when it is given again.
_PROGRAMS = ("pretrain", "finetune", "label", "reproduce")


def read_lines(path: str) -> Iterator[str]:
  """The lines, with their ends. Raises OSError."""
  segments = _segments(path)
  # The last whole segment repeats all lines before it.
  whole = [i for i, name in enumerate(segments) if name.endswith(_WHOLE)]
  segments = segments[whole[-1] if whole else 0 :]
  for part in [os.path.join(path, name) for name in segments] or [path]:
    with io.TextIOWrapper(open_regular(part), "utf-8", "replace") as file:
      yield from file


def cut_back(path: str, step: int) -> None:
  """Removes the entries after a step (0: all), and a line cut off by a kill; atomic."""
  if not exists(path):
    return

  def is_kept(line: str) -> bool:
    with contextlib.suppress(ValueError, KeyError, TypeError):  # damaged, or no entry
      return bool(step) and line.endswith("\n") and json.loads(line)["step"] <= step
    return False

  kept = filter(is_kept, read_lines(path))
  before = _segments(path)
  with atomic_file(os.path.join(path, _name(before, _WHOLE)) if before else path) as file:
    file.writelines(kept)
  # Removed after the new segment is there: a kill in between leaves all lines readable.
  for name in before:
    remove(os.path.join(path, name))


def open_to_append(path: str) -> "IO[str] | Segments":
  """Opens a file whose lines are appended; on a store, `flush` uploads now and then."""
  return files.open_to_append(path) or Segments(path)


class Segments:
  """A file of a store that is appended to. `flush` passes over errors of the store."""

  def __init__(self, path: str):
    self._path, self._names = path, _segments(path)
    self._lines: list[str] = []
    self._name, self._uploaded = _name(self._names), time.monotonic()
    self._is_dirty = False

  def write(self, text: str) -> int:
    self._lines.append(text)
    self._is_dirty = True
    return len(text)

  def flush(self) -> None:
    if time.monotonic() - self._uploaded < _SECONDS:
      return
    with contextlib.suppress(OSError):  # tried again with the next lines
      self.upload()

  def __enter__(self) -> "Segments":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def upload(self) -> None:
    """Uploads what was written; more may follow. Raises OSError."""
    self._uploaded = time.monotonic()
    if not self._is_dirty:
      return
    with atomic_file(os.path.join(self._path, self._name)) as file:
      file.writelines(self._lines)
    self._is_dirty = False
    if sum(map(len, self._lines)) > _SEGMENT:
      self._names.append(self._name)
      self._name, self._lines = _name(self._names), []

  close = upload  # as a file on a disk is closed


def _segments(path: str) -> list[str]:
  """The names of the segments, in order; none of a file on a disk."""
  return sorted(list_existing(path))


def _name(segments: list[str], kind: str = "") -> str:
  """Name of the next segment."""
  last = int(segments[-1].removesuffix(_WHOLE)) if segments else 0
  return f"{last + 1:06}{kind}"


def read_metrics(workdir: str) -> list[dict[str, Any]]:
  """The entries of a run's metrics.jsonl, each with its "step"; other lines are left out."""
  path, entries = os.path.join(workdir, METRICS), []
  try:
    for line in read_lines(path):
      with contextlib.suppress(ValueError):
        entries.append(parse_json(line))
  except OSError as error:
    raise InputError(
      f"{path}: {error.strerror}; {workdir!r} should be the folder of a run"
    ) from error
  return [entry for entry in entries if isinstance(entry, dict) and is_step(entry.get("step"))]


def series(entries: list[dict[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
  """The steps at which a metric was logged, and its values: None where it was not finite."""
  logged = [entry for entry in entries if name in entry]
  return [entry["step"] for entry in logged], [finite(entry[name]) for entry in logged]


def curve(workdir: str, name: str) -> tuple[list[int], list[float]]:
  """A metric of a run for a plot, such as "loss" or "valid_loss": its steps and its values."""
  entries = read_metrics(workdir)
  points = [point for point in zip(*series(entries, name), strict=True) if point[1] is not None]
  if not points:
    names = sorted({key for entry in entries for key in entry} - {"step", "time"})
    path = os.path.join(workdir, METRICS)
    raise InputError(f"{path}: has no {name!r}; it has {', '.join(names) or 'nothing'}")
  steps, values = zip(*points, strict=True)
  return list(steps), list(values)


class Baselines(NamedTuple):
  """Reference values of a run."""

  # Unigram entropies of training and held-out text in nats, times Objective.word_share, at which
  # the loss per token of a model stays that has learned only word frequencies; None: no token is
  # predicted.
  entropies: tuple[float, float] | None = None
  metric: str = "loss"  # the name of the loss per token, see ModelConfig.token_metric
  rows_per_epoch: int = 0  # of text, some of them padded, or examples; 0: not known
  held_out_rows: int = 0  # of text; 0: not known


def write_plan(
  workdir: str, total_steps: int, start_step: int, baselines: Baselines, forecast: Forecast
) -> None:
  """Writes plan.json, or adds another start to it: what the run sets out to do, and on what."""
  earlier = read_plan(workdir) if start_step else {}
  starts = earlier.get("starts", [])
  starts.append({"step": start_step, "time": round(time.time(), 3)})
  of_train, of_held_out = baselines.entropies or (None, None)
  kinds = sorted({device.device_kind for device in jax.devices()})
  plan = {
    "command": _command(),
    "total_steps": total_steps,
    "unigram_entropy": of_train,
    "held_out_entropy": of_held_out,
    "token_metric": baselines.metric,
    "rows_per_epoch": baselines.rows_per_epoch,
    "held_out_rows": baselines.held_out_rows,
    "devices": f"{jax.device_count()} x {', '.join(kinds)}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "starts": starts,
    "forecast": forecast._asdict(),
  }
  if earlier and start_step >= total_steps:  # nothing is left to do: what the run took stays
    plan = earlier | {"starts": starts}
  write_json(os.path.join(workdir, _PLAN), plan)


def write_end(workdir: str, error: BaseException | None, outcome: Mapping[str, float]) -> None:
  """Adds to plan.json how this start of the run ended: "ended", "error" after an error, and the
  "outcome": "steps", "memory" in bytes at the peak, the seconds "training" and "other".
  """
  plan = read_plan(workdir)
  if outcome.get("steps") or not plan.get("outcome"):
    plan["outcome"] = dict(outcome)
  if isinstance(error, (KeyboardInterrupt, SystemExit)):
    plan["ended"] = "interrupted"
  elif error is not None:
    plan["ended"], plan["error"] = "error", f"{error}"[:500]
  else:
    plan["ended"] = "done"
  write_json(os.path.join(workdir, _PLAN), plan)


def _command() -> str:
  """The command that runs this process; "" if it is no program of ours, as in a notebook."""
  script = os.path.basename(sys.argv[0])
  program = script.removeprefix("gpt-jax-").removesuffix(".py")
  if program not in _PROGRAMS:
    return ""
  interpreter = ["python"] if script.endswith(".py") else []
  return shlex.join([*interpreter, *sys.argv])


def read_plan(workdir: str) -> dict[str, Any]:
  """The content of plan.json, with well-formed "starts"; {} if there is none that can be read."""
  try:
    plan = read_json(os.path.join(workdir, _PLAN), _MAX_PLAN)
  except (OSError, ValueError):
    return {}
  if not isinstance(plan, dict):
    return {}
  for name in ("forecast", "outcome"):
    figures = plan.get(name)
    figures = figures if isinstance(figures, dict) else {}
    plan[name] = {key: value for key, value in figures.items() if finite(value) is not None}
  starts, plan["starts"] = plan.get("starts"), []
  for start in starts if isinstance(starts, list) else []:
    is_dated = isinstance(start, dict) and finite(start.get("time")) is not None
    if is_dated and is_step(start.get("step")):
      plan["starts"].append(start)
  return plan


def is_step(value: Any) -> bool:
  """Whether a value of a file is a number of updates."""
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def finite(value: Any) -> float | None:
  """A finite number as it is, None for everything else."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return float(value) if abs(value) < 1e300 else None
