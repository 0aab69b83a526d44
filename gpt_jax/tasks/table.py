"""A task on the user's own files: TSV, CSV or JSONL, described by --config.task options."""

import collections
import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.tasks.formats import each_half, first_field
from gpt_jax.tasks.metrics import CLASS_METRICS, accuracy
from gpt_jax.tasks.readers import Row, column_names, read_usable
from gpt_jax.tasks.task import Task, unusable_rows
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
  """Files relative to --data; .csv and .jsonl by their suffix, any other file is TSV."""

  train: str = option("train.tsv", "file of the training rows")
  dev: str = option("dev.tsv", "file of the rows to evaluate on")
  test: str = option(
    "", "file of the test rows, read by launch/evaluate.py --split=test; empty: none"
  )
  columns: tuple[str, ...] = option(
    (),
    "text columns: 1 for classification, 2 for entailment and similarity, context and options for "
    "multiple_choice; empty: text, or all but the label if they are as many",
  )
  label: str = option(
    "",
    "label column; for multiple_choice it holds the column name of the right option; empty: label, "
    "or of two columns the one with fewer values",
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
  dev_share: float = option(
    0.0,
    "hold out this share of the training rows in place of the dev file; rows with equal "
    "texts stay together",
    low=0.0,
    high=0.9,
  )
  folds: int = option(
    0, "as dev_share, but hold out one of so many parts; set by --folds; 0: none", low=0
  )
  fold: int = option(0, "the part that is held out, from 0; set by --folds", low=0)
  skip_bad_rows: bool = option(False, "leave rows out that cannot be used, with a warning")

  def __post_init__(self):
    validate(self)
    self._check_columns()
    if self.folds and self.dev_share:
      raise InputError(
        f"TableTask: folds={self.folds} and dev_share={self.dev_share}; set one of them"
      )
    if self.folds == 1 or self.fold >= max(self.folds, 1):
      raise InputError(
        f"TableTask: fold={self.fold} of folds={self.folds}: should be 2 or more folds, and a fold "
        "from 0 to folds - 1"
      )

  def with_labels(self, data_dir: str) -> "TableTask":
    """Fills in columns and labels, so that a checkpoint's config does not need the training file.

    Warns of labels that differ only by case or spaces.

    Raises:
      InputError: the training file cannot be read, its columns are not clear, or it has fewer than
        two labels.
    """
    table = self._with_columns(data_dir)
    if table.labels:
      labels = table.labels
    elif table.transform == "multiple_choice":
      labels = table.columns[1:]
    else:
      rows = list(read_usable(table._path(data_dir, "train"), table.columns, table.label))
      labels = tuple(sorted({row.label for row in rows if isinstance(row, Row) and row.label}))
      _warn_of_similar(labels, table._path(data_dir, "train"))
      problems = [row for row in rows if isinstance(row, InputError)]
      if len(labels) < 2 and problems and not self.skip_bad_rows:
        raise unusable_rows(problems, can_skip=True)
    if len(labels) < 2:
      path = table._path(data_dir, "train")
      raise InputError(
        f"{path}: column {table.label!r} has the labels {labels}; two or more are needed"
      )
    return dataclasses.replace(table, labels=labels)

  def build(self, data_dir: str) -> Task:
    """The task, with the labels of the training file if none are set.

    Raises:
      InputError: labels that do not fit the transformation or the metric; see also with_labels.
    """
    table = self.with_labels(data_dir)
    labels = table.labels
    is_choice = self.transform == "multiple_choice"
    if is_choice and labels != table.columns[1:]:
      raise InputError(
        f"TableTask.labels: should be the options' columns {table.columns[1:]}, not {labels}"
      )
    if self.metric == "f1" and len(labels) != 2:
      raise InputError(
        f"TableTask.metric: f1 needs two labels, not {', '.join(labels)}; macro_f1 takes any number"
      )
    return Task(
      name="table",
      labels=labels,
      columns=table.columns,
      transform=_TRANSFORMS[self.transform],
      read=table._read,
      metrics={self.metric: CLASS_METRICS[self.metric], "accuracy": accuracy},
      pooling="per_choice" if is_choice else "sum",
      truncate=first_field if is_choice else each_half,
      skip_bad_rows=self.skip_bad_rows,
    )

  def _with_columns(self, data_dir: str) -> "TableTask":
    """With the names of text and label columns, from the training file where they are not set."""
    if self.columns and self.label:
      return self
    path = self._path(data_dir, "train")
    names = column_names(path)
    label = self.label or self._find_label(path, [n for n in names if n not in self.columns])
    texts = [name for name in names if name != label]
    count = _NUM_COLUMNS.get(self.transform)
    if self.columns:
      columns = self.columns
    elif count == 1 and "text" in texts:
      columns = ("text",)
    elif len(texts) == count:
      columns = tuple(texts)
    else:
      raise InputError(
        f"{path}: which of its columns have the text? --config.task.columns=NAME,… says it; they "
        f"are {', '.join(names)}"
      )
    return dataclasses.replace(self, columns=columns, label=label)

  def _find_label(self, path: str, names: Sequence[str]) -> str:
    """The label column, among the columns that may be it."""
    if "label" in names:
      return "label"
    if self.columns and len(names) == 1:
      return names[0]
    if not self.columns and len(names) == 2:
      rows = [row for row in read_usable(path, names) if isinstance(row, Row)]
      values = [{row.texts[i] for row in rows} for i in (0, 1)]
      if len(values[0]) != len(values[1]):
        i = 0 if len(values[0]) < len(values[1]) else 1
        if names[i] in values[i]:
          raise InputError(
            f"{path}:1: should name the columns, but {names[i]!r} is a label of later rows; add a "
            "line such as text, label"
          )
        return names[i]
    raise InputError(
      f"{path}: which of its columns is the label? --config.task.label=NAME says it; they are "
      f"{', '.join(names)}"
    )

  def _check_columns(self) -> None:
    if not self.columns:
      return
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

  def _read(self, data_dir: str, split: str) -> Iterator[Row | InputError]:
    if split == "test" or not (self.folds or self.dev_share):
      path = self._path(data_dir, split)
      try:
        yield from read_usable(path, self.columns, self.label, unlabeled=split == "test")
      except MissingInput as error:
        if split != "dev":
          raise
        raise MissingInput(
          f"{error}; --config.task.dev_share=0.1 holds out a tenth of the training rows instead, "
          "--folds=5 a fifth in each of five runs"
        ) from error
      return
    for row in read_usable(self._path(data_dir, "train"), self.columns, self.label):
      if isinstance(row, InputError):
        if split == "train":  # counted once
          yield row
      elif self._is_held_out(row) == (split == "dev"):
        yield row

  def _is_held_out(self, row: Row) -> bool:
    """By a hash of the texts, so that neither the order nor other rows matter, and duplicates stay
    on one side.
    """
    position = _hash(row.texts)
    if self.folds:
      return int(position * self.folds) == self.fold
    return position < self.dev_share


def _hash(texts: Sequence[str]) -> float:
  """A number from 0 to below 1 that is the same for texts that differ by case and spaces alone."""
  content = "\t".join(map(_normalized, texts))
  digest = hashlib.blake2b(content.encode(), digest_size=6).digest()
  return int.from_bytes(digest, "big") / 2**48


def _normalized(text: str) -> str:
  return " ".join(text.split()).casefold()


def _warn_of_similar(labels: Sequence[str], path: str) -> None:
  spellings = collections.defaultdict(list)
  for label in labels:
    spellings[_normalized(label)].append(label)
  similar = [names for names in spellings.values() if len(names) > 1]
  if similar:
    shown = "; ".join(" and ".join(map(repr, names)) for names in similar)
    warnings.warn(
      f"{path}: labels that differ only by case or spaces count as different: {shown}",
      stacklevel=3,
    )
