"""Renders runs as one HTML page that needs no network: page.html filled by jinja2 (extra `report`).

A value from a run's folder may be anything: autoescape is on, and nothing is marked as safe but the
pictures, which have no text of it.
"""

import itertools
import os
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.report import answers, chart
from gpt_jax.apps.report import paper_tables as tables
from gpt_jax.apps.report.chart import Drawn, Level, Line, short
from gpt_jax.apps.report.record import Labels, Record
from gpt_jax.data.progress import duration
from gpt_jax.errors import counted, require
from gpt_jax.parallel.memory import gigabytes
from gpt_jax.training.run_log import finite

TEXTS = {"loss": "training", "valid_loss": "held-out"}  # metric -> its text
_MAX_CLASSES = 12  # of a confusion matrix; more would be dust on a phone
_MAX_PAIRS = 10
_MAX_SAMPLES = 10  # of a prompt; the first and the last are among them
_MAX_SAMPLE = 400  # characters
_LOSSES = (
  # metric, label, color, style
  ("loss", "training loss", 0, "thin"),
  ("task_loss", "training loss of the task", 2, "thin"),
  ("lm_loss", "of language modeling", 3, "thin"),
  ("valid_loss", "held-out loss", 1, "dots"),
  ("dev_loss", "dev loss, task", 1, "dots"),
)
_TRACES = (
  # metric, title, unit, whether y may be logarithmic
  ("learning_rate", "Learning rate", "of each update", False),
  ("gradient_norm", "Gradient norm", "before clipping", True),
  ("tokens_per_second", "Speed", "tokens per second", False),
)

_DATA = {  # what identifies it in config.json, and its title
  "train_tokens": "training tokens",
  "valid_tokens": "held-out tokens",
  "train": "training set",
  "dev": "dev set",
  "pretrained": "started from",
}


class Sample(NamedTuple):
  how: str
  text: str  # the prompt with its continuation


class Ending(NamedTuple):
  """Notice at the top of an unfinished run's report."""

  title: str
  text: str
  command: str  # resumes the run; "" if it is not known


class Group(NamedTuple):
  """Runs that differ in nothing but their seed; a single run is a group of its own."""

  name: str
  runs: list[Record]
  metrics: dict[str, str]


def environment(folder: str = "") -> Any:
  """The jinja2 environment of the report's templates, and of an app's in `folder`."""
  jinja2 = require("jinja2", "a report", "jinja2", "report")
  here = os.path.dirname(__file__)
  made = jinja2.Environment(
    loader=jinja2.FileSystemLoader([folder or here, here]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  made.filters["short"] = short
  made.globals["no_charts"] = chart.no_charts()  # which imports nothing
  return made


def fill_page(folder: str = "", **fields: Any) -> str:
  """The page.html of an app's folder, or the report's, with these fields."""
  text = environment(folder).get_template("page.html").render(fields)
  # A text may hold halves of surrogate pairs, which UTF-8 has no bytes for.
  return text.encode("utf-8", "replace").decode("utf-8")


def render(
  runs: Sequence[Record], samples: dict[str, list[Sample]], inspections: dict[str, str]
) -> str:
  """The page of one run, or of several to compare.

  Args:
    samples: of some runs, by folder.
    inspections: links to pages of the worst errors, likewise.
  """
  names, views = run_names([run.folder for run in runs]), []
  for run, name in zip(runs, names, strict=True):
    views.append(_view(run, name))
    views[-1] |= {"samples": samples.get(run.folder), "inspection": inspections.get(run.folder)}
  comparison = _compare(runs, names) if len(runs) > 1 else None
  title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
  return fill_page(title=title, views=views, comparison=comparison)


def run_names(folders: Sequence[str]) -> list[str]:
  """Short names that tell the runs apart: the last parts of their paths."""
  paths = list(map(os.path.abspath, folders))
  common = os.path.commonpath(paths)
  names = []
  for path in paths:
    name = os.path.relpath(path, common)
    names.append(name if name != "." else os.path.basename(common))
  return names


def _view(run: Record, name: str) -> dict[str, Any]:
  """Fields of page.html for one run."""
  return {
    "run": run,
    "name": name,
    "about": _about(run),
    "status": status(run),
    "ending": ending(run),
    "commands": commands(run),
    "answers": answers.answers(run),
    "facts": _facts(run),
    "charts": list(filter(None, _charts(run))),
    "traces": list(filter(None, _traces(run))),
    "results": _results(run),
    "labels": _label_view(run.labels) if run.labels else None,
    "mislabeled": answers.mislabeled(run),
    "along": _samples_along(run),
    "data": _data_facts(run),
    "changed": [setting for setting in run.settings if setting.value != setting.default],
  }


def status(run: Record) -> str:
  """One clause: finished, stopped early, interrupted, …"""
  total, done = run.total_steps, run.steps_done
  if total is None:
    return counted(done, "step")
  if done >= total:
    return f"finished, {counted(total, 'step')}"
  if run.result:
    return f"stopped early, at step {done:,} of {total:,}"
  how = {"interrupted": "interrupted", "error": "ended by an error"}
  begin = how.get(str(run.plan.get("ended")), "stopped or still running")
  return f"{begin} at step {done:,} of {total:,} ({done / total:.0%})"


def ending(run: Record) -> Ending | None:
  if run.is_over or not run.plan:
    return None
  title, ended, command = status(run), run.plan.get("ended"), run.plan.get("command")
  command = command if isinstance(command, str) else ""
  text = f"{run.plan.get('error') or 'No message.'} " if ended == "error" else ""
  if run.checkpoints:
    text += f"Its state is saved at step {run.checkpoints[-1]:,}. "
  else:
    text += "No state is saved, so it begins anew. "
  begin = {"interrupted": "It goes", "error": "Once the cause is fixed, it goes"}
  text += f"{begin.get(str(ended), 'If it was stopped, it goes')} on with the same command"
  text += ":" if command else ", or the same call of run(…)."
  return Ending(title[0].upper() + title[1:], text, command)


def commands(run: Record) -> list[str]:
  """Commands that use the model; [] without a checkpoint."""
  if not run.checkpoints:
    return []
  checkpoint = os.path.join(run.folder, "best") if run.best else run.folder
  if run.task is not None and len(run.task.parts) > 1:  # each has a folder once the run has ended
    checkpoint = os.path.join(run.folder, "tasks", run.task.parts[0].name)
    if not os.path.exists(checkpoint):
      return []
  if run.task is not None:
    programs = {"predict": ["--input=FILE", "--out=FILE"], "evaluate": ["--data=DIR"]}
  else:
    programs = {"finetune": ["--config=finetune:TASK", "--data=DIR", "--workdir=DIR"]}
    objective = run.config.objective
    if objective is not None and objective.attention == "causal":
      programs = {"generate": ["--prompt=TEXT"], **programs}
  return [
    shlex.join(["python", f"launch/{name}.py", f"--checkpoint={checkpoint}", *words])
    for name, words in programs.items()
  ]


def _about(run: Record) -> str:
  kinds = {"pretrain": "Pre-training", "finetune": "Fine-tuning"}
  about, trunk = kinds.get(run.kind, run.kind), run.config.trunk
  if run.task is not None:
    about += f" on {run.task.name}"
  if trunk is not None:
    about += f", {short(trunk.parameter_count())} parameters, {counted(trunk.layers, 'layer')}, "
    about += f"{trunk.width:,} wide, {trunk.context:,} tokens of context"
  return about


def _facts(run: Record) -> list[tuple[str, str, str]]:
  """(name, what happened, what was planned or a remark)."""
  facts = []
  total, done, forecast = run.total_steps, run.steps_done, run.plan.get("forecast", {})
  facts.append(("Steps", f"{done:,}", f"of {total:,} planned" if total else ""))
  if run.steps_per_epoch:
    windows, per_epoch = run.config.data, run.steps_per_epoch
    if windows is not None:
      per_step = windows.batch_size * windows.length
      planned = f"of {short(total * per_step)} planned" if total else ""
      facts.append(("Tokens", short(done * per_step), planned))
    planned = f"of {total / per_epoch:.2f} planned" if total else ""
    facts.append(("Epochs", f"{done / per_epoch:.2f}", planned))
  if (seconds := run.seconds) is not None:
    remark = ""
    if total and 0 < done < total and not run.result:
      remark = f"about {duration(seconds * (total - done) / done)} more to the planned end"
    facts.append(("Time", duration(seconds), remark))
  starts = run.plan.get("starts", [])
  if len(starts) > 1:
    steps = ", ".join(f"{start['step']:,}" for start in starts[1:][-6:])
    times = "once" if len(starts) == 2 else f"{len(starts) - 1:,} times"
    facts.append(("Resumed", times, f"at step {steps}"))
  if rates := run.values("tokens_per_second"):
    # The first report includes compilation; a median is deaf to that.
    facts.append(("Speed", f"{statistics.median(rates):,.0f} tokens/s", "median of the reports"))
  if utilization := run.values("mfu"):
    facts.append(("MFU", f"{statistics.median(utilization):.1%}", "median of the reports"))
  if memory := run.values("peak_memory_bytes"):
    planned = f", {gigabytes(forecast['memory'])} planned" if forecast.get("memory") else ""
    facts.append(("Memory", gigabytes(max(memory)), f"peak{planned}"))
  refused = sum(count for _, count in run.refused)
  facts.append(("Refused updates", f"{refused:,.0f}", "loss or gradient not finite"))
  if run.checkpoints:
    kept = ", ".join(f"{step:,}" for step in run.checkpoints[-6:])
    facts.append(("Checkpoints kept", str(len(run.checkpoints)), f"steps {kept}"))
  if "devices" in run.plan:
    facts.append(("Devices", str(run.plan["devices"]), f"jax {run.plan.get('jax', '')}"))
  return facts


def _charts(run: Record) -> list[Drawn | None]:
  lines, levels = [], []
  for name, label, color, style in _LOSSES:
    lines.append(Line(label, *run.series(name), color, style))
  bounds = {TEXTS[name]: value for name, value in run.loss_bounds.items() if run.points(name)}
  different = _equal_ones(bounds, 2)
  colors = (0, 1) if len(different) > 1 or len(bounds) == 1 else (7,)
  for color, (texts, value) in zip(colors, different, strict=False):
    levels.append(Level(_entropy_label(texts, value), value, color))
  # The loss of a regression task is a squared error.
  unit = "" if "dev_baseline_rmse" in run.best else "nats"
  refused = [step for step, _ in run.refused]
  marks = Line("updates refused", refused, [0] * len(refused), 5, "points") if refused else None
  loss = chart.draw("Loss", unit, lines, levels, marks=marks, may_be_log=True)
  return [loss, _metric_chart(run)]


def _traces(run: Record) -> list[Drawn | None]:
  charts = []
  for name, title, unit, may_be_log in _TRACES:
    if len(run.points(name)) > 1:
      line = Line(title.lower(), *run.series(name), color=0)
      charts.append(chart.draw(title, unit, [line], may_be_log=may_be_log))
  return charts


def _metric_chart(run: Record) -> Drawn | None:
  if run.task is None:
    return None
  # Also of each of several tasks: they are no percentages.
  left_out = re.compile(r"dev_(.*_)?(loss|degenerate|baseline_micro_f1)")
  names = [name for name in run.metric_names if name.startswith("dev_")]
  names = [n for n in names if answers.percent_of(n) and not left_out.fullmatch(n)]
  lines, levels = [], []
  for color, name in enumerate(names[:6]):
    series = run.series(name, answers.percent_of(name))
    lines.append(Line(name.removeprefix("dev_"), *series, color, "dots"))
  of_labels = run.best.get("dev_baseline_micro_f1")
  constants = {"label": run.labels and run.labels.majority, "labels": of_labels}
  for noun, constant in constants.items():
    if constant is not None:
      levels.append(Level(f"always the commonest {noun} {100 * constant:.1f}", 100 * constant))
  return chart.draw("Dev set", "%", lines, levels, y_range=_percent_range(lines, levels))


def _percent_range(lines: Sequence[Line], levels: Sequence[Level]) -> tuple[float, float] | None:
  """The axis of percentages: at least ten points long, so that noise looks like noise."""
  values = [level.y for level in levels]
  for line in lines:
    values += [y for y in line.y if y is not None]
  if not values:
    return None
  middle, half = (min(values) + max(values)) / 2, (max(values) - min(values)) / 2
  half = max(5.0, 1.1 * half)
  low, high = middle - half, middle + half
  if high > 101 >= max(values):
    low, high = low - (high - 101), 101.0
  return low, high


def _results(run: Record) -> dict[str, Any] | None:
  last = run.result.get("dev") or _last_evaluation(run)
  rows = []
  for name in last | run.best:
    if name == "step" or name.endswith("degenerate"):
      continue
    values = finite(last.get(name)), finite(run.best.get(name))
    cells = ["–" if value is None else answers.format_metric(name, value) for value in values]
    rows.append((name.replace("_", " "), cells))
  if not rows:
    return None
  step = run.best.get("step")
  heads = ["last evaluation", f"best checkpoint, step {step:,}" if step else "best checkpoint"]
  return {"heads": heads, "rows": rows, "paper": _paper(run)}


def _last_evaluation(run: Record) -> dict[str, Any]:
  last: dict[str, Any] = {}
  for entry in run.entries:
    last |= {name: v for name, v in entry.items() if name.startswith(("valid_", "dev_"))}
  return last


def _paper(run: Record) -> dict[str, Any] | None:
  """The paper's results for the run's task: its own model and the best other one, in percent."""
  for number in (2, 3, 4):  # 5 has ablations; their full model is in the others
    table = tables.TABLES[number]
    tasks = [column.tasks for column in table.columns]
    if run.task is None or (run.task.name,) not in tasks:
      continue
    index = tasks.index((run.task.name,))
    values = {name: row[index] for name, row in table.rows.items() if row[index] is not None}
    ours, best = values.pop(tables.OURS, None), run.best.get(run.metric)
    here = "–" if best is None else f"{100 * best:.1f}"
    rows = [("this run, dev set, best checkpoint", here)]
    if ours is not None:
      rows.append((f"the paper’s {tables.OURS}, test set", f"{ours:.1f}"))
    if values:
      other = max(values, key=lambda name: values[name] or 0)
      rows.append((f"{other}, test set", f"{values[other]:.1f}"))
    title = f"table {number}, {table.title}"
    return {"title": title, "metric": run.metric.removeprefix("dev_"), "rows": rows}
  return None


def _label_view(labels: Labels) -> dict[str, Any]:
  return {
    **labels._asdict(),
    "confusion": confusion_matrix(labels._asdict()),
    "pairs": answers.confusions(labels)[:_MAX_PAIRS],
    "reliability": _reliability(labels.calibration) if labels.calibration.get("bins") else None,
  }


def confusion_matrix(report: Mapping[str, Any]) -> dict[str, Any] | None:
  """Rows of cells (count, share of the row, whether on the diagonal), of a class_report, in the
  order of the table of labels: the lowest F1 first; None for many classes.
  """
  labels = report["labels"]
  if len(labels) > _MAX_CLASSES:
    return None
  names = sorted(labels, key=lambda name: report["per_class"][name]["f1"])
  order, rows = list(map(labels.index, names)), []
  for i, (name, n) in enumerate(zip(names, order, strict=True)):
    counts = [report["confusion"][n][k] for k in order]
    total = max(1, sum(counts))
    cells = [(f"{count:,}", round(100 * count / total), i == j) for j, count in enumerate(counts)]
    rows.append((name, cells))
  return {"names": names, "rows": rows}


def _reliability(calibration: dict[str, Any]) -> Drawn | None:
  confidence, accuracy, rows = [], [], []
  for row in calibration["bins"]:
    if not row["count"]:  # neither confidence nor accuracy
      continue
    confidence.append(100 * row["confidence"])
    accuracy.append(100 * row["accuracy"])
    rows.append([f"{row['confidence']:.1%}", f"{row['accuracy']:.1%}", f"{row['count']:,.0f}"])
  lines = [Line("perfectly calibrated", [0, 100], [0, 100], 7, "level")]
  lines.append(Line("dev set, in bins of confidence", confidence, accuracy, 1, "dots"))
  unit = "correct %, by confidence %"
  drawn = chart.draw("Reliability", unit, lines, x_name="confidence", y_range=(0, 100), square=True)
  return drawn and drawn._replace(head=["confidence", "correct", "examples"], rows=rows)


def _samples_along(run: Record) -> list[dict[str, Any]]:
  """Texts written during the run, for each prompt."""
  losses = dict(run.points("loss")) | dict(run.points("valid_loss"))
  by_prompt: dict[str, list[dict[str, Any]]] = {}
  for step, prompt, text in run.samples:
    loss = f"{losses[step]:.2f}" if step in losses else ""
    row = {"step": f"{step:,}", "loss": loss, "text": text.rstrip()[:_MAX_SAMPLE]}
    by_prompt.setdefault(prompt, []).append(row)
  views = []
  for prompt, rows in by_prompt.items():
    chosen = np.unique(np.linspace(0, len(rows) - 1, _MAX_SAMPLES).round().astype(int))
    shown = [rows[number] for number in chosen]
    views.append({"prompt": prompt, "rows": shown, "total": len(rows)})
  return views


def _data_facts(run: Record) -> list[tuple[str, str]]:
  facts = []
  for name, title in _DATA.items():
    if name in run.data:
      value = run.data[name]
      facts.append((title, f"{value:,}" if isinstance(value, int) else str(value)))
  entropies = {"training": run.unigram_entropy, "held-out": run.held_out_entropy}
  for texts, value in _equal_ones(entropies, 3):
    facts.append((f"unigram entropy, {texts} text", f"{value:.3f} nats per token"))
  if run.task is not None:
    facts.append(("task", f"{run.task.name} ({run.task.kind})"))
    facts.append(("text columns", ", ".join(run.task.columns)))
    if labels := run.task.labels:
      more = f", … ({len(labels)})" if len(labels) > 30 else ""
      facts.append(("labels", ", ".join(labels[:30]) + more))
  if tokenizer := run.tokenizer:
    facts.append(("vocabulary", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens"))
    facts.append(("normalizer", tokenizer["normalizer"]))
    if special := tokenizer.get("special"):  # BERT's are inside its vocabulary
      facts.append(("special tokens", ", ".join(special)))
  for name, value in run.data.items():
    if name not in _DATA and not isinstance(value, (dict, list)):
      facts.append((name.replace("_", " "), answers.clip(str(value), 20)))
  return facts


def _compare(runs: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
  groups = group_runs(runs, names)
  metrics = dict.fromkeys(itertools.chain.from_iterable(group.metrics for group in groups))
  return {
    "charts": list(filter(None, _comparison_charts(runs, names))),
    "metrics": list(metrics),
    "groups": groups,
    "fields": _differing_fields(runs),
  }


def group_runs(runs: Sequence[Record], names: Sequence[str]) -> list[Group]:
  """Runs by config and data without the seed, with the spread of their best evaluations."""
  by_setting: dict[tuple, tuple[list[str], list[Record]]] = {}
  for name, run in zip(names, runs, strict=True):
    values = tuple((s.name, s.value) for s in run.settings if s.name != "train.seed")
    # Without a config there is nothing to tell runs apart by.
    labels, members = by_setting.setdefault((values or name, str(run.data)), ([], []))
    labels.append(name)
    members.append(run)
  groups = []
  for labels, members in by_setting.values():
    groups.append(Group(_group_name(labels), members, _group_metrics(members)))
  return groups


def _group_name(names: list[str]) -> str:
  if len(names) == 1:
    return names[0]
  common = os.path.dirname(os.path.commonprefix(names)) or os.path.commonprefix(names)
  seeds, common = f"{len(names)} seeds", common.rstrip("/_-.")
  return f"{common} ({seeds})" if common and common != "seed" else seeds


def _group_metrics(runs: list[Record]) -> dict[str, str]:
  """Best evaluations: a value, or mean ± sample standard deviation over seeds."""
  bests = [run.best or _last_evaluation(run) for run in runs]
  metrics = {}
  for name in bests[0]:
    values = [best[name] for best in bests if finite(best.get(name)) is not None]
    if len(values) < len(bests) or name == "step" or name.endswith("degenerate"):
      continue
    text = answers.format_metric(name, statistics.mean(values))
    if len(values) > 1:
      deviation = statistics.stdev(values)
      spread = f"{100 * deviation:.1f} %" if text.endswith("%") else short(deviation)
      text = f"{text.removesuffix('%')} ± {spread}"
    metrics[name] = text
  return metrics


def _comparison_charts(runs: Sequence[Record], names: Sequence[str]) -> list[Drawn | None]:
  """A chart per metric that at least two runs have, or that is an evaluation; a color per run."""
  wanted = [
    ("valid_loss", "Held-out loss", "nats", "dots", 1.0),
    ("loss", "Training loss", "nats", "thin", 1.0),
    ("learning_rate", "Learning rate", "of each update", "thin", 1.0),
    ("tokens_per_second", "Speed", "tokens per second", "thin", 1.0),
  ]
  # After the held-out loss, the metric of each task.
  of_tasks = dict.fromkeys(run.metric for run in runs if run.task is not None)
  for name in reversed(of_tasks):
    title = f"Dev set: {name.removeprefix('dev_')}"
    wanted.insert(1, (name, title, "%", "dots", answers.percent_of(name)))
  charts = []
  for metric, title, unit, style, factor in wanted:
    lines = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
      lines.append(Line(name, *run.series(metric, factor), number, style))
    y_range = _percent_range(lines, []) if unit == "%" else None
    levels, may_be_log = entropies(runs, names, metric), unit == "nats"
    charts.append(chart.draw(title, unit, lines, levels, may_be_log=may_be_log, y_range=y_range))
  return charts


def entropies(runs: Sequence[Record], names: Sequence[str], *metrics: str) -> list[Level]:
  """The unigram entropies of the runs' texts: one for all, or each in the color of its run; that of
  the first metric, "loss" or "valid_loss", that is known.
  """
  levels, labels = [], []
  for color, (run, name) in enumerate(zip(runs, names, strict=True)):
    metric = next(filter(run.loss_bounds.__contains__, metrics), None)
    if metric is not None:
      value = run.loss_bounds[metric]
      labels.append(_entropy_label(TEXTS[metric], value))
      levels.append(Level(f"{labels[-1]} of {name}", value, color))
  if levels and len({level.y for level in levels}) == len(set(labels)) == 1:
    return [Level(labels[0], levels[0].y)]
  return levels


def _entropy_label(text: str, value: float) -> str:
  return f"unigram entropy {value:.2f} of the {text} text"


def _equal_ones(values: Mapping[str, float | None], digits: int) -> list[tuple[str, float]]:
  """(names, value), where values that are printed alike are one."""
  alike: dict[str, tuple[list[str], float]] = {}
  for name, value in values.items():
    if value:
      alike.setdefault(f"{value:.{digits}f}", ([], value))[0].append(name)
  return [(" and ".join(names), value) for names, value in alike.values()]


def _differing_fields(runs: Sequence[Record]) -> list[tuple[str, list[str]]]:
  """(field of the config or the data, its value in each run) wherever not all are the same."""
  table: dict[str, list[str]] = {}
  for number, run in enumerate(runs):
    fields = {setting.name: setting.value for setting in run.settings}
    fields |= {f"data: {name}": str(value) for name, value in run.data.items()}
    for name, value in fields.items():
      table.setdefault(name, ["–"] * len(runs))[number] = value
  return [(name, values) for name, values in table.items() if len(set(values)) > 1]
