"""The numbers of launch/diagnose.py as tables, one for each part."""

from collections.abc import Callable
from typing import Any

Table = list[list[Any]]


def tables(result: dict[str, Any]) -> dict[str, Table]:
  """Rows of each part that was measured, the first of them names."""
  makers: dict[str, Callable[[Any], Table]] = {
    "gradients": _gradients,
    "scaling": _scaling,
    "rates": _rates,
    "sampling": _sampling,
  }
  return {part: make(result[part]) for part, make in makers.items() if part in result}


def _gradients(models: list[dict[str, Any]]) -> Table:
  """A row for each model, state (trained or fresh), layer and position."""
  rows: Table = [["model", "state", "layer", "position", "of_text", "of_last"]]
  for model in models:
    for state in ("trained", "fresh"):
      norms = model[state]
      for layer, of_text, of_last in zip(
        model["layers"], norms["of_text"], norms["of_last"], strict=True
      ):
        for position, values in enumerate(zip(of_text, of_last, strict=True)):
          rows.append([model["name"], state, layer, position, *values])
  return rows


def _scaling(part: dict[str, Any]) -> Table:
  names = ["width", "parameters", "steps", "tokens", "flops", "seconds", "loss"]
  rows: Table = [[*names, "by_the_law", "fitted"]]
  for run in part["runs"]:
    rows.append([*(run[name] for name in names), run.get("fitted"), True])
  if "next" in part:
    rows.append([*(part["next"][name] for name in names), part["next"]["predicted"], False])
  return rows


def _rates(part: dict[str, Any]) -> Table:
  rows: Table = [["rate", "seed", "first_loss", "loss", "refused", "outcome"]]
  for rate in part["rates"]:
    for run in rate["runs"]:
      rows.append([rate["rate"], *(run[name] for name in rows[0][1:])])
  return rows


def _sampling(models: list[dict[str, Any]]) -> Table:
  measures = [name for name in models[0]["held_out"] if name != "sample"]
  rows: Table = [["model", "temperature", *measures]]
  for model in models:
    for values in [model["held_out"], *model["temperatures"]]:
      temperature = values.get("temperature", "held-out text")
      rows.append([model["name"], temperature, *(values[name] for name in measures)])
  return rows
