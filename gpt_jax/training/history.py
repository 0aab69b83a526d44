"""The log of a run, read leniently: metrics.jsonl and plan.json."""

import contextlib
import os
import shlex
import sys
import time
from typing import Any

import jax

from gpt_jax.errors import InputError
from gpt_jax.files import parse_json, read_json, write_json
from gpt_jax.training.forecast import Forecast, Outcome
from gpt_jax.training.json_lines import read_lines

METRICS = "metrics.jsonl"
_PLAN = "plan.json"
_MAX_PLAN = 1 << 20  # bytes
# Their command resumes the run when it is given again.
_PROGRAMS = ("pretrain", "finetune", "label", "reproduce")
_MAX_STARTS = 1000  # a run that is restarted for ever keeps the first and the latest


def read_metrics(workdir: str) -> list[dict[str, Any]]:
  """The entries of a run's metrics.jsonl, in order; each has its "step".

  Lines that a kill cut off are left out, as is everything that is no entry.

  Raises:
    InputError: the file cannot be read.
  """
  path, entries = os.path.join(workdir, METRICS), []
  try:
    for line in read_lines(path):
      with contextlib.suppress(ValueError):
        entries.append(parse_json(line))
  except OSError as error:
    raise InputError(
      f"{path}: {error.strerror}; {workdir!r} should be the folder of a run"
    ) from error
  return [entry for entry in entries if isinstance(entry, dict) and _is_step(entry.get("step"))]


def series(entries: list[dict[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
  """The steps at which a metric was logged, and its values: None where it was not finite."""
  logged = [entry for entry in entries if name in entry]
  return [entry["step"] for entry in logged], [_number(entry[name]) for entry in logged]


def curve(workdir: str, name: str) -> tuple[list[int], list[float]]:
  """A metric of a run for a plot: its steps and its values.

  Args:
    workdir: of the run.
    name: of the metric, such as "loss" or "valid_loss".

  Raises:
    InputError: the folder has no metrics.jsonl, or the file no such metric.
  """
  entries = read_metrics(workdir)
  points = [point for point in zip(*series(entries, name), strict=True) if point[1] is not None]
  if not points:
    names = sorted({key for entry in entries for key in entry} - {"step", "time"})
    path = os.path.join(workdir, METRICS)
    raise InputError(f"{path}: has no {name!r}; it has {', '.join(names) or 'nothing'}")
  return [step for step, _ in points], [value for _, value in points if value is not None]


def write_plan(
  workdir: str,
  total_steps: int,
  start_step: int,
  unigram_entropy: float | None,
  forecast: Forecast,
  token_metric: str = "loss",
  held_out_entropy: float | None = None,
) -> None:
  """Writes plan.json, or adds another start to it: what the run sets out to do, and on what.

  Args:
    total_steps: length of the run.
    start_step: the step that this start goes on from; 0 forgets earlier starts.
    unigram_entropy: of the training text, in nats; None for labeled data.
    forecast: what this start is expected to take.
    token_metric: the metric that the entropy bounds.
    held_out_entropy: as unigram_entropy, of the held-out text.
  """
  starts = read_plan(workdir).get("starts", []) if start_step else []
  starts.append({"step": start_step, "time": round(time.time(), 3)})
  kinds = sorted({device.device_kind for device in jax.devices()})
  plan = {
    "command": _command(),
    "total_steps": total_steps,
    "unigram_entropy": unigram_entropy,
    "held_out_entropy": held_out_entropy,
    "token_metric": token_metric,
    "devices": f"{jax.device_count()} x {', '.join(kinds)}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "starts": starts[:1] + starts[1:][1 - _MAX_STARTS :],
    "forecast": forecast._asdict(),
  }
  write_json(os.path.join(workdir, _PLAN), plan)


def write_forecast(workdir: str, forecast: Forecast) -> None:
  """Replaces the forecast in plan.json by one that knows more."""
  plan = read_plan(workdir) | {"forecast": forecast._asdict()}
  write_json(os.path.join(workdir, _PLAN), plan)


def write_end(workdir: str, error: BaseException | None, outcome: Outcome) -> None:
  """Adds to plan.json how this start of the run ended: "ended", and "error" after an error.

  Args:
    workdir: of the run.
    error: what ended it; None at its end.
    outcome: what it took.
  """
  plan = read_plan(workdir) | {"outcome": outcome._asdict()}
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
  starts = plan.get("starts")
  starts = starts if isinstance(starts, list) else []
  for name in ("forecast", "outcome"):
    figures = plan.get(name)
    figures = figures if isinstance(figures, dict) else {}
    plan[name] = {key: value for key, value in figures.items() if _number(value) is not None}
  plan["starts"] = [
    start
    for start in starts
    if isinstance(start, dict)
    and _is_step(start.get("step"))
    and _number(start.get("time")) is not None
  ]
  return plan


def _is_step(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _number(value: Any) -> float | None:
  """A finite number as it is, None for everything else."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return float(value) if abs(value) < 1e300 else None
