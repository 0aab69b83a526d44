"""A task on the user's own files: TSV, CSV or JSONL, described by --config.task options."""

import dataclasses
import os
from collections.abc import Iterator

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.tasks.formats import each_half, first_field
from gpt_jax.tasks.metrics import CLASS_METRICS, accuracy
from gpt_jax.tasks.readers import Row, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import (
  Transform,
  classification,
  entailment,
  multiple_choice,
  similarity,
)

_TRANSFORMS: dict[str, Transform] = {
  "classification": classification,
  "entailment": entailment,
  "similarity": similarity,
  "multiple_choice": multiple_choice,
}
_NUM_COLUMNS = {"classification": 1, "entailment": 2, "similarity": 2}


@register("table_task")
@dataclasses.dataclass(frozen=True)
class TableTask:
  """Files relative to --data_dir; .csv and .jsonl by their suffix, any other file is TSV."""

  train: str = option("train.tsv", "file of the training rows")
  dev: str = option("dev.tsv", "file of the rows to evaluate on")
  test: str = option(
    "", "file of the test rows, read by launch/evaluate.py --split=test; empty: none"
  )
  columns: tuple[str, ...] = option(
    ("text",),
    "text columns: 1 for classification, 2 for entailment and similarity, "
    "context and options for multiple_choice",
  )
  label: str = option(
    "label", "label column; for multiple_choice it holds the column name of the right option"
  )
  labels: tuple[str, ...] = option(
    (), "allowed labels, in order; empty: those of the training file, sorted"
  )
  transform: str = option(
    "classification", "the paper's input transformation", choices=tuple(_TRANSFORMS)
  )
  metric: str = option(
    "accuracy",
    "selects the best checkpoint; f1 is of the second label, macro_f1 the mean over all labels",
    choices=tuple(CLASS_METRICS),
  )

  def __post_init__(self):
    validate(self)
    self._check_columns()

  def with_labels(self, data_dir: str) -> "TableTask":
    """Fills in the labels, so that a checkpoint's config does not need the training file.

    Raises:
      InputError: the training file cannot be read, or has fewer than two labels.
    """
    if self.labels:
      labels = self.labels
    elif self.transform == "multiple_choice":
      labels = self.columns[1:]
    else:
      rows = self._read(data_dir, "train")
      labels = tuple(sorted({row.label for row in rows if row.label}))
    if len(labels) < 2:
      path = self._path(data_dir, "train")
      raise InputError(
        f"{path}: column {self.label!r} has the labels {labels}; two or more are needed"
      )
    return dataclasses.replace(self, labels=labels)

  def build(self, data_dir: str) -> Task:
    """The task, with the labels of the training file if none are set.

    Raises:
      InputError: labels that do not fit the transformation or the metric; see also with_labels.
    """
    labels = self.with_labels(data_dir).labels
    is_choice = self.transform == "multiple_choice"
    if is_choice and labels != self.columns[1:]:
      raise InputError(
        f"TableTask.labels: should be the options' columns {self.columns[1:]}, not {labels}"
      )
    if self.metric == "f1" and len(labels) != 2:
      raise InputError(
        f"TableTask.metric: f1 needs two labels, not {', '.join(labels)}; macro_f1 takes any number"
      )
    return Task(
      name="table",
      labels=labels,
      columns=self.columns,
      transform=_TRANSFORMS[self.transform],
      read=self._read,
      metrics={self.metric: CLASS_METRICS[self.metric], "accuracy": accuracy},
      pooling="per_choice" if is_choice else "sum",
      truncate=first_field if is_choice else each_half,
    )

  def _check_columns(self) -> None:
    if self.transform == "multiple_choice":
      fits, wanted = len(self.columns) >= 3, "3 or more"
    else:
      count = _NUM_COLUMNS[self.transform]
      fits, wanted = len(self.columns) == count, str(count)
    if not fits:
      raise InputError(
        f"TableTask.columns: {self.transform} takes {wanted} text columns, not {self.columns}"
      )
    if len({*self.columns, self.label}) != len(self.columns) + 1:
      raise InputError(
        f"TableTask.columns: {self.columns} and label {self.label!r} should all be different"
      )

  def _path(self, data_dir: str, split: str) -> str:
    file = getattr(self, split)
    if not file:
      raise InputError(
        f"TableTask.{split}: no file is named; --config.task.{split}=FILE, when fine-tuning, "
        "names one"
      )
    return os.path.join(data_dir, file)

  def _read(self, data_dir: str, split: str) -> Iterator[Row]:
    path = self._path(data_dir, split)
    return read_table(path, self.columns, self.label, unlabeled=split == "test")
