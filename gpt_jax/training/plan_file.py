"""plan.json of a run: what it set out to do, on what, and how it ended."""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from gpt_jax.files import read_json, write_json
from gpt_jax.training.forecast import Forecast

_PLAN = "plan.json"
_MAX_PLAN = 1 << 20  # bytes
# Their command resumes the run when it is given again.
_PROGRAMS = ("pretrain", "finetune", "label", "reproduce")
_MAX_STARTS = 1000  # a run that is restarted for ever keeps the first and the latest


class Baselines(NamedTuple):
  """Reference values of a run. For a loss per token, in nats: a model that has learned only word
  frequencies stays at the entropies.

  Attributes:
    entropies: unigram entropies of training and held-out text; None: no token is predicted.
    metric: the name of the loss per token, see ModelConfig.token_metric.
    rows_per_epoch: of the training text, some of them padded; 0: no text is read.
  """

  entropies: tuple[float, float] | None = None
  metric: str = "loss"
  rows_per_epoch: int = 0


def write_plan(
  workdir: str, total_steps: int, start_step: int, baselines: Baselines, forecast: Forecast
) -> None:
  """Writes plan.json, or adds another start to it: what the run sets out to do, and on what.

  Args:
    total_steps: length of the run.
    start_step: the step that this start goes on from; 0 forgets earlier starts.
    forecast: what this start is expected to take.
  """
  starts = read_plan(workdir).get("starts", []) if start_step else []
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
    "devices": f"{jax.device_count()} x {', '.join(kinds)}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "starts": starts[:1] + starts[1:][1 - _MAX_STARTS :],
    "forecast": forecast._asdict(),
  }
  write_json(os.path.join(workdir, _PLAN), plan)


def write_end(workdir: str, error: BaseException | None, outcome: Mapping[str, float]) -> None:
  """Adds to plan.json how this start of the run ended: "ended", and "error" after an error.

  Args:
    workdir: of the run.
    error: what ended it; None at its end.
    outcome: what it took: "steps", "memory" in bytes at the peak, and the seconds "training" and
      "other" for evaluations, checkpoints and samples.
  """
  plan = read_plan(workdir) | {"outcome": dict(outcome)}
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
    plan[name] = {key: value for key, value in figures.items() if finite(value) is not None}
  plan["starts"] = [
    start
    for start in starts
    if isinstance(start, dict)
    and is_step(start.get("step"))
    and finite(start.get("time")) is not None
  ]
  return plan


def is_step(value: Any) -> bool:
  """Whether a value of a file is a number of updates."""
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def finite(value: Any) -> float | None:
  """A finite number as it is, None for everything else."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return float(value) if abs(value) < 1e300 else None
