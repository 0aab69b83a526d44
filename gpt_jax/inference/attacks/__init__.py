"""Accuracy under attack. A file here is an attack: its name is the value of `attack`, and its
make_attacked_predictor(model, mesh, radii) measures a classifier under it.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.extensions import extensions

MAX_RADIUS = 1e6


def find_attack(name: str) -> Any:
  attacks = extensions(__name__)
  if name not in attacks:
    raise InputError(f"attack={name}: must be {' or '.join(attacks)}")
  return importlib.import_module(attacks[name])


def format_attack(clean: Mapping[str, float], attacked: Sequence[Mapping[str, float]]) -> str:
  """A table for the console: the metrics without an attack, and a line for each radius."""
  names = [name for name in attacked[0] if name != "radius"]
  width = max(8, *map(len, names))
  lines = ["  ".join(f"{name:>{width}}" for name in ("radius", *names))]
  for measures in ({"radius": 0.0, **clean}, *attacked):
    numbers = [f"{measures[name]:{width}.4f}" for name in names]
    lines.append("  ".join((f"{measures['radius']:>{width}g}", *numbers)))
  return "\n".join(lines)
