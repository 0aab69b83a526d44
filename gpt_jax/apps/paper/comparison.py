"""Compares our results with the paper's tables 2 to 5 and figure 2: Markdown tables, figure points.

Results are the content of reproduce's results.json: `runs`, setting -> task -> seeds.summarize and
the primary `metric`; `zero_shot`, trunk -> zero_shot.Results; `budget`; `checkpoints`; `left_out`.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpt_jax.apps.paper import glue
from gpt_jax.apps.report import paper_tables as tables
from gpt_jax.apps.study import table


class Setting(NamedTuple):
  """A row of table 5 or a point of figure 2: the checkpoint, and changes to the recipe."""

  name: str
  trunk: str = "transformer"
  changes: tuple[tuple[str, Any], ...] = ()


FULL = Setting("full")
SCRATCH = Setting("no-pretraining", changes=(("transfer_layers", -1),))
NO_AUXILIARY_LM = Setting("no-aux-lm", changes=(("lm_weight", 0.0),))
LSTM = Setting("lstm", "lstm")
Measured = tuple[float | None, float | None]  # the mean over seeds and its deviation, in percent
Points = dict[str, dict[str, Measured]]  # a curve -> a point of it
ABLATIONS = dict(zip(tables.TABLES[5].rows, (FULL, SCRATCH, NO_AUXILIARY_LM, LSTM), strict=True))


def describe(results: dict[str, Any]) -> str:
  """The report in Markdown: each table with the paper's rows, ours and the difference."""
  note, runs = budget_note(results["budget"]), results["runs"]
  models = []
  for name in ("transformer", "lstm"):
    if model := results.get(f"{name}_checkpoint"):
      models.append(f"{name}: {model}")
  lines = [
    f"Checkpoints: {'; '.join(models)}.",
    "",
    "Percent. The paper reports test sets. Ours are dev sets: "
    "the best evaluation of each seed, averaged over seeds.",
    "",
  ]
  for number in (2, 3, 4):
    title = f"Table {number}"
    lines += _comparison(title, tables.TABLES[number], runs.get(FULL.name, {}), note)
  lines += _ablations(runs, note)
  lines += _differences_of(results.get("differences", {}), results["runs"], note)
  lines += _transfer(runs, note)
  lines += _progress(results["zero_shot"], note)
  lines += _all_runs(runs, note)
  if results["left_out"]:
    lines += ["Left out:", ""]
    lines += [f"- {name}: {reason}" for name, reason in results["left_out"].items()]
    lines.append("")
  return "\n".join(lines)


def budget_note(budget: str) -> str:
  """Suffix of a title or row: "" for the paper's recipe, else the budget's name."""
  return "" if budget == "paper" else f" ({budget} budget)"


def _comparison(title: str, table: tables.Table, runs: dict[str, Any], note: str) -> list[str]:
  """One of tables 2 to 4."""
  ours = [_mean_of(runs, column) for column in table.columns]
  if all(value is None for value in ours):  # none of its tasks was run
    return []
  # The paper's rows first, then ours and how far it is from the paper's own model.
  rows: list[tuple[str, Sequence[Any]]] = []
  for name, values in table.rows.items():
    rows.append((f"{name}, the paper" if name == tables.OURS else name, values))
  rows.append((f"**ours**{note}", ours))
  rows.append((f"difference{note}", _differences(ours, table.rows[tables.OURS])))
  return _table(f"{title}: {table.title}", [column.title for column in table.columns], rows)


def _ablations(runs: dict[str, Any], note: str) -> list[str]:
  """Table 5 for the tasks that can be compared; averages are over these tasks only."""
  table, results = tables.TABLES[5], ablation_results(runs)
  if not results:
    return []
  all_titles = [column.title for column in table.columns]
  titles = list(next(iter(results.values())))
  rows: list[tuple[str, Sequence[Any]]] = []
  for name, of_row in results.items():
    by_title = dict(zip(all_titles, table.rows[name], strict=True))
    theirs = list(map(by_title.__getitem__, titles))
    # For all columns use the paper's printed average, which for one row is not quite the mean.
    average = tables.PRINTED_AVERAGES[name] if titles == all_titles else _mean(theirs)
    theirs = [average, *theirs]
    ours = list(of_row.values())
    ours = [_mean(ours), *ours]
    rows.append((f"{name}, the paper", theirs))
    rows.append((f"**ours**{note}", ours))
    rows.append((f"difference{note}", _differences(ours, theirs)))
  return _table(f"Table 5: {table.title}", ["average of the row", *titles], rows)


def _differences_of(differences: dict[str, Any], runs: dict[str, Any], note: str) -> list[str]:
  """How far the full model is above each other setting, by task; first the average of these tasks,
  and that of the setting itself.
  """
  names = dict.fromkeys(name for tasks in differences.values() for name in tasks)
  rows: list[tuple[str, Sequence[Any]]] = []
  for setting, tasks in differences.items():
    own = [runs[setting][name] for name in tasks]
    average = statistics.mean(run["best"][f"dev_{run['metric']}"]["mean"] for run in own)
    above = statistics.mean(value for value, *_ in tasks.values())
    cells = [f"{100 * above:+.1f} ({100 * average:.1f})"]
    for name in names:
      known = [f"{100 * value:+.1f}" for value in tasks.get(name, ())]
      cells.append("{} ({} to {})".format(*known) if known else "")
    rows.append((f"above {setting}{note}", cells))
  title = "The full model beside others: differences on the dev set, 95 % intervals over examples"
  return _table(title, ["average (its own)", *names], rows) if rows else []


def ablation_results(runs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
  """Row of table 5 -> column with the full model and an ablation -> result; {} if there is none."""
  results: dict[str, dict[str, float | None]] = {name: {} for name in ABLATIONS}
  for column in tables.TABLES[5].columns:
    full, *ablations = [_mean_of(runs.get(row.name, {}), column) for row in ABLATIONS.values()]
    if full is not None and any(value is not None for value in ablations):
      for row, value in zip(results.values(), (full, *ablations), strict=True):
        row[column.title] = value
  return results if all(results.values()) else {}


def _transfer(runs: dict[str, Any], note: str) -> list[str]:
  """Figure 2, left."""
  points = transfer_points(runs)
  if not points:
    return []
  columns = list(next(iter(points.values())))
  rows: list[tuple[str, Sequence[Any]]] = []
  for task, values in points.items():
    rows.append((f"{task}{note}", [value for value, _ in values.values()]))
  for task, (low, high) in tables.TRANSFER.items():
    between = [None] * (len(columns) - 2)
    rows.append((f"{task}, the paper, by eye", [low, *between, high]))
  return _table("Figure 2, left: layers transferred", columns, rows)


def transfer_points(runs: dict[str, Any]) -> Points:
  """Task -> layers transferred, from nothing to all -> result; empty if no sweep was run."""
  layers = sorted(int(name.partition("-")[0]) for name in runs if name.endswith("-layers"))
  if not layers:
    return {}
  titles = {SCRATCH.name: "nothing"}  # in the order of the figure's axis
  for count in layers:
    titles[f"{count}-layers"] = str(count) if count else "embeddings"
  titles[FULL.name] = "all"
  points: Points = {}
  for task in runs[f"{layers[0]}-layers"]:
    points[task] = {title: _over_seeds(runs, name, task) for name, title in titles.items()}
  return points


def _over_seeds(runs: dict[str, Any], setting: str, task: str) -> Measured:
  """The mean, None without a run, and the standard deviation, None with one seed."""
  run = runs.get(setting, {}).get(task)
  if run is None:
    return None, None
  spread = run["best"][f"dev_{run['metric']}"]
  return 100 * spread["mean"], 100 * spread["deviation"] if len(run["seeds"]) > 1 else None


def progress_points(zero_shot: dict[str, list[dict]]) -> dict[tuple[str, str], dict[int, float]]:
  """(task, trunk) -> step -> zero-shot result, scaled: 0 is chance, 1 the best supervised model.

  CoLA's first result counts, with the threshold fitted on the training set.
  """
  points: dict[tuple[str, str], dict[int, float]] = {}
  for trunk, results in zero_shot.items():
    for result in sorted(results, key=lambda result: result["step"]):
      anchor = tables.ANCHORS[result["task"]]
      scaled = (100 * result["value"] - anchor.chance) / (anchor.best - anchor.chance)
      by_step = points.setdefault((result["task"], trunk), {})
      by_step.setdefault(result["step"], scaled)  # the first one stays
  return points


def _progress(zero_shot: dict[str, list[dict]], note: str) -> list[str]:
  """Figure 2, right."""
  points = progress_points(zero_shot)
  if not points:
    return []
  steps = sorted(set().union(*points.values()))
  rows: list[tuple[str, Sequence[Any]]] = []
  for (task, trunk), values in points.items():
    rows.append((f"{task}, {trunk}{note}", [values.get(step) for step in steps]))
  for task, anchor in tables.ANCHORS.items():
    if anchor.reached is not None:
      before = [None] * (len(steps) - 1)
      rows.append((f"{task}, transformer, the paper's end, by eye", [*before, anchor.reached]))
  title = "Figure 2, right: zero-shot by updates, from chance (0) to the best supervised model (1)"
  return _table(title, [f"{step:,}" for step in steps], rows, digits=2)


def _all_runs(runs: dict[str, Any], note: str) -> list[str]:
  """Every setting and task with its spread over seeds."""
  rows = []
  for setting, tasks in runs.items():
    for task, summary in tasks.items():
      name = f"dev_{summary['metric']}"
      spreads = [_spread(summary[stage][name]) for stage in ("best", "dev")]
      seeds = ", ".join(map(str, summary["degenerate"]))
      degenerate = f"seed {seeds}" if seeds else "none"
      cells = [summary["metric"], str(len(summary["seeds"])), *spreads, degenerate, summary["note"]]
      rows.append((f"{task}, {setting}{note}", cells))
  titles = ["metric", "seeds", "best evaluation", "last evaluation", "degenerate", "examples"]
  title = (
    "All runs: one seed's result, or median; mean ± deviation [bootstrap interval of the mean]"
  )
  return _table(title, titles, rows) if rows else []


def _spread(spread: dict[str, Any]) -> str:
  if len(spread["values"]) == 1:
    return f"{100 * spread['mean']:.1f}"
  names = ("median", "mean", "deviation", "low", "high")
  median, mean, deviation, low, high = (f"{100 * spread[name]:.1f}" for name in names)
  return f"{median}; {mean} ± {deviation} [{low}, {high}]"


def _mean_of(runs: dict[str, Any], column: tables.Column) -> float | None:
  """A column's mean over seeds; None if one of its tasks has no run."""
  if any(task not in runs for task in column.tasks):
    return None
  if column == tables.GLUE:
    means: dict[str, dict[str, float]] = {}
    for task in column.tasks:
      means[task] = {}
      for name, spread in runs[task]["best"].items():
        means[task][name.removeprefix("dev_")] = spread["mean"]
    return 100 * glue.average(means)
  spreads = []
  for task in column.tasks:
    spreads.append(runs[task]["best"][f"dev_{runs[task]['metric']}"])
  return 100 * statistics.mean(spread["mean"] for spread in spreads)


def _mean(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return statistics.mean(known) if len(known) == len(values) else None


def _differences(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[str]:
  differences = []
  for our, their in zip(ours, theirs, strict=True):
    differences.append("" if our is None or their is None else f"{our - their:+.1f}")
  return differences


def _table(
  title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]], digits: int = 1
) -> list[str]:
  def cell(value):
    if value is None:
      return ""
    return value if isinstance(value, str) else f"{value:.{digits}f}"

  cells = ([name, *map(cell, values)] for name, values in rows)
  return [f"### {title}", "", *table(["", *columns], cells), ""]
