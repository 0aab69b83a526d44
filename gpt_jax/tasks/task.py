"""The Task type, one label per example: its rows, input transformation (figure 1) and metrics.

To add a task, write a file below gpt_jax/tasks/ with a function read(data_dir, split) -> rows, from
one of the functions in readers.py, and `TASKS = (Task(name="<name>", …),)`; trec.py is an example.
Nothing else is edited: `python launch/tasks.py` lists the new task, and
`--config=configs/finetune.py:<name>` trains on it. For a task without code see table.py.
"""

import collections
import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt_jax import tasks
from gpt_jax.config import Config, option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError, counted, did_you_mean
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded, Example, Truncate, encode
from gpt_jax.tasks.formats import GPT, Format
from gpt_jax.tasks.metrics import Metric, accuracy, class_report, most_likely
from gpt_jax.tasks.readers import Row, as_known, of_form, read_tfds
from gpt_jax.tasks.transforms import Sequences, Transform, similarity

SPLITS = ("train", "dev", "test")
_LISTED = 10  # rows that cannot be used, named in an error


@dataclasses.dataclass(frozen=True)
class Task(LabeledTask):
  """A task with one label per example. Other answers are subclasses: answers/."""

  name: str
  labels: tuple[str, ...]  # the names of the K classes, as the rows write them
  columns: tuple[str, ...]
  transform: Transform  # the texts of a row -> its C sequences; one of transforms.py
  # (data_dir, split) -> rows, from the official files; split is "train", "dev" or "test". A row
  # that cannot be used may be the error that says why.
  read: Callable[[str, str], Iterable[Row | InputError]]
  # Name -> metric(truth [N], predicted [N]); the first one is primary
  metrics: Mapping[str, Metric] = dataclasses.field(default_factory=lambda: {"accuracy": accuracy})
  # "sum" adds the representations of the C sequences; "per_choice" scores each of them, and K = C
  pooling: str = "sum"
  # A function of formats.py, such as first_field; None: as the format does
  truncate: Truncate | None = None
  # A row's label -> distribution over the classes; None: one-hot at the label's name. Raises
  # ValueError saying what the label should be.
  target: Callable[[str], tuple[float, ...]] | None = None
  # Distributions [N, K] -> the values that the metrics compare, [N]
  value: Callable[[np.ndarray], np.ndarray] = most_likely
  # The TFDS data sets that hold the task, read if data_dir is "tfds:DIR"
  tfds: tuple[str, ...] = ()
  # "train", "dev" or "test" -> the split's name in TFDS, if different
  tfds_splits: Mapping[str, str] = dataclasses.field(default_factory=dict)
  # (TFDS record, location) -> rows, none to leave the record out; None: the record has features
  # named like the columns, and "label"
  tfds_rows: Callable[[dict[str, Any], str], Iterable[Row]] | None = None
  paper: str = ""
  # Leave rows out that cannot be used; None: the task has no such option
  skip_bad_rows: bool | None = None
  pair: str = ""
  # Whether a row is read where some of its texts are empty, as its sequence joins them all
  partial: bool = False
  merge_labels: bool = False  # a label is the one that differs from it by its form alone
  label: str = ""  # the label column of the user's table

  @property
  def head(self) -> dict[str, Any]:
    """A name and sizes, since the class is a model and this subpackage knows only numpy."""
    return {"type": "classify", "num_classes": self.num_classes, "pooling": self.pooling}

  @property
  def is_classification(self) -> bool:
    # A target of its own is a score, a number or several labels.
    return self.target is None

  @property
  def wanted(self) -> str:
    """What a label should be, for messages."""
    return f"one of {', '.join(self.labels)}"

  @property
  def kind(self) -> str:
    """The column of figure 1 that the task belongs to."""
    if self.pooling == "per_choice":
      return "multiple choice"
    sequences = self.transform(*self.columns)
    if len(sequences) == 2:
      return "similarity"
    return "classification" if len(sequences[0]) == 1 else "entailment"

  def examples(self, data_dir: str, split: str) -> list[Example]:
    """Reads the examples of a split, in the order of the files."""
    if split not in SPLITS:
      raise InputError(f"split {split!r} of {self.name}: should be one of {', '.join(SPLITS)}")
    read = self._read_tfds if data_dir.startswith("tfds:") else self.read
    rows = read(data_dir.removeprefix("tfds:"), split)
    missing = f"no label; {split} rows need {self.wanted}" if split != "test" else ""
    examples, problems = make_examples(rows, self.example, missing)
    if problems and not self.skip_bad_rows:
      raise unusable_rows(problems, self.skip_bad_rows is not None)
    if problems:
      warnings.warn(f"left out: {unusable_rows(problems)}", stacklevel=2)
    if not examples:
      raise InputError(
        f"{self.name}: no examples in the {split} split of {data_dir or 'its files'}"
      )
    return examples

  def example(self, row: Row) -> Example:
    if column := self.empty_column(row.texts):
      raise InputError(f"{row.location}: column {column!r} is empty; fill it in or remove the row")
    label = None if row.label is None else self.target_of(row.label, row.location)
    texts = [text if text.strip() else "" for text in row.texts]
    return Example(self.transform(*texts), label, row.location)

  def empty_column(self, texts: Sequence[str]) -> str:
    """The empty column for which a row of these texts cannot be read; "" if it can."""
    columns = self.columns_of(len(texts))
    empty = [column for column, text in zip(columns, texts, strict=True) if not text.strip()]
    if self.partial and len(empty) < len(columns):
      return ""
    return empty[0] if empty else ""

  def columns_of(self, count: int) -> tuple[str, ...]:
    """The columns of a row of so many texts, which may have one of `pair` besides."""
    return (*self.columns, self.pair) if self.pair and count > len(self.columns) else self.columns

  def encode(
    self, examples: list[Example], tokenizer: Tokenizer, context: int, format: Format = GPT
  ) -> Encoded:
    if self._reads_one_order(format):
      examples = [example._replace(sequences=example.sequences[:1]) for example in examples]
    sizes = context, self.truncate, self.num_classes
    return encode(examples, tokenizer, *sizes, format, self.partial)

  def sequences(self, columns: Sequence[str], format: Format) -> Sequences:
    """A row's texts as the sequences that a model of the format reads."""
    sequences = self.transform(*columns)
    return sequences[:1] if self._reads_one_order(format) else sequences

  def _reads_one_order(self, format: Format) -> bool:
    # Others get a pair as it is given: they attend both ways, or were so fine-tuned.
    return self.transform is similarity and not format.both_orders

  def _read_tfds(self, data_dir: str, split: str) -> Iterator[Row]:
    if not self.tfds:
      raise InputError(f"data_dir=tfds:{data_dir}: task {self.name} is not in TFDS")
    make_rows = self.tfds_rows or self._rows_by_column
    for data_set in self.tfds:
      total = dropped = 0
      for location, record in read_tfds(data_set, self.tfds_splits.get(split, split), data_dir):
        rows = list(make_rows(record, location))
        total += 1
        dropped += not rows
        yield from rows
      if dropped:
        warnings.warn(
          f"tfds:{data_dir}: left out for lack of a label or a text: {dropped} of {total} rows of "
          f"{data_set} ({split})",
          stacklevel=2,
        )

  def _rows_by_column(self, record: dict[str, Any], location: str) -> Iterator[Row]:
    texts = tuple(record[column] for column in self.columns)
    label = record["label"]
    yield Row(texts, None if label is None else str(label), location)

  def describe_labels(self, labels: np.ndarray) -> str:
    if not labels.any():
      return ""
    # Labels are distributions [N, K]: an example may count for several classes.
    shares = zip(self.labels, labels.sum(axis=0) / labels.sum(), strict=True)
    return "labels: " + ", ".join(f"{name} {share:.1%}" for name, share in shares)

  def target_of(self, label: str, location: str) -> tuple[float, ...]:
    """A row's label as the target of the head."""
    if self.target is not None:
      try:
        return self.target(label)
      except ValueError as error:
        raise InputError(f"{location}: label {label!r}: {error}") from error
    label = as_known(label, self.labels, self.merge_labels)
    if label not in self.labels:
      similar = of_form(label, self.labels)
      raise InputError(f"{location}: label {label!r}: should be {self.wanted}{similar}")
    return tuple(float(name == label) for name in self.labels)

  def loss(self, predictions: np.ndarray, truth: np.ndarray) -> float:
    """The mean cross-entropy in nats; see `score`."""
    # A probability that float32 rounded to 0 costs 69 nats, not infinitely many.
    return float(-(truth * np.log(np.maximum(predictions, 1e-30))).sum(-1).mean())

  def constant_loss(self, labels: np.ndarray) -> float:
    # Of all constant answers the shares of the labels have the lowest cross-entropy.
    return self.loss(np.broadcast_to(labels.mean(axis=0), labels.shape), labels)

  def check_metrics(self) -> None:
    # Values that differ: of constants a correlation is 0 without its package.
    values = self.value(np.eye(max(2, self.num_classes)))
    for metric in self.metrics.values():
      metric(values, values)

  def baselines(self, truth: np.ndarray) -> dict[str, float]:
    """baseline_<metric> of the best constant prediction, for tasks that report it."""
    return {}

  def score(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """See LabeledTask.score; with baselines. Both arguments are distributions, [N, K]."""
    expected, predicted = self.value(np.asarray(truth)), self.value(np.asarray(predictions))
    scores = {name: float(metric(expected, predicted)) for name, metric in self.metrics.items()}
    scores |= self.baselines(truth)
    if self._is_degenerate(predictions):
      scores["degenerate"] = 1.0
    return scores

  def _is_degenerate(self, predictions: np.ndarray) -> bool:
    # Not 0: equal predictions differ in their last bits with their position in the batch.
    return np.ptp(self.value(np.asarray(predictions))) <= 1e-3

  def details(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    return {"classes": self.dev_report(predictions, truth)} if self.is_classification else {}

  def dev_report(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return class_report(self.labels, predictions, labels.argmax(axis=-1))

  def truth_entry(self, label: np.ndarray) -> dict[str, Any]:
    return {"label": self.labels[label.argmax()]}

  def answer(self, prediction: np.ndarray) -> Any:
    """What `classify` answers: the probability of every label."""
    return dict(zip(self.labels, map(float, prediction), strict=True))

  def served(self, answer: Any) -> dict[str, Any]:
    """An `answer` as the server's JSON."""
    return {"label": max(answer, key=answer.get), "probabilities": answer}

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The most likely label or the task's own value (STS-B's score), and all probabilities [K]."""
    value = self.value(prediction[None])[0]
    answer = self.labels[value] if self.is_classification else round(float(value), 4)
    return {"prediction": answer, "probabilities": self.answer(prediction)}


def make_examples(
  rows: Iterable[Row | InputError], make: Callable[[Row], Any], missing: str
) -> tuple[list[Any], list[InputError]]:
  """The examples, and the problems of all rows that are none, so that a user sees them at once.

  Args:
    make: an example of a row.
    missing: the problem of a row without a label; "": it needs none.
  """
  examples, problems = [], []
  for row in rows:
    try:
      if isinstance(row, InputError):
        raise row
      example = make(row)
      if missing and example.label is None:
        raise InputError(f"{example.location}: {missing}")
      examples.append(example)
    except InputError as problem:
      problems.append(problem)
  return examples, problems


def unusable_rows(problems: Sequence[InputError], can_skip: bool = False) -> InputError:
  """One error for all rows that cannot be used, with the lines of each problem.

  Args:
    problems: messages that begin with "file:line: "; a single one stays as it is.
    can_skip: whether config.task.skip_bad_rows leaves them out.
  """
  if len(problems) == 1:
    advice = "; config.task.skip_bad_rows=True leaves it out" if can_skip else ""
    return InputError(f"{problems[0]}{advice}")
  # Rows with the same problem share a line of the message: problem -> numbers of their lines.
  file, lines = "", collections.defaultdict(list)
  for problem in problems[:_LISTED]:
    location, _, text = str(problem).partition(": ")  # "file:12: column 'a' is empty"
    file, _, line = location.rpartition(":")
    lines[text].append(line)
  parts = [f"{text} (line {', '.join(numbers)})" for text, numbers in lines.items()]
  if len(problems) > _LISTED:
    parts.append(f"and {len(problems) - _LISTED:,} more")
  if can_skip:
    parts.append("config.task.skip_bad_rows=True leaves them out")
  return InputError(f"{file}: {counted(len(problems), 'row')} cannot be used: {'; '.join(parts)}")


class TaskConfig(Config):
  """Base of the configs that select a task."""

  columns: Any = ()
  has_folds = False  # whether a part of the training file can be held out
  writes_text = False  # whether a language model writes the answers, whatever the checkpoint is

  def with_labels(self, data_dir: str) -> Any:
    """The config with all that it takes from its training file, such as labels."""
    return self

  def build(self, data_dir: str) -> Any:
    """The LabeledTask."""
    raise NotImplementedError


@register("builtin_task")
@dataclasses.dataclass(frozen=True)
class BuiltinTask(TaskConfig):
  """Selects a task of this package by its name."""

  name: str = option("cola", "name of a task in gpt_jax/tasks, e.g. cola or race-middle")

  def build(self, data_dir: str) -> LabeledTask:
    return find(self.name)


def find(name: str) -> LabeledTask:
  """Finds a task by its name."""
  by_name = {task.name: task for task in all_tasks()}
  if name in by_name:
    return by_name[name]
  names, of_files = ", ".join(by_name), ("table", "tags")
  if name in of_files:
    advice = f"as configs/finetune.py:{name}; here give one of {names}"
    fault = f"task {name!r}: is for files of your own, {advice}"
  else:
    known = f"the tasks are {names}, and for files of your own table and tags"
    fault = f"no task {name!r}{did_you_mean(name, [*by_name, *of_files])} ({known})"
  raise InputError(fault)


def all_tasks() -> list[LabeledTask]:
  """The tasks in the TASKS of all modules below gpt_jax/tasks, sorted by their names."""
  modules = []
  for root in map(Path, tasks.__path__):
    for path in root.rglob("*.py"):
      parts = path.relative_to(root).with_suffix("").parts
      # Not the copies that editors leave, e.g. .ipynb_checkpoints/rte-checkpoint.py.
      if path.name != "__init__.py" and all(part.isidentifier() for part in parts):
        modules.append(".".join((tasks.__name__, *parts)))
  by_name: dict[str, LabeledTask] = {}
  origin: dict[str, str] = {}
  for module in sorted(modules):
    for task in getattr(importlib.import_module(module), "TASKS", ()):
      if task.name in by_name:
        raise InputError(f"two tasks named {task.name!r}: in {origin[task.name]} and in {module}")
      by_name[task.name], origin[task.name] = task, module
  return [by_name[name] for name in sorted(by_name)]
