"""Draws figure 2 of a reproduction next to the paper's values, as PNG and SVG.

Each function writes path.png and path.svg, and appends the note to its title.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpt_jax.apps.report import paper_tables as tables
from gpt_jax.errors import require
from gpt_jax.files import atomic_file

# A curve -> a point of it -> the mean and the standard deviation over seeds, in percent; None draws
# nothing.
Points = Mapping[str, Mapping[str, tuple[float | None, float | None]]]

# Okabe and Ito 2008, Color Universal Design; without yellow, which is faint on white.
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def transferred(points: Points, path: str, note: str) -> None:
  """Draws figure 2 (left): task -> layers transferred -> dev result."""
  axes = _axes()
  for task, values in points.items():
    means, deviations = np.array(list(values.values()), np.float64).T  # nan for None
    axes.errorbar(list(values), means, deviations, fmt="o-", capsize=3, label=task)
  layers = list(next(iter(points.values())))
  for (task, ends), marker in zip(tables.TRANSFER.items(), "x+", strict=True):
    label = f"{task}, the paper's ends, 12 layers"
    axes.plot([layers[0], layers[-1]], ends, "k", linestyle="", marker=marker, label=label)
  axes.set_xlabel("transferred (a number: the embeddings and so many blocks)")
  axes.set(ylabel="dev set, %", title=f"Layers transferred{note}")
  _save(axes, path)


def progress(points: Mapping[tuple[str, str], Mapping[int, float]], path: str, note: str) -> None:
  """Draws figure 2 (right): (task, trunk) -> updates of pre-training -> zero-shot result, scaled: 0
  is chance, 1 the best supervised model.
  """
  axes = _axes()
  colors = dict(zip(tables.ANCHORS, OKABE_ITO, strict=False))
  steps = sorted(set().union(*points.values()))
  for (task, trunk), values in points.items():
    style = "-" if trunk == "transformer" else "--"
    x, y, label = list(values), list(values.values()), f"{task}, {trunk}"
    axes.plot(x, y, style, marker=".", color=colors[task], label=label)
  for task in dict.fromkeys(task for task, _ in points):
    if tables.ANCHORS[task].reached is not None:
      axes.plot(steps[-1], tables.ANCHORS[task].reached, "x", color=colors[task])
  axes.axhline(0, color="gray", linewidth=0.8)
  axes.set(
    xscale="log",
    xlabel="updates (crosses: the paper's Transformer after a million)",
    ylabel="0: chance, 1: best supervised model",
    title=f"Zero-shot over pre-training{note}",
  )
  ticks = steps[:1]
  for step in steps:
    if step > 1.4 * ticks[-1]:  # far enough apart that labels do not overlap
      ticks.append(step)
  axes.set_xticks(ticks, [f"{step:,}" for step in ticks])
  axes.set_xticks([], minor=True)
  _save(axes, path)


def make_figure(width: float = 8, height: float = 4.5) -> Any:
  """An empty figure of matplotlib, in inches; call it also to fail before long work."""
  require("matplotlib", "a figure", "matplotlib", "plots")
  from matplotlib.figure import Figure

  return Figure((width, height), layout="constrained")


def _axes() -> Any:
  axes = make_figure().subplots()
  axes.set_prop_cycle(color=OKABE_ITO)
  axes.spines[["top", "right"]].set_visible(False)
  return axes


def _save(axes: Any, path: str) -> None:
  axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
  for kind in ("png", "svg"):
    with atomic_file(f"{path}.{kind}", "wb") as file:
      axes.figure.savefig(file, format=kind, dpi=120)
