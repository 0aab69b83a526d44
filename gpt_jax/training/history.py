"""The metrics of a run, read leniently from its metrics.jsonl."""

import contextlib
import os
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.files import parse_json
from gpt_jax.training.json_lines import METRICS, read_lines
from gpt_jax.training.plan_file import finite, is_step


def read_metrics(workdir: str) -> list[dict[str, Any]]:
  """The entries of a run's metrics.jsonl, in order; each has its "step".

  Lines that a kill cut off are left out, as is everything that is no entry.
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
  return [entry for entry in entries if isinstance(entry, dict) and is_step(entry.get("step"))]


def series(entries: list[dict[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
  """The steps at which a metric was logged, and its values: None where it was not finite."""
  logged = [entry for entry in entries if name in entry]
  return [entry["step"] for entry in logged], [finite(entry[name]) for entry in logged]


def curve(workdir: str, name: str) -> tuple[list[int], list[float]]:
  """A metric of a run for a plot: its steps and its values.

  Args:
    workdir: of the run.
    name: of the metric, such as "loss" or "valid_loss".
  """
  entries = read_metrics(workdir)
  points = [point for point in zip(*series(entries, name), strict=True) if point[1] is not None]
  if not points:
    names = sorted({key for entry in entries for key in entry} - {"step", "time"})
    path = os.path.join(workdir, METRICS)
    raise InputError(f"{path}: has no {name!r}; it has {', '.join(names) or 'nothing'}")
  return [step for step, _ in points], [value for _, value in points if value is not None]
