"""The program that repeats the paper's tables 2 to 5 and figure 2: runs what is missing, puts ours beside theirs."""

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpt_jax import figures, finetune, glue, paper, pretrained, zero_shot
from gpt_jax import workdir as workdirs
from gpt_jax.data.examples import evenly
from gpt_jax.errors import InputError
from gpt_jax.finetune import FinetuneConfig
from gpt_jax.optim import OptimConfig
from gpt_jax.pretrained import Pretrained
from gpt_jax.tasks import pronouns
from gpt_jax.tasks.task import Named, find
from gpt_jax.train import TrainConfig


class Setting(NamedTuple):
  """A row of table 5, or a point of figure 2: which checkpoint is fine-tuned, and what differs from the recipe."""

  name: str
  trunk: str = "transformer"
  changes: tuple[tuple[str, Any], ...] = ()


FULL = Setting("full")
SCRATCH = Setting("no-pretraining", changes=(("transfer_layers", -1),))
ABLATIONS = dict(
  zip(
    paper.TABLES[5].rows,
    (FULL, SCRATCH, Setting("no-aux-lm", changes=(("text_weight", 0.0),)), Setting("lstm", "lstm")),
    strict=True,
  )
)


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much of the paper's recipe is run.

  Attributes:
    tokens: of the examples in one pass over the training set, or 0 for all of them; the dev set gets as many.
    zero_shot: examples of each task, in each split; 0: all.
    config: the recipe.
  """

  name: str
  tokens: int
  zero_shot: int
  config: FinetuneConfig


BUDGETS = {
  "paper": Budget("paper", 0, 0, FinetuneConfig(train=TrainConfig(epochs=3, log_every=100))),
  # For a model of some million parameters on a CPU, a few minutes a run.
  "small": Budget(
    "small",
    100_000,
    1000,
    FinetuneConfig(
      batch_size=16,
      optim=OptimConfig(learning_rate=5e-4, schedule="linear", warmup_steps=0, warmup_share=0.1),
      train=TrainConfig(epochs=3, log_every=100),
    ),
  ),
}


def run(
  workdir: str,
  checkpoint: str,
  data_dir: str,
  *,
  lstm: str = "",
  table: Sequence[str] = (),
  figure: Sequence[str] = (),
  tasks: Sequence[str] = (),
  seeds: int = 1,
  budget: str = "paper",
) -> dict[str, Any]:
  """Runs what is missing of the tables and figures asked for, and writes all that is known in the workdir.

  Args:
    workdir: for `runs/<setting>/<task>/seed_<n>`, `results.json`, `results.md` and the figures, PNG and SVG.
    checkpoint: the workdir of a pre-trained Transformer (figure 2 evaluates each of its checkpoints).
    data_dir: the folder with the official files, glue/, race/ and so on.
    lstm: the same of an LSTM, for table 5's last row and figure 2; without it they are left out.
    table: of "2", "3", "4", "5".
    figure: of "2".
    tasks: only these; none: all of a table, and race and mnli of figure 2, whose data is there.
    seeds: how many runs of each.
    budget: "paper", or "small" for parts of the data sets and a recipe for small models.

  Returns:
    What results.json says: also that of earlier calls in the same workdir.

  Raises:
    InputError: an unknown table, figure, task or budget, or a workdir of another checkpoint, budget or data.
  """
  tables, sweep = _numbers("table", table, paper.TABLES), bool(_numbers("figure", figure, [2]))
  _check(bool(tables) or sweep, tasks, budget)
  figures.pyplot()
  chosen = BUDGETS[budget]
  found = {"transformer": pretrained.load(checkpoint)} | ({"lstm": pretrained.load(lstm)} if lstm else {})
  paths = {"transformer": checkpoint, "lstm": lstm}
  for name, each in found.items():
    if each.spec.head:
      raise InputError(f"{paths[name]} is fine-tuned; give a pre-trained checkpoint")
  history = {name: zero_shot.checkpoints(paths[name]) for name in found} if sweep else {}
  results = _claim(workdir, {name: each.identity for name, each in found.items()}, budget)

  settings = {name: each for name, each in ABLATIONS.items() if each.trunk in found}
  wanted = [task for number in tables for column in paper.TABLES[number].columns for task in column.tasks]
  available = _available(data_dir, [name for name in dict.fromkeys(wanted) if not tasks or name in tasks])
  plan = [(setting, task) for task in available for setting in (settings.values() if 5 in tables else [FULL])]
  layers = _layers(found["transformer"]) if sweep else []
  moved = [name for name in tasks or paper.TRANSFER if name not in pronouns.FILES]
  moved = _available(data_dir, moved) if sweep else []
  plan += [(setting, task) for task in moved for setting in layers]

  for number, (setting, task) in enumerate(dict.fromkeys(plan), start=1):
    config, note = sized(chosen, task, data_dir, found[setting.trunk])
    _say(f"{number} of {len(set(plan))}: {task}, {setting.name} {note}")
    config, known = dataclasses.replace(config, **dict(setting.changes)), results["runs"].setdefault(setting.name, {})
    count = max(seeds, len(known[task]["seeds"]) if task in known else 1)
    folder = os.path.join(workdir, "runs", setting.name, task)
    # With one seed the folder would be the run's own, and no more seeds could be added.
    each = {"workdir": folder, "seeds": count} if count > 1 else {"workdir": os.path.join(folder, "seed_0")}
    outcome = finetune.run(config, data_dir, paths[setting.trunk], **each)
    known[task] = {"metric": find(task).primary_metric, "note": note, **finetune.summary(outcome)}
    workdirs.write_json(os.path.join(workdir, "results.json"), results)

  for trunk, folders in history.items():
    amount = f"({budget} budget: {chosen.zero_shot} examples of a set)" if chosen.zero_shot else ""
    _say(f"zero-shot, {trunk}: {len(folders)} checkpoints {amount}")
    known, steps = results["zero_shot"].setdefault(trunk, []), {int(os.path.basename(folder)) for folder in folders}
    for name in [name for name in paper.ANCHORS if not tasks or name in tasks]:
      if steps - {each["step"] for each in known if each["task"] == name}:
        new = zero_shot.run(paths[trunk], data_dir, [name], history=True, examples=chosen.zero_shot)
        known[:] = [each for each in known if each["task"] != name] + [result._asdict() for result in new]
        workdirs.write_json(os.path.join(workdir, "results.json"), results)

  report = describe(results)
  path = os.path.join(workdir, "results.md")
  with open(f"{path}.partial", "w", encoding="utf-8") as file:
    file.write(report)
  os.replace(f"{path}.partial", path)
  _draw(results, workdir)
  print(report)
  return results


def _numbers(flag: str, values: Iterable[str], allowed: Iterable[int]) -> list[int]:
  names = {str(number): number for number in allowed}
  for value in values:
    if value not in names:
      raise InputError(f"--{flag}={value}: must be among {', '.join(names)}")
  return [names[value] for value in values]


def _check(anything: bool, tasks: Iterable[str], budget: str) -> None:
  if not anything:
    raise InputError("nothing to reproduce: give --table=2, 3, 4 or 5, or --figure=2")
  if budget not in BUDGETS:
    raise InputError(f"--budget={budget}: must be one of {', '.join(BUDGETS)}")
  for name in tasks:
    if name not in zero_shot.TASKS:
      find(name)


def _claim(workdir: str, models: dict[str, str], budget: str) -> dict[str, Any]:
  """What earlier calls in this workdir found. Raises InputError where it is another's."""
  path = os.path.join(workdir, "results.json")
  if not os.path.exists(path):
    if os.path.isdir(workdir) and set(os.listdir(workdir)) - {"runs", "compilation_cache"}:
      raise InputError(f"--workdir={workdir}: not empty, and without results.json; use another folder")
    os.makedirs(workdir, exist_ok=True)
    return {"budget": budget, "checkpoints": models, "runs": {}, "zero_shot": {}}
  with open(path, encoding="utf-8") as file:
    results = json.load(file)
  before = results["checkpoints"]
  if results["budget"] != budget or any(before.get(name, model) != model for name, model in models.items()):
    raise InputError(
      f"--workdir={workdir} holds results of budget {results['budget']} and the checkpoints {before}, "
      f"not of {budget} and {models}; use another folder"
    )
  results["checkpoints"].update(models)
  return results


def _available(data_dir: str, tasks: Iterable[str]) -> list[str]:
  """The tasks whose training and dev sets are there; says which are not."""
  available = []
  for name in tasks:
    try:
      for split in ("train", "dev"):
        find(name).examples(data_dir, split)
      available.append(name)
    except InputError as error:
      _say(f"left out: {name} ({error})")
  return available


def _layers(found: Pretrained) -> list[Setting]:
  """Nothing, the embeddings, and the first 1, 2, … blocks transferred; all of them is the full run."""
  blocks = found.spec.trunk.layers
  return [SCRATCH, *(Setting(f"{k}-layers", changes=(("transfer_layers", k),)) for k in range(blocks)), FULL]


def sized(budget: Budget, name: str, data_dir: str, found: Pretrained) -> tuple[FinetuneConfig, str]:
  """The budget's config for a task, and how many of its examples that is, in words."""
  config, counts, notes = budget.config, {}, []
  if not budget.tokens:
    return dataclasses.replace(config, task=Named(name)), ""
  task = find(name)
  for split in ("train", "dev"):
    examples = task.examples(data_dir, split)
    sample = task.encode(evenly(examples, 300), found.tokenizer, found.spec.trunk.context)
    most = int(budget.tokens // sample.lengths.sum(axis=1).mean())
    counts[f"{split}_examples"] = most if most < len(examples) else 0
    notes.append(f"{min(most, len(examples)):,} of {len(examples):,} {split}")
  note = f"({budget.name} budget: {', '.join(notes)})"
  return dataclasses.replace(config, task=Named(name), **counts), note


def describe(results: dict[str, Any]) -> str:
  """All that is known, in Markdown: the tables with the paper's rows, ours and the difference; figure 2's numbers."""
  budget = "" if results["budget"] == "paper" else f" ({results['budget']} budget)"
  lines = ["Percent. The paper's are test-set results; ours of the dev sets, at each seed's best evaluation.", ""]
  for number in (2, 3, 4):
    lines += _comparison(paper.TABLES[number], f"Table {number}", results["runs"].get(FULL.name, {}), budget)
  lines += _ablations(results["runs"], budget)
  lines += _transfer(results["runs"], budget)
  lines += _progress(results["zero_shot"], budget)
  lines += _every_run(results["runs"], budget)
  return "\n".join(lines)


def _draw(results: dict[str, Any], workdir: str) -> None:
  note = "" if results["budget"] == "paper" else f" ({results['budget']} budget)"
  if ablations := ablation_points(results["runs"]):
    figures.ablations(ablations, os.path.join(workdir, "table5"), note)
  if transferred := transfer_points(results["runs"]):
    figures.transferred(transferred, os.path.join(workdir, "figure2_left"), note)
  if progress := progress_points(results["zero_shot"]):
    figures.progress(progress, os.path.join(workdir, "figure2_right"), note)


def _comparison(table: paper.Table, name: str, runs: dict[str, Any], budget: str) -> list[str]:
  """One of tables 2 to 4."""
  ours = [_value(runs, column) for column in table.columns]
  if all(value is None for value in ours):
    return []
  rows = [(f"{name}, the paper" if name == paper.OURS else name, of) for name, of in table.rows.items()]
  rows.append((f"**ours**{budget}", ours))
  rows.append((f"difference{budget}", _differences(ours, table.rows[paper.OURS])))
  return _table(f"{name}: {table.title}", [column.title for column in table.columns], rows)


def _ablations(runs: dict[str, Any], budget: str) -> list[str]:
  """Table 5, of the tasks that the full model was trained on; the averages are of these alone."""
  table, points = paper.TABLES[5], ablation_points(runs)
  if not points:
    return []
  rows, titles = [], list(next(iter(points.values())))
  for name, values in points.items():
    theirs = [
      paper_value for column, paper_value in zip(table.columns, table.rows[name], strict=True) if column.title in titles
    ]
    theirs, ours = ([_mean(numbers), *numbers] for numbers in (theirs, list(values.values())))
    rows += [(f"{name}, the paper", theirs), (f"**ours**{budget}", ours)]
    rows.append((f"difference{budget}", _differences(ours, theirs)))
  return _table(f"Table 5: {table.title}", ["average of these", *titles], rows)


def ablation_points(runs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
  """Row of table 5 -> column -> result, of the columns that the full model has; empty without another row."""
  found = {name: runs.get(setting.name, {}) for name, setting in ABLATIONS.items()}
  columns = [column for column in paper.TABLES[5].columns if _value(runs.get(FULL.name, {}), column) is not None]
  points = {name: {column.title: _value(of, column) for column in columns} for name, of in found.items()}
  return points if sum(any(value is not None for value in row.values()) for row in points.values()) > 1 else {}


def _transfer(runs: dict[str, Any], budget: str) -> list[str]:
  """Figure 2 on the left."""
  points = transfer_points(runs)
  if not points:
    return []
  rows = [(f"{task}{budget}", list(values.values())) for task, values in points.items()]
  between = [None] * (len(rows[0][1]) - 2)
  rows += [(f"{task}, the paper, by eye", [low, *between, high]) for task, (low, high) in paper.TRANSFER.items()]
  return _table("Figure 2, left: what is transferred", list(next(iter(points.values()))), rows)


def transfer_points(runs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
  """Task -> what is transferred -> the task's result, from nothing to all layers; empty without a sweep."""
  depths = sorted((name for name in runs if name.endswith("-layers")), key=lambda name: int(name.partition("-")[0]))
  names = {SCRATCH.name: "nothing", **{name: name.partition("-")[0] for name in depths}, FULL.name: "all"}
  names = {name: {"0": "embeddings"}.get(title, title) for name, title in names.items()}
  tasks = list(runs[depths[0]]) if depths else []
  return {
    task: {title: _value(runs.get(name, {}), paper.Column("", (task,))) for name, title in names.items()}
    for task in tasks
  }


def progress_points(zero_shot: dict[str, list[dict]]) -> dict[tuple[str, str], dict[int, float]]:
  """(Task, trunk) -> step -> zero-shot result on figure 2's axis: chance is 0, the best supervised model 1.

  Of CoLA's thresholds it is the one fitted on the training set.
  """
  points: dict[tuple[str, str], dict[int, float]] = {}
  for trunk, found in zero_shot.items():
    for each in sorted(found, key=lambda each: each["step"]):
      if "dev" not in each["rule"]:
        anchor = paper.ANCHORS[each["task"]]
        reached = (100 * each["value"] - anchor.chance) / (anchor.best - anchor.chance)
        points.setdefault((each["task"], trunk), {})[each["step"]] = reached
  return points


def _progress(zero_shot: dict[str, list[dict]], budget: str) -> list[str]:
  """Figure 2 on the right."""
  points = progress_points(zero_shot)
  if not points:
    return []
  steps = sorted({step for values in points.values() for step in values})
  rows = [
    (f"{task}, {trunk}{budget}", [values.get(step) for step in steps]) for (task, trunk), values in points.items()
  ]
  before = [None] * (len(steps) - 1)
  rows += [
    (f"{task}, transformer, the paper's end, by eye", [*before, each.reached]) for task, each in paper.ANCHORS.items()
  ]
  title = "Figure 2, right: zero-shot by updates, from chance (0) to the best supervised model (1)"
  return _table(title, [f"{step:,}" for step in steps], rows, digits=2)


def _every_run(runs: dict[str, Any], budget: str) -> list[str]:
  """Each with its spread over seeds."""
  rows = []
  for setting, tasks in runs.items():
    for task, each in tasks.items():
      spreads = [_spread(each[stage][f"dev_{each['metric']}"]) for stage in ("best", "dev")]
      constant = ", ".join(map(str, each["degenerate"]))
      rows.append(
        (f"{task}, {setting}{budget}", [each["metric"], str(len(each["seeds"])), *spreads, constant, each["note"]])
      )
  titles = ["metric", "seeds", "best evaluation", "last evaluation", "degenerate seeds", "examples"]
  return _table("Every run: median; mean ± deviation [95 % of means]", titles, rows) if rows else []


def _spread(each: dict[str, Any]) -> str:
  median, mean, deviation, low, high = (100 * each[name] for name in ("median", "mean", "deviation", "low", "high"))
  return f"{median:.1f}; {mean:.1f} ± {deviation:.1f} [{low:.1f}, {high:.1f}]"


def _value(runs: dict[str, Any], column: paper.Column) -> float | None:
  """In percent, the mean over seeds; None where a task of the column has not been run."""
  if any(task not in runs for task in column.tasks):
    return None
  if column == paper.GLUE:
    means = {
      task: {name.removeprefix("dev_"): of["mean"] for name, of in runs[task]["best"].items()} for task in column.tasks
    }
    return 100 * glue.average(means)
  return 100 * statistics.mean(runs[task]["best"][f"dev_{runs[task]['metric']}"]["mean"] for task in column.tasks)


def _mean(values: Sequence[float | None]) -> float | None:
  return None if None in values else statistics.mean(values)


def _differences(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[str]:
  pairs = zip(ours, theirs, strict=True)
  return ["" if None in pair else f"{pair[0] - pair[1]:+.1f}" for pair in pairs]


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]], digits: int = 1) -> list[str]:
  def cell(value):
    return "" if value is None else value if isinstance(value, str) else f"{value:.{digits}f}"

  lines = [f"### {title}", "", f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
  return [*lines, *(f"| {name} | {' | '.join(map(cell, values))} |" for name, values in rows), ""]


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
