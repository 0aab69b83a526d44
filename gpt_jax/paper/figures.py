"""The figures of a reproduction, each as PNG and SVG: ours beside the paper's (its figure 2 and
table 5).
"""

from collections.abc import Mapping
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.paper import tables as paper

Points = Mapping[Any, float | None]


def transferred(points: Mapping[str, Points], path: str, note: str) -> None:
  """Figure 2, left: task -> what is transferred -> dev result in percent, written to path.png
  and path.svg.
  """
  figure, axes = _axes()
  for task, values in points.items():
    axes.plot(list(values), list(values.values()), "o-", label=task)
  places = list(next(iter(points.values())))
  for (task, anchors), marker in zip(paper.TRANSFER.items(), "x+", strict=True):
    axes.plot(
      [places[0], places[-1]],
      anchors,
      "k:",
      marker=marker,
      label=f"{task}, the paper's ends, 12 layers",
    )
  below = "what is transferred (a number: so many blocks, and the embeddings)"
  axes.set(xlabel=below, ylabel="dev set, %", title=f"Layers transferred{note}")
  _save(figure, axes, path)


def progress(points: Mapping[tuple[str, str], Mapping[int, float]], path: str, note: str) -> None:
  """Figure 2, right: (task, trunk) -> updates -> zero-shot result from chance, 0, to the best
  supervised model, 1.
  """
  figure, axes = _axes()
  colors = {task: f"C{number}" for number, task in enumerate(paper.ANCHORS)}
  steps = sorted({step for values in points.values() for step in values})
  for (task, trunk), values in points.items():
    style = "-" if trunk == "transformer" else "--"
    axes.plot(
      list(values),
      list(values.values()),
      style,
      marker=".",
      color=colors[task],
      label=f"{task}, {trunk}",
    )
  for task in dict.fromkeys(task for task, _ in points):
    if paper.ANCHORS[task].reached is not None:
      axes.plot(steps[-1], paper.ANCHORS[task].reached, "x", color=colors[task])
  axes.axhline(0, color="gray", linewidth=0.8)
  axes.set(
    xscale="log",
    xlabel="updates (crosses: where the paper's Transformer is after a million)",
    ylabel="0: chance, 1: best supervised model",
    title=f"Zero-shot over pre-training{note}",
  )
  ticks = steps[:1]
  for step in steps:
    if step > 1.4 * ticks[-1]:  # so far apart that their labels are too
      ticks.append(step)
  axes.set_xticks(ticks, [f"{step:,}" for step in ticks])
  axes.set_xticks([], minor=True)
  _save(figure, axes, path)


def ablations(points: Mapping[str, Points], path: str, note: str) -> None:
  """Table 5: row -> column -> result in percent as bars, and the paper's as crosses."""
  figure, axes = _axes()
  columns, width = list(next(iter(points.values()))), 0.8 / len(points)
  known = [column.title for column in paper.TABLES[5].columns]
  for number, (name, values) in enumerate(points.items()):
    places = [n + (number - (len(points) - 1) / 2) * width for n in range(len(columns))]
    heights = [float("nan") if value is None else value for value in values.values()]
    axes.bar(places, heights, width, label=name)
    theirs = [paper.TABLES[5].rows[name][known.index(column)] for column in columns]
    axes.plot(places, theirs, "kx", label=None if number else "the paper's")
  axes.set(
    xticks=range(len(columns)),
    xticklabels=columns,
    ylabel="metric, %",
    title=f"Ablations of table 5{note}",
  )
  _save(figure, axes, path)


def pyplot() -> Any:
  """The library's module; InputError where it is not installed, to be met before the work that
  is to be drawn.
  """
  try:
    import matplotlib
  except ImportError as error:
    raise InputError("figures need matplotlib: pip install 'gpt_jax[plots]'") from error
  matplotlib.use("Agg")
  import matplotlib.pyplot

  return matplotlib.pyplot


def _axes() -> tuple[Any, Any]:
  return pyplot().subplots(figsize=(8, 4.5), layout="constrained")


def _save(figure: Any, axes: Any, path: str) -> None:
  axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
  for kind in ("png", "svg"):
    with atomic_file(f"{path}.{kind}", "wb") as file:
      figure.savefig(file, format=kind, dpi=120)
  pyplot().close(figure)
