"""Reads the folder of a run: config, log, checkpoints, results, predictions, inspection pages.

Values that a kill left out are None or empty.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.checkpoints.restore import best_evaluation
from gpt_jax.checkpoints.run_folder import listing, read_config
from gpt_jax.config import format_value, from_json, settings_of, with_members
from gpt_jax.errors import InputError
from gpt_jax.files import exists, is_folder, parse_json, read_json, verified
from gpt_jax.inference.dev_report import PREDICTIONS, REPORT, prediction_lines
from gpt_jax.models.model import make_heads
from gpt_jax.programs.pretrain_samples import Sample, read_samples
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.labels import MULTI_LABEL
from gpt_jax.training.recipe import RunConfig
from gpt_jax.training.run_log import finite, is_step, read_metrics, read_plan, series

DOUBTFUL = 0.05  # a label with a smaller probability may be wrong
_WORST_ROWS = 12
_MAX_LABELS, _WORST_OF_LABEL = 12, 3  # whose errors are shown, and how many


class Setting(NamedTuple):
  """A field of the config, by its dotted name; values as the command line takes them."""

  name: str
  value: str
  default: str
  help: str


class Labels(NamedTuple):
  """A classifier's dev_report.json; see inference.calibration."""

  labels: list[str]
  n: int  # examples
  accuracy: float
  macro_f1: float
  majority: float  # share of the commonest label
  per_class: dict[str, dict[str, float]]  # label -> precision, recall, f1, support
  confusion: list[list[int]]  # rows are true labels, columns predicted ones
  calibration: dict[str, Any]  # temperature, ece_before, ece_after, ece_chance, bins


class WrongRow(NamedTuple):
  where: str  # file and line
  text: str  # its columns, separated by tabs
  label: str
  predicted: str
  confidence: float  # probability of the predicted label, after temperature scaling
  chance: float  # probability of the true label, likewise


class LabelError(NamedTuple):
  """A label that an example was given wrongly or, if not `given`, that it should have."""

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


class MultiLabels(NamedTuple):
  """dev_report.json and dev_predictions.jsonl of a multi-label run, see Labels."""

  n: int
  per_class: dict[str, dict[str, float]]
  errors: dict[str, LabelErrors]  # of each label; {} if they cannot be read

  def shown_errors(self) -> dict[str, LabelErrors]:
    """Errors of the labels with the lowest F1, among those with any."""
    wrong = [name for name, errors in self.errors.items() if errors.worst]
    wrong.sort(key=lambda name: self.per_class[name]["f1"])
    return {name: self.errors[name] for name in wrong[:_MAX_LABELS]}


class Record:
  """A run as its folder tells it; only its config.json must be there, and of a run."""

  def __init__(self, folder: str):
    saved = read_config(folder)
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict):
      raise InputError(f"--workdir={folder} holds a config.json that no run wrote")
    self.folder = folder
    self.kind = str(saved["config"].get("type"))  # "pretrain", "finetune", …
    self.notes: list[str] = []  # files that could not be read
    # Without fields, and None, if this version cannot read the config.
    self.config = RunConfig()
    self.task: LabeledTask | None = None
    with _noting(self.notes, "config.json"):
      config = from_json(saved["config"])
      if not isinstance(config, RunConfig):
        raise InputError(f"a {type(config).__name__}, which is not the config of a run")
      self.config = config
      self.task = config.task.build("") if config.task else None
    self.settings: list[Setting] = []
    if self.config.train:
      self.settings += _compare(self.config, type(self.config)(), "")
    data = saved.get("data")  # by which a run knows its data
    self.data: dict[str, Any] = data if isinstance(data, dict) else {}
    self.tokenizer = _read_object(os.path.join(folder, "tokenizer", "tokenizer.json"), self.notes)

    plan = self.plan = read_plan(folder)
    # Of the training and of the held-out text, in nats.
    self.unigram_entropy = _entropy(plan, "unigram_entropy")
    self.held_out_entropy = _entropy(plan, "held_out_entropy")
    rows = plan.get("rows_per_epoch")  # of the training text
    self.rows_per_epoch = rows if is_step(rows) else 0
    rows = plan.get("held_out_rows")
    self.held_out_rows = rows if is_step(rows) else 0
    # The training metric in nats per token; evaluations have it with valid_ in front.
    self.token_metric = str(plan.get("token_metric", "loss"))

    self.entries: list[dict[str, Any]] = []  # of metrics.jsonl
    with contextlib.suppress(InputError):  # killed before its first report
      self.entries = read_metrics(folder)
    self.checkpoints: list[int] = []  # the steps that were kept
    with contextlib.suppress(InputError):
      steps = listing(os.path.join(folder, "checkpoints"))
      self.checkpoints = sorted(int(x) for x in steps if x.isdecimal() and len(x) < 16)
    self.samples: list[Sample] = []  # what the model wrote at its evaluations
    with _noting(self.notes, "samples.jsonl"):
      self.samples = read_samples(folder)
    # Of a fine-tuning run that has ended.
    self.result = _read_object(os.path.join(folder, "result.json"), self.notes)
    best = self.result.get("best") or {}
    if not best:
      with _noting(self.notes, "checkpoints"):
        best = best_evaluation(folder) or {}
    # The metrics of the best checkpoint that are finite numbers, and its "step".
    self.best = {name: value for name, value in best.items() if finite(value) is not None}
    self._read_dev_set()

  def _read_dev_set(self) -> None:
    """dev_report.json and dev_predictions.jsonl, which classification tasks have."""
    report = _read_object(os.path.join(self.folder, REPORT), self.notes)
    self.labels: Labels | None = None
    self.multi: MultiLabels | None = None  # of a multi-label task
    self.wrong: list[WrongRow] = []  # the most confident errors
    self.n_wrong = self.n_doubtful = 0  # all errors; those of which the label may be wrong
    with _noting(self.notes, REPORT):
      if report.get("kind") == MULTI_LABEL:
        self.multi = MultiLabels(report["n"], report["per_class"], {})
      elif report:
        report = {"calibration": {}} | report
        self.labels = Labels(**{name: report[name] for name in Labels._fields})
    with _noting(self.notes, PREDICTIONS):
      if self.multi:
        lines = prediction_lines(self.folder, report)
        self.multi.errors.update(_label_errors(lines, self.multi.per_class))
      elif self.labels:
        temperature = self.labels.calibration.get("temperature", 1.0)
        for line in prediction_lines(self.folder, report):
          row = _wrong_row(line, self.labels.labels, temperature)
          if row is not None:
            self.n_wrong += 1
            self.n_doubtful += row.chance < DOUBTFUL
            self.wrong.append(row)
            self.wrong.sort(key=lambda row: -row.confidence)
            del self.wrong[_WORST_ROWS:]

  def series(self, name: str, factor: float = 1.0) -> tuple[list[int], list[float | None]]:
    steps, values = series(self.entries, name)
    return steps, [None if value is None else factor * value for value in values]

  def points(self, name: str) -> list[tuple[int, float]]:
    """The finite values of a metric: (step, value)."""
    steps, values = self.series(name)
    return [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]

  def values(self, name: str) -> list[float]:
    return [value for _, value in self.points(name)]

  @property
  def metric_names(self) -> list[str]:
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
  def loss_bounds(self) -> dict[str, float]:
    """Unigram entropies of the texts in nats per token by metric; none if the loss is the sum of
    several heads'.
    """
    if self.token_metric != "loss":
      return {}
    entropies = {"loss": self.unigram_entropy, "valid_loss": self.held_out_entropy}
    return {name: value for name, value in entropies.items() if value is not None}

  @property
  def steps_done(self) -> int:
    return max([0, *self.checkpoints, *(entry["step"] for entry in self.entries)])

  @property
  def steps_per_epoch(self) -> float:
    """Updates in a pass over the training text or examples; 0: not known."""
    batches = self.config if self.config.data is None else self.config.data
    if self.rows_per_epoch and batches.batch_size:  # 0 of a config that cannot be read
      return self.rows_per_epoch / batches.batch_size  # some rows are padded
    return 0.0

  @property
  def total_steps(self) -> int | None:
    """The planned length; None if plan.json, which is written first, does not say it."""
    planned = self.plan.get("total_steps")
    return planned or None if is_step(planned) else None

  @property
  def is_finished(self) -> bool:
    return self.total_steps is None or self.steps_done >= self.total_steps

  @property
  def is_over(self) -> bool:
    """Whether it is finished, or was stopped early for good."""
    return self.is_finished or bool(self.result)

  def examples(self, split: str) -> int:
    """How many examples a fine-tuning has of a split; 0: not known."""
    # "1,320 examples, checksum …"
    count = str(self.data.get(split)).partition(" ")[0].replace(",", "")
    return int(count[:12]) if count.isdecimal() else 0

  @property
  def from_scratch(self) -> bool:
    """Whether a fine-tuning began from random weights."""
    return self.config.starts_anew(self.data.get("pretrained"))

  def chance(self, held_out: bool = False) -> float | None:
    """The loss at which a run that predicts no tokens has learned nothing; None: not known."""
    objective, rows = self.config.objective, self.config.data
    if objective is None or rows is None or self.unigram_entropy is not None:
      return None
    count = rows.batch_size
    if held_out and self.held_out_rows:
      count = min(count, self.held_out_rows)
    return next((head.chance(count) for head in make_heads(objective.heads)), None)

  @property
  def refused(self) -> list[tuple[int, float]]:
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


def find_runs(workdirs: Sequence[str]) -> list[str]:
  """Each folder itself, or the runs of several seeds or folds in it."""
  if not workdirs:
    raise InputError("no run: name its folder with --workdir=DIR")
  found: dict[str, None] = {}
  for workdir in workdirs:
    names = listing(workdir)
    if not is_folder(workdir):
      raise InputError(f"--workdir={workdir}: no such folder; name the folder of a run")
    if "config.json" in names:
      found[workdir] = None
      continue
    runs: dict[int, str] = {}  # by seed or fold
    for name in names:
      folder = os.path.join(workdir, name)
      if re.fullmatch(r"(seed|fold)_\d+", name) and exists(os.path.join(folder, "config.json")):
        runs[int(name.partition("_")[2])] = folder
    if not runs:
      read_config(workdir)  # raises: missing
    found |= dict.fromkeys(runs[seed] for seed in sorted(runs))
  return list(found)


def _entropy(plan: dict[str, Any], name: str) -> float | None:
  value = finite(plan.get(name))
  return value if value is not None and value > 0 else None


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
  """A JSON object without its checksum; {}, with a note, if it is damaged or has none."""
  with _noting(notes, os.path.basename(path)):
    return verified(read_json(path))
  return {}


def _wrong_row(line: bytes, names: list[str], temperature: float) -> WrongRow | None:
  """The row of a line; None if its prediction is right."""
  entry = parse_json(line)
  probabilities = list(map(float, entry["probabilities"]))
  predicted = max(range(len(names)), key=probabilities.__getitem__)
  label = str(entry["label"])
  if names[predicted] == label:
    return None
  scaled = [max(p, 1e-30) ** (1 / temperature) for p in probabilities]
  total = sum(scaled)
  chance = scaled[names.index(label)] / total if label in names else 0.0
  of_row = str(entry["where"]), str(entry["text"]), label, names[predicted]
  return WrongRow(*of_row, scaled[predicted] / total, chance)


def _label_errors(lines: Iterator[bytes], labels: Iterable[str]) -> dict[str, LabelErrors]:
  """The errors of each label in dev_predictions.jsonl of a multi-label run."""
  errors = {label: LabelErrors() for label in labels}
  for line in lines:
    entry = parse_json(line)
    where, text = str(entry["where"]), str(entry["text"])
    for label, probability in zip(errors, map(float, entry["probabilities"]), strict=True):
      given, of_label = probability >= 0.5, errors[label]
      if given == (label in entry["labels"]):
        continue
      of_label.given += given
      of_label.missed += not given
      of_label.worst.append(LabelError(where, text, given, probability))
      of_label.worst.sort(key=lambda error: -abs(error.probability - 0.5))
      del of_label.worst[_WORST_OF_LABEL:]
  return errors
