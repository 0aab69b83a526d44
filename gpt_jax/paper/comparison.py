"""Ours beside the paper's: what a reproduction found, as tables in Markdown and as the points of
its figures.

Results are what reproduce writes as results.json: `runs`, setting -> task -> finetune.summary with
the primary `metric`; `zero_shot`, trunk -> zero_shot.Results; the `budget`; the `checkpoints`.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpt_jax.paper import glue
from gpt_jax.paper import tables as paper


class Setting(NamedTuple):
  """A row of table 5, or a point of figure 2: which checkpoint is fine-tuned, and what differs
  from the recipe.
  """

  name: str
  trunk: str = "transformer"
  changes: tuple[tuple[str, Any], ...] = ()


FULL = Setting("full")
SCRATCH = Setting("no-pretraining", changes=(("transfer_layers", -1),))
ABLATIONS = dict(
  zip(
    paper.TABLES[5].rows,
    (FULL, SCRATCH, Setting("no-aux-lm", changes=(("lm_weight", 0.0),)), Setting("lstm", "lstm")),
    strict=True,
  )
)


def describe(results: dict[str, Any]) -> str:
  """All that is known, in Markdown: the tables with the paper's rows, ours and the difference;
  figure 2's numbers.
  """
  budget = "" if results["budget"] == "paper" else f" ({results['budget']} budget)"
  models = "; ".join(f"{name}: {model}" for name, model in results["checkpoints"].items())
  lines = [
    f"Checkpoints: {models}.",
    "",
    "Percent. The paper's are of the test sets; ours of the dev sets, each seed's best evaluation, means over seeds.",
    "",
  ]
  for number in (2, 3, 4):
    lines += _comparison(
      f"Table {number}", paper.TABLES[number], results["runs"].get(FULL.name, {}), budget
    )
  lines += _ablations(results["runs"], budget)
  lines += _transfer(results["runs"], budget)
  lines += _progress(results["zero_shot"], budget)
  lines += _every_run(results["runs"], budget)
  if results["left_out"]:
    lines += [
      "Left out, for want of data:",
      "",
      *(f"- {each}: {why}" for each, why in results["left_out"].items()),
      "",
    ]
  return "\n".join(lines)


def _comparison(title: str, table: paper.Table, runs: dict[str, Any], budget: str) -> list[str]:
  """One of tables 2 to 4."""
  ours = [_value(runs, column) for column in table.columns]
  if all(value is None for value in ours):
    return []
  rows = [
    (f"{name}, the paper" if name == paper.OURS else name, of) for name, of in table.rows.items()
  ]
  rows += [
    (f"**ours**{budget}", ours),
    (f"difference{budget}", _differences(ours, table.rows[paper.OURS])),
  ]
  return _table(f"{title}: {table.title}", [column.title for column in table.columns], rows)


def _ablations(runs: dict[str, Any], budget: str) -> list[str]:
  """Table 5, of the tasks that there is something to compare on; the averages are of these
  alone.
  """
  table, points = paper.TABLES[5], ablation_points(runs)
  if not points:
    return []
  titles, all_titles = list(next(iter(points.values()))), [column.title for column in table.columns]
  rows = []
  for name, values in points.items():
    theirs = dict(zip(all_titles, table.rows[name], strict=True))
    theirs = [theirs[title] for title in titles]
    # The paper's own averages where they are of the same columns; one is not quite the mean of its
    # row.
    theirs = [paper.PRINTED_AVERAGES[name] if titles == all_titles else _mean(theirs), *theirs]
    ours = [_mean(list(values.values())), *values.values()]
    rows += [(f"{name}, the paper", theirs), (f"**ours**{budget}", ours)]
    rows.append((f"difference{budget}", _differences(ours, theirs)))
  return _table(f"Table 5: {table.title}", ["average of these", *titles], rows)


def ablation_points(runs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
  """Row of table 5 -> column -> result, of the columns that the full model has and another row
  too; else empty.
  """
  found = {name: runs.get(setting.name, {}) for name, setting in ABLATIONS.items()}
  points = {name: {} for name in found}
  for column in paper.TABLES[5].columns:
    full, *others = values = [_value(of, column) for of in found.values()]
    if full is not None and any(other is not None for other in others):
      for row, value in zip(points.values(), values, strict=True):
        row[column.title] = value
  return points if all(points.values()) else {}


def _transfer(runs: dict[str, Any], budget: str) -> list[str]:
  """Figure 2 on the left."""
  points = transfer_points(runs)
  if not points:
    return []
  rows = [(f"{task}{budget}", list(values.values())) for task, values in points.items()]
  between = [None] * (len(rows[0][1]) - 2)
  rows += [
    (f"{task}, the paper, by eye", [low, *between, high])
    for task, (low, high) in paper.TRANSFER.items()
  ]
  return _table("Figure 2, left: what is transferred", list(next(iter(points.values()))), rows)


def transfer_points(runs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
  """Task -> what is transferred -> the task's result, from nothing to all layers; empty without
  a sweep.
  """
  depths = sorted(
    (name for name in runs if name.endswith("-layers")),
    key=lambda name: int(name.partition("-")[0]),
  )
  names = {
    SCRATCH.name: "nothing",
    **{name: name.partition("-")[0] for name in depths},
    FULL.name: "all",
  }
  names = {name: {"0": "embeddings"}.get(title, title) for name, title in names.items()}
  tasks = list(runs[depths[0]]) if depths else []
  return {
    task: {
      title: _value(runs.get(name, {}), paper.Column("", (task,))) for name, title in names.items()
    }
    for task in tasks
  }


def progress_points(zero_shot: dict[str, list[dict]]) -> dict[tuple[str, str], dict[int, float]]:
  """(Task, trunk) -> step -> zero-shot result on figure 2's axis: chance is 0, the best supervised
  model 1.

  Of CoLA's thresholds it is the first, fitted on the training set.
  """
  points: dict[tuple[str, str], dict[int, float]] = {}
  for trunk, found in zero_shot.items():
    for each in sorted(found, key=lambda each: each["step"]):
      anchor = paper.ANCHORS[each["task"]]
      reached = (100 * each["value"] - anchor.chance) / (anchor.best - anchor.chance)
      points.setdefault((each["task"], trunk), {}).setdefault(each["step"], reached)
  return points


def _progress(zero_shot: dict[str, list[dict]], budget: str) -> list[str]:
  """Figure 2 on the right."""
  points = progress_points(zero_shot)
  if not points:
    return []
  steps = sorted({step for values in points.values() for step in values})
  rows = [
    (f"{task}, {trunk}{budget}", [values.get(step) for step in steps])
    for (task, trunk), values in points.items()
  ]
  before = [None] * (len(steps) - 1)
  theirs = {task: each.reached for task, each in paper.ANCHORS.items() if each.reached is not None}
  rows += [
    (f"{task}, transformer, the paper's end, by eye", [*before, end])
    for task, end in theirs.items()
  ]
  title = "Figure 2, right: zero-shot by updates, from chance (0) to the best supervised model (1)"
  return _table(title, [f"{step:,}" for step in steps], rows, digits=2)


def _every_run(runs: dict[str, Any], budget: str) -> list[str]:
  """Each with its spread over seeds."""
  rows = []
  for setting, tasks in runs.items():
    for task, each in tasks.items():
      spreads = [_spread(each[stage][f"dev_{each['metric']}"]) for stage in ("best", "dev")]
      constant = f"seed {', '.join(map(str, each['degenerate']))}" if each["degenerate"] else "none"
      cells = [each["metric"], str(len(each["seeds"])), *spreads, constant, each["note"]]
      rows.append((f"{task}, {setting}{budget}", cells))
  titles = ["metric", "seeds", "best evaluation", "last evaluation", "degenerate", "examples"]
  title = (
    "Every run: one seed's result, or median; mean ± deviation [bootstrap interval of the mean]"
  )
  return _table(title, titles, rows) if rows else []


def _spread(each: dict[str, Any]) -> str:
  if len(each["values"]) == 1:
    return f"{100 * each['mean']:.1f}"
  median, mean, deviation, low, high = (
    100 * each[name] for name in ("median", "mean", "deviation", "low", "high")
  )
  return f"{median:.1f}; {mean:.1f} ± {deviation:.1f} [{low:.1f}, {high:.1f}]"


def _value(runs: dict[str, Any], column: paper.Column) -> float | None:
  """In percent, the mean over seeds; None where a task of the column has not been run."""
  if any(task not in runs for task in column.tasks):
    return None
  if column == paper.GLUE:
    means = {
      task: {name.removeprefix("dev_"): of["mean"] for name, of in runs[task]["best"].items()}
      for task in column.tasks
    }
    return 100 * glue.average(means)
  return 100 * statistics.mean(
    runs[task]["best"][f"dev_{runs[task]['metric']}"]["mean"] for task in column.tasks
  )


def _mean(values: Sequence[float | None]) -> float | None:
  return None if None in values else statistics.mean(values)


def _differences(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[str]:
  pairs = zip(ours, theirs, strict=True)
  return ["" if None in pair else f"{pair[0] - pair[1]:+.1f}" for pair in pairs]


def _table(
  title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]], digits: int = 1
) -> list[str]:
  def cell(value):
    return "" if value is None else value if isinstance(value, str) else f"{value:.{digits}f}"

  lines = [f"### {title}", "", f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
  return [*lines, *(f"| {name} | {' | '.join(map(cell, values))} |" for name, values in rows), ""]
