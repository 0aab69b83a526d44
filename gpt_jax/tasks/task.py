"""What a labeled task is: rows, the paper's input transformation (its figure 1), label names
and metrics.
"""

import dataclasses
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gpt_jax import tasks
from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.tasks.encoding import Encoded, Example, each_half, encode
from gpt_jax.tasks.readers import Row, tfds_records
from gpt_jax.tasks.transforms import Sequences

SPLITS = ("train", "dev", "test")


def most_likely(distributions: np.ndarray) -> np.ndarray:
  """[N, K] -> the index of the most likely outcome, [N]."""
  return np.argmax(distributions, axis=-1)


@dataclasses.dataclass(frozen=True)
class Task:
  """A labeled task.

  Attributes:
    name: e.g. "race-middle".
    labels: the names of the K outcomes, as the rows have them (or as `target` makes of them).
    columns: the names of the text columns.
    sequences: (a row's texts) -> its C sequences; classification, entailment, similarity,
      multiple_choice.
    read: (data_dir, split) -> rows, from the official files; split is "train", "dev" or "test".
    metrics: name -> metric(truth [N], predicted [N]); the first is the primary one.
    combine: "sum" adds the representations of the C sequences; "per_choice" scores each, and K = C.
    truncate: (field lengths [S, F], context) -> kept lengths; see data.examples.
    target: a row's label -> distribution over the outcomes; None: all on the outcome of that name.
    value: distributions [N, K] -> what the metrics compare, [N].
    tfds: the TFDS data sets that hold the task, read when data_dir is "tfds:DIR".
    tfds_splits: "train", "dev" or "test" -> its name there, where it is another.
    parse: (a TFDS record, its name) -> rows, none where the record is to be left out; None: the
      columns and "label" by their names.
    paper: the paper's result with its source.
  """

  name: str
  labels: tuple[str, ...]
  columns: tuple[str, ...]
  sequences: Callable[..., Sequences]
  read: Callable[[str, str], Iterable[Row]]
  metrics: Mapping[str, Callable[[np.ndarray, np.ndarray], float]]
  pooling: str = "sum"
  truncate: Callable[[np.ndarray, int], np.ndarray] = each_half
  target: Callable[[str], tuple[float, ...]] | None = None
  value: Callable[[np.ndarray], np.ndarray] = most_likely
  tfds: tuple[str, ...] = ()
  tfds_splits: Mapping[str, str] = dataclasses.field(default_factory=dict)
  parse: Callable[[dict[str, Any], str], Iterable[Row]] | None = None
  paper: str = ""

  @property
  def num_classes(self) -> int:
    return len(self.labels)

  @property
  def primary_metric(self) -> str:
    return next(iter(self.metrics))

  def examples(self, data_dir: str, split: str) -> list[Example]:
    """The examples of a split, in the order of the files.

    Raises:
      InputError: naming file and line, for anything missing or malformed, an empty text, or no
        label outside "test".
    """
    if split not in SPLITS:
      raise InputError(f"split {split!r} of {self.name}: should be one of {', '.join(SPLITS)}")
    rows = (
      self._tfds_rows(data_dir.removeprefix("tfds:"), split)
      if data_dir.startswith("tfds:")
      else self.read(data_dir, split)
    )
    examples = [self.example(row) for row in rows]
    if not examples:
      raise InputError(
        f"{self.name}: no examples in the {split} split of {data_dir or 'its files'}"
      )
    missing = next((example.name for example in examples if example.label is None), None)
    if missing and split != "test":
      raise InputError(f"{missing}: no label; {split} rows need one of {', '.join(self.labels)}")
    return examples

  def example(self, row: Row) -> Example:
    """Applies the input transformation, and turns the label into a distribution.

    Raises:
      InputError: naming file and line, for an empty text or an unknown label.
    """
    for column, text in zip(self.columns, row.texts, strict=True):
      if not text.strip():
        raise InputError(f"{row.name}: column {column!r} is empty; fill it in or remove the row")
    return Example(
      self.sequences(*row.texts), None if row.label is None else self._distribution(row), row.name
    )

  def encode(self, examples: list[Example], tokenizer: Any, context: int) -> Encoded:
    """Token ids under this task's truncation rule."""
    return encode(examples, tokenizer, context, self.truncate, self.num_classes)

  def score(self, probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The task's metrics, the primary one first; "degenerate" is there, and 1, where all
    predictions are the same.

    Args:
      probabilities: [N, K], predicted.
      labels: [N, K], true.
    """
    truth, predicted = self.value(np.asarray(labels)), self.value(np.asarray(probabilities))
    result = {name: float(metric(truth, predicted)) for name, metric in self.metrics.items()}
    # Not 0: of one and the same prediction the last bits differ with the place in a batch.
    return result if np.ptp(predicted) > 1e-3 else {**result, "degenerate": 1.0}

  def _distribution(self, row: Row) -> tuple[float, ...]:
    try:
      if self.target:
        return self.target(row.label)
      index = self.labels.index(row.label)
    except ValueError as error:
      allowed = str(error) if self.target else f"should be one of {', '.join(self.labels)}"
      raise InputError(f"{row.name}: label {row.label!r}: {allowed}") from error
    return tuple(float(k == index) for k in range(self.num_classes))

  def _tfds_rows(self, data_dir: str, split: str) -> Iterable[Row]:
    if not self.tfds:
      raise InputError(f"--data_dir=tfds:{data_dir}: task {self.name} is not in TFDS")
    for data_set in self.tfds:
      total = dropped = 0
      for name, record in tfds_records(data_set, self.tfds_splits.get(split, split), data_dir):
        rows = list((self.parse or self._by_name)(record, name))
        total, dropped = total + 1, dropped + (not rows)
        yield from rows
      if dropped:
        message = f"tfds:{data_dir}: {dropped} of {total} rows of {data_set} ({split}) lack a label or a text"
        warnings.warn(f"{message} and are left out", stacklevel=2)

  def _by_name(self, record: dict[str, Any], name: str) -> Iterator[Row]:
    label = record["label"]
    yield Row(
      tuple(record[column] for column in self.columns), None if label is None else str(label), name
    )


@register("builtin_task")
@dataclasses.dataclass(frozen=True)
class BuiltinTask:
  """The config of a task of this package: which one."""

  name: str = option("cola", "a task of gpt_jax/tasks, e.g. cola or race-middle")

  def __post_init__(self):
    validate(self)

  def with_labels(self, data_dir: str) -> "BuiltinTask":
    return self  # nothing to learn from the files; see TableTask

  def build(self, data_dir: str) -> Task:
    return find(self.name)


def find(name: str) -> Task:
  """The task of that name: "race-middle" is in the TASKS of gpt_jax/tasks/reading/race.py."""
  module = _modules().get(name.partition("-")[0])
  for task in _tasks(module) if module else ():
    if task.name == name:
      return task
  names = ", ".join(task.name for task in all_tasks())
  raise InputError(f"no task {name!r}; the tasks are {names}, and table for files of your own")


def all_tasks() -> list[Task]:
  """All tasks of this package, by the names of their files."""
  return [task for _, module in sorted(_modules().items()) for task in _tasks(module)]


def _modules() -> dict[str, str]:
  """File name without its suffix -> dotted name, of every file in gpt_jax/tasks/ and its
  folders.
  """
  found = pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}.")
  return {module.name.rpartition(".")[2]: module.name for module in found if not module.ispkg}


def _tasks(module: str) -> tuple[Task, ...]:
  return getattr(importlib.import_module(module), "TASKS", ())
