"""A task from the user's own files: TSV, CSV or JSONL, with the columns, labels and input
transformation named.
"""

import dataclasses
import os
from collections.abc import Iterator

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.tasks import metrics
from gpt_jax.tasks.encoding import each_half, first_field
from gpt_jax.tasks.readers import Row, table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification, entailment, multiple_choice, similarity

_TRANSFORMS = {
  "classification": classification,
  "entailment": entailment,
  "similarity": similarity,
  "multiple_choice": multiple_choice,
}


@register("table_task")
@dataclasses.dataclass(frozen=True)
class TableTask:
  """Files of the user's own, relative to --data_dir; .csv and .jsonl are what they say, any
  other suffix is TSV.
  """

  train: str = option("train.tsv", "file of the training rows")
  dev: str = option("dev.tsv", "file of the rows to evaluate on")
  test: str = option(
    "", "file of the test rows, read by launch/evaluate.py --split=test; empty: none"
  )
  columns: tuple[str, ...] = option(
    ("text",),
    "text columns: 1 for classification, 2 for entailment and similarity, context and options for multiple_choice",
  )
  label: str = option(
    "label", "label column; for multiple_choice it holds the name of the right option's column"
  )
  labels: tuple[str, ...] = option(
    (), "the allowed labels, in order; empty: those found in the training file, sorted"
  )
  transform: str = option(
    "classification", "the paper's input transformation", choices=tuple(_TRANSFORMS)
  )
  metric: str = option(
    "accuracy",
    "what selects the best checkpoint; f1 is of the second label",
    choices=("accuracy", "f1", "matthews"),
  )

  def __post_init__(self):
    validate(self)
    wanted = {
      "classification": "1",
      "entailment": "2",
      "similarity": "2",
      "multiple_choice": "3 or more",
    }[self.transform]
    if len(self.columns) != int(wanted[0]) and not (
      self.transform == "multiple_choice" and len(self.columns) > 3
    ):
      raise InputError(
        f"TableTask.columns: {self.transform} takes {wanted} text columns, not {self.columns}"
      )
    if len(set(self.columns)) != len(self.columns) or self.label in self.columns:
      raise InputError(
        f"TableTask.columns: {self.columns} and label {self.label!r} should all be different columns"
      )

  def with_labels(self, data_dir: str) -> "TableTask":
    """With the labels filled in, so that a checkpoint's config can do without the training file."""
    if self.labels:
      labels = self.labels
    elif self.transform == "multiple_choice":
      labels = self.columns[1:]
    else:
      labels = tuple(sorted({row.label for row in self._read(data_dir, "train") if row.label}))
    if len(labels) < 2:
      raise InputError(
        f"{self._path(data_dir, 'train')}: column {self.label!r} has the labels {labels}; two or more are needed"
      )
    return dataclasses.replace(self, labels=labels)

  def build(self, data_dir: str) -> Task:
    with_labels = self.with_labels(data_dir)
    choose = self.transform == "multiple_choice"
    if choose and with_labels.labels != self.columns[1:]:
      raise InputError(
        f"TableTask.labels: should be the options' columns {self.columns[1:]}, not {with_labels.labels}"
      )
    if self.metric == "f1" and len(with_labels.labels) != 2:
      raise InputError(
        f"TableTask.metric: f1 needs two labels, not {', '.join(with_labels.labels)}"
      )
    return Task(
      name="table",
      labels=with_labels.labels,
      columns=self.columns,
      sequences=_TRANSFORMS[self.transform],
      read=self._read,
      metrics={self.metric: getattr(metrics, self.metric), "accuracy": metrics.accuracy},
      pooling="per_choice" if choose else "sum",
      truncate=first_field if choose else each_half,
    )

  def _path(self, data_dir: str, split: str) -> str:
    name = getattr(self, split)
    if not name:
      raise InputError(
        f"TableTask.{split}: no file is named; --config.task.{split}=FILE, when fine-tuning, names one"
      )
    return os.path.join(data_dir, name)

  def _read(self, data_dir: str, split: str) -> Iterator[Row]:
    return table(self._path(data_dir, split), self.columns, self.label, unlabeled=split == "test")
