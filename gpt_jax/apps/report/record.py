"""Reads the folder of a run: config, log, checkpoints, results, predictions, inspection pages.

Only config.json must be there; what another version or a kill left out is None or empty.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

from gpt_jax.checkpoints.restore import best_evaluation
from gpt_jax.checkpoints.run_folder import listing, read_config
from gpt_jax.config import format_value, from_json, settings_of, with_members
from gpt_jax.errors import InputError
from gpt_jax.files import exists, is_folder, parse_json, read_bytes, read_json, verified
from gpt_jax.inference.dev_report import PREDICTIONS, REPORT, prediction_lines
from gpt_jax.programs.pretrain_samples import Sample, read_samples
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.labels import MULTI_LABEL
from gpt_jax.training.recipe import RunConfig
from gpt_jax.training.run_log import read_metrics, read_plan, series

DOUBTFUL = 0.05  # a label with a smaller probability may be wrong
_WORST_ROWS = 12
_MAX_LABELS, _WORST_OF_LABEL = 12, 3  # whose errors are shown, and how many
_MAX_PAGE = 32 << 20  # bytes of an inspection page
_INSPECTION = b'<meta name="generator" content="gpt_jax visualize">'
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Setting:
  """A field of the config.

  Attributes:
    name: dotted.
    value, default: as the command line takes them.
    help: what it does.
  """

  name: str
  value: str
  default: str
  help: str


@dataclasses.dataclass(frozen=True)
class Labels:
  """A classifier's dev_report.json; see inference.calibration.

  Attributes:
    names: the labels.
    n: examples.
    accuracy, macro_f1, majority: shares; majority is that of the commonest label.
    per_class: label -> precision, recall, f1, support.
    confusion: rows are true labels, columns predicted ones.
    calibration: temperature, ece_before, ece_after, ece_chance, bins; {} if there is none.
  """

  names: list[str]
  n: int
  accuracy: float
  macro_f1: float
  majority: float
  per_class: dict[str, dict[str, float]]
  confusion: list[list[int]]
  calibration: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WrongRow:
  """A dev row that the model got wrong.

  Attributes:
    where: file and line.
    text: its columns, separated by tabs.
    confidence: the probability of the predicted label, after temperature scaling.
    chance: the probability of the true one, likewise.
    link: the row in an inspection page beside the report, if there is one.
  """

  where: str
  text: str
  label: str
  predicted: str
  confidence: float
  chance: float
  link: str = ""

  @property
  def shown(self) -> str:
    """The text as an inspection page shows it."""
    return self.text.replace("\t", " | ")


@dataclasses.dataclass(frozen=True)
class LabelError:
  """A label that an example should not have been given, or that it should have.

  Attributes:
    where: file and line.
    text: its columns, separated by tabs.
    given: whether the model gave the label.
    probability: of the label.
  """

  where: str
  text: str
  given: bool
  probability: float


@dataclasses.dataclass
class LabelErrors:
  """The errors of a label: how many examples miss it, how many have it wrongly, and the worst."""

  missed: int = 0
  given: int = 0
  worst: list[LabelError] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class MultiLabels:
  """dev_report.json and dev_predictions.jsonl of a multi-label run.

  Attributes:
    n: examples.
    per_class: label -> precision, recall, f1, support.
    errors: of each label; {} if they cannot be read.
  """

  n: int
  per_class: dict[str, dict[str, float]]
  errors: dict[str, LabelErrors]

  def shown_errors(self) -> dict[str, LabelErrors]:
    """Errors of the labels with the lowest F1, among those with any; _MAX_LABELS at most."""
    wrong = [name for name, errors in self.errors.items() if errors.worst]
    wrong.sort(key=lambda name: self.per_class[name]["f1"])
    return {name: self.errors[name] for name in wrong[:_MAX_LABELS]}


@dataclasses.dataclass(frozen=True)
class Record:
  """A run as its folder tells it.

  Attributes:
    folder: the workdir.
    kind: "pretrain", "finetune" or another registered name of a config.
    config: the config; one without fields if this version cannot read it.
    settings: every field of the config; [] without one.
    data: what identifies the data in config.json.
    tokenizer: the vocabulary's metadata.
    plan: plan.json, {} in runs of earlier versions.
    entries: of metrics.jsonl.
    result: result.json of a finished fine-tuning run, {} without.
    best: the metrics of the best checkpoint and its "step", {} without.
    checkpoints: the steps that were kept.
    samples: what the model wrote at its evaluations.
    task: of a fine-tuning run.
    labels, wrong, n_wrong: of a classification task: its report, the most confident errors, and how
      many errors there are; None, [] and 0 if the run wrote none.
    n_doubtful: errors of which the label has a probability below DOUBTFUL.
    multi: of a multi-label task: the metrics and errors of its labels.
    notes: files that could not be read.
  """

  folder: str
  kind: str
  config: RunConfig
  settings: list[Setting]
  data: dict[str, Any]
  tokenizer: dict[str, Any]
  plan: dict[str, Any]
  entries: list[dict[str, Any]]
  result: dict[str, Any]
  best: dict[str, Any]
  checkpoints: list[int]
  samples: list[Sample]
  task: LabeledTask | None
  labels: Labels | None
  wrong: list[WrongRow]
  n_wrong: int
  n_doubtful: int
  multi: MultiLabels | None
  notes: list[str]

  def series(self, name: str) -> tuple[list[int], list[float | None]]:
    """A metric's steps and values."""
    return series(self.entries, name)

  def points(self, name: str) -> list[tuple[int, float]]:
    """The finite values of a metric: (step, value)."""
    steps, values = self.series(name)
    return [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]

  def values(self, name: str) -> list[float]:
    """The finite values of a metric."""
    return [value for _, value in self.points(name)]

  @property
  def metric_names(self) -> list[str]:
    """The names of what was logged, in the order in which they appear."""
    return list(dict.fromkeys(itertools.chain.from_iterable(self.entries)))

  @property
  def metric(self) -> str:
    """The evaluation that chooses the best checkpoint: valid_loss, dev_accuracy, …; "" if none."""
    if self.task is not None:
      return f"dev_{self.task.primary_metric}"
    candidates = [name for name in self.metric_names if name.startswith(("valid_", "dev_"))]
    # A task has a metric, too, which says more than its loss.
    preferred = [name for name in candidates if name != "dev_loss"]
    return (preferred or candidates or [""])[0]

  @property
  def higher_is_better(self) -> bool:
    return not self.metric.endswith(("_loss", "_perplexity", "_bits_per_byte"))

  @property
  def unigram_entropy(self) -> float | None:
    """Unigram entropy of the training text, in nats."""
    return self._entropy("unigram_entropy")

  @property
  def held_out_entropy(self) -> float | None:
    """Unigram entropy of the held-out text, in nats; None in runs of earlier versions."""
    return self._entropy("held_out_entropy")

  def _entropy(self, name: str) -> float | None:
    value = self.plan.get(name)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None

  @property
  def rows_per_epoch(self) -> int:
    """Rows that a pass over the training text has; 0 in runs of earlier versions."""
    value = self.plan.get("rows_per_epoch")
    return value if isinstance(value, int) and 0 < value < 1 << 62 else 0

  @property
  def token_metric(self) -> str:
    """The training metric in nats per token; evaluations have it with valid_ in front."""
    return str(self.plan.get("token_metric", "loss"))

  @property
  def loss_bounds(self) -> dict[str, float]:
    """The unigram entropies of the texts by metric, "loss" and "valid_loss", if these are in nats
    per token and not the sum of several heads'.
    """
    if self.token_metric != "loss":
      return {}
    entropies = {"loss": self.unigram_entropy, "valid_loss": self.held_out_entropy}
    return {name: value for name, value in entropies.items() if value is not None}

  @property
  def steps_done(self) -> int:
    logged = max((entry["step"] for entry in self.entries), default=0)
    return max(logged, *self.checkpoints, 0) if self.checkpoints else logged

  @property
  def total_steps(self) -> int | None:
    """The planned length; None in runs of earlier versions that set epochs and did not finish."""
    for value in (self.plan.get("total_steps"), self.result.get("steps")):
      if isinstance(value, int) and value > 0:
        return value
    return self.config.train.steps or None if self.config.train else None

  @property
  def refused(self) -> list[tuple[int, float]]:
    """(step, refused updates since the report before)."""
    return [point for point in self.points("refused_updates") if point[1] > 0]

  @property
  def seconds(self) -> float | None:
    """Time of training and evaluation, without the time between a stop and a resume."""
    times = self.values("time")
    if not times:
      return None
    starts = [start["time"] for start in self.plan.get("starts", [])] or times[:1]
    total = 0.0
    for begin, end in zip(starts, [*starts[1:], math.inf], strict=True):
      inside = [time for time in times if begin <= time <= end]
      # Up to the last entry of this start: what came after it was done again.
      total += max(inside, default=begin) - begin
    return total


def find_runs(workdir: str) -> list[str]:
  """The folder itself, or the runs of several seeds in it."""
  names = listing(workdir)
  if not is_folder(workdir):
    raise InputError(f"--workdir={workdir}: no such folder; name the folder of a run")
  if "config.json" in names:
    return [workdir]
  runs: dict[int, str] = {}  # by seed
  for name in names:
    folder = os.path.join(workdir, name)
    if re.fullmatch(r"seed_\d+", name) and exists(os.path.join(folder, "config.json")):
      runs[int(name.removeprefix("seed_"))] = folder
  if not runs:
    read_config(workdir)  # raises: missing
  return [runs[seed] for seed in sorted(runs)]


def read_run(workdir: str) -> Record:
  """Reads a run's folder; only its config.json must be there, and of a run."""
  saved = read_config(workdir)
  if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict):
    raise InputError(
      f"--workdir={workdir} holds a config.json that no run wrote: not a run's folder"
    )
  notes: list[str] = []
  config, task = _read_objects(saved["config"], notes)
  report = _read_object(os.path.join(workdir, REPORT), notes)
  labels = multi = None
  with _noting(notes, REPORT):
    if report.get("kind") == MULTI_LABEL:
      multi = MultiLabels(int(report["n"]), _classes(report), {})
    elif report:
      labels = _labels(report)
  if multi is not None:
    with _noting(notes, PREDICTIONS):
      multi = dataclasses.replace(
        multi, errors=_label_errors(workdir, report, list(multi.per_class))
      )
  wrong, n_wrong, n_doubtful = _read_wrong(workdir, report, labels, notes)
  result = _read_object(os.path.join(workdir, "result.json"), notes)
  best = result.get("best")
  if not isinstance(best, dict):
    with _noting(notes, "checkpoints"):
      best = best_evaluation(workdir)
  entries: list[dict[str, Any]] = []
  with contextlib.suppress(InputError):  # killed before its first report
    entries = read_metrics(workdir)
  steps: list[str] = []
  with contextlib.suppress(InputError):
    steps = listing(os.path.join(workdir, "checkpoints"))
  samples: list[Sample] = []
  with _noting(notes, "samples.jsonl"):
    samples = read_samples(workdir)
  data = saved.get("data")
  return Record(
    folder=workdir,
    kind=str(saved["config"].get("type")),
    config=config,
    settings=list(_compare(config, type(config)(), "")) if config.train else [],
    data=data if isinstance(data, dict) else {},
    tokenizer=_read_object(os.path.join(workdir, "tokenizer", "tokenizer.json"), notes),
    plan=read_plan(workdir),
    entries=entries,
    result=result,
    best=best or {},
    checkpoints=sorted(int(name) for name in steps if name.isdecimal() and len(name) < 16),
    samples=samples,
    task=task,
    labels=labels,
    wrong=wrong,
    n_wrong=n_wrong,
    n_doubtful=n_doubtful,
    multi=multi,
    notes=notes,
  )


@contextlib.contextmanager
def _noting(notes: list[str], name: str) -> Iterator[None]:
  """Notes why the block could not read a file, and goes on; a missing file is no news."""
  try:
    yield
  except FileNotFoundError:
    pass
  except (OSError, ValueError) as error:
    notes.append(f"{name}: {error}"[:300])
  except Exception as error:  # whatever a damaged file makes a reader or a library raise
    notes.append(f"{name}: not as a run writes it ({error!r})"[:300])


def _read_objects(tree: dict[str, Any], notes: list[str]) -> tuple[RunConfig, LabeledTask | None]:
  """The config and its task: one without fields, and None, if this version cannot read it."""
  config, task = RunConfig(), None
  with _noting(notes, "config.json"):
    made = from_json(tree)
    if not isinstance(made, RunConfig):
      raise InputError(f"a {type(made).__name__}, which is not the config of a run")
    config = made
    task = config.task.build("") if config.task else None
  return config, task


def _compare(node: Any, default: Any, prefix: str) -> Iterator[Setting]:
  """Every field of a config, with the default of the same kind of run."""
  if type(node) is not type(default):  # another trunk or objective than the default
    usual_type = "none" if default is None else type(default).__name__
    yield Setting(f"{prefix}type", type(node).__name__, usual_type, "")
    default = type(node)()
  usual_values = {field.name: value for field, value in settings_of(default)}
  for field, value in with_members(settings_of(node)):
    name, usual = f"{prefix}{field.name}", usual_values.get(field.name)
    if dataclasses.is_dataclass(value):
      yield from _compare(value, usual, f"{name}.")
    else:
      help = field.metadata.get("help", "")
      yield Setting(name, format_value(value), format_value(usual), help)


def _read_object(path: str, notes: list[str]) -> dict[str, Any]:
  """A JSON object; {} with a note if it is no such thing, or has another checksum than it says,
  and without one if there is no file.
  """
  value: Any = {}
  with _noting(notes, os.path.basename(path)):
    saved = read_json(path)
    # Earlier versions wrote no checksum.
    value = verified(saved) if isinstance(saved, dict) and "checksum" in saved else saved
  return value if isinstance(value, dict) else {}


def _labels(report: dict[str, Any]) -> Labels:
  """The content of dev_report.json."""
  labels = Labels(
    names=list(map(str, report["labels"])),
    n=int(report["n"]),
    accuracy=float(report["accuracy"]),
    macro_f1=float(report["macro_f1"]),
    majority=float(report["majority"]),
    per_class=_classes(report),
    confusion=[list(map(int, row)) for row in report["confusion"]],
    calibration=_calibration(report.get("calibration")),
  )
  if {len(labels.confusion), *map(len, labels.confusion)} != {len(labels.names)}:
    raise InputError("the confusion matrix does not fit the labels")
  return labels


def _classes(report: dict[str, Any]) -> dict[str, dict[str, float]]:
  """Label -> precision, recall, f1, support."""
  names, classes = ("precision", "recall", "f1", "support"), {}
  for label in report["labels"]:
    row = report["per_class"][label]
    classes[str(label)] = {name: float(row[name]) for name in names}
  return classes


def _calibration(value: Any) -> dict[str, Any]:
  if not isinstance(value, dict):
    return {}
  bins = []
  for row in value["bins"]:
    if row["count"]:  # an empty bin has neither confidence nor accuracy
      numbers = {name: float(row[name]) for name in ("low", "high", "confidence", "accuracy")}
      bins.append({**numbers, "count": int(row["count"])})
  scalars = {name: float(value[name]) for name in ("temperature", "ece_before", "ece_after")}
  chance = float(value.get("ece_chance", 0))  # of earlier runs: not known
  return {**scalars, "ece_chance": chance, "bins": bins}


def _read_wrong(
  workdir: str, report: dict[str, Any], labels: Labels | None, notes: list[str]
) -> tuple[list[WrongRow], int, int]:
  """The most confident errors of dev_predictions.jsonl, how many errors it has, and how many of
  them have a doubtful label.
  """
  worst: list[WrongRow] = []
  count = doubtful = 0
  if labels is None:
    return worst, count, doubtful
  temperature = labels.calibration.get("temperature", 1.0)
  with _noting(notes, PREDICTIONS):
    for line in prediction_lines(workdir, report):
      row = _wrong_row(line, labels.names, temperature)
      if row is None:
        continue
      count += 1
      doubtful += row.chance < DOUBTFUL
      worst.append(row)
      worst.sort(key=lambda row: -row.confidence)
      del worst[_WORST_ROWS:]
  links = _inspected_texts(workdir) if worst else {}
  return [dataclasses.replace(row, link=links.get(row.shown, "")) for row in worst], count, doubtful


def _wrong_row(line: bytes, names: list[str], temperature: float) -> WrongRow | None:
  """The row of a line; None if its prediction is right."""
  entry = parse_json(line)
  probabilities = list(map(float, entry["probabilities"]))
  predicted = max(range(len(names)), key=probabilities.__getitem__)
  label = str(entry["label"])
  if names[predicted] == label:
    return None
  probabilities = [max(p, 1e-30) ** (1 / temperature) for p in probabilities]
  total = sum(probabilities)
  probabilities = [p / total for p in probabilities]
  chance = probabilities[names.index(label)] if label in names else 0.0
  text, where = str(entry["text"]), str(entry["where"])
  return WrongRow(where, text, label, names[predicted], probabilities[predicted], chance)


def _label_errors(
  workdir: str, report: dict[str, Any], labels: list[str]
) -> dict[str, LabelErrors]:
  """The errors of each label in dev_predictions.jsonl of a multi-label run."""
  errors = {label: LabelErrors() for label in labels}
  for line in prediction_lines(workdir, report):
    entry = parse_json(line)
    where, text = str(entry["where"]), str(entry["text"])
    for label, probability in zip(labels, map(float, entry["probabilities"]), strict=True):
      given = probability >= 0.5
      if given == (label in entry["labels"]):
        continue
      errors[label].given += given
      errors[label].missed += not given
      worst = errors[label].worst
      worst.append(LabelError(where, text, given, probability))
      worst.sort(key=lambda error: -abs(error.probability - 0.5))
      del worst[_WORST_OF_LABEL:]
  return errors


def _inspected_texts(workdir: str) -> dict[str, str]:
  """Shown text -> its place in an inspection page (launch/visualize.py) of the folder, a link."""
  links: dict[str, str] = {}
  for name in sorted(listing(workdir)):
    if not name.endswith(".html"):
      continue
    try:
      page = read_bytes(os.path.join(workdir, name), _MAX_PAGE)
      found = _DATA.search(page.decode()) if _INSPECTION in page[:500] else None
      texts = json.loads(found[1])["texts"] if found else []
      for number, text in enumerate(texts):
        links.setdefault(text["text"], f"{name}#text={number}")
    except (OSError, ValueError, KeyError, TypeError):
      continue  # no page of ours after all
  return links
