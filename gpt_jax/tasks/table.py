"""A task on the user's own files: TSV, CSV or JSONL, described by config.task options."""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence, Set
from typing import Any, ClassVar

from gpt_jax import files
from gpt_jax.config import option, register
from gpt_jax.errors import InputError, MissingInput, counted, warn_once
from gpt_jax.tasks import transforms
from gpt_jax.tasks.answers.labels import MultiLabelTask, split_labels
from gpt_jax.tasks.answers.number import RegressionTask, Scale, is_number, parse_number
from gpt_jax.tasks.formats import first_field
from gpt_jax.tasks.metrics import (
  CLASS_METRICS,
  MULTI_LABEL_METRICS,
  REGRESSION_ERRORS,
  REGRESSION_METRICS,
  Metric,
  accuracy,
)
from gpt_jax.tasks.readers import Row, Table, merge_similar, split_usable
from gpt_jax.tasks.task import Task, TaskConfig, unusable_rows

_TRANSFORMS: dict[str, transforms.Transform] = {
  "classification": transforms.classification,
  "entailment": transforms.entailment,
  "similarity": transforms.similarity,
  "multiple_choice": transforms.multiple_choice,
}
_NUM_COLUMNS = {"classification": 1, "entailment": 2, "similarity": 2}
# What may select the best checkpoint; the first is the default.
_METRICS: dict[str, dict[str, Metric]] = {
  "one_label": CLASS_METRICS,
  "multi_label": MULTI_LABEL_METRICS,
  "regression": REGRESSION_METRICS,
}
_MANY_NUMBERS = 50  # different labels, all of them numbers, that look like regression
_FEW_ROWS, _DISTINCT = 20, 0.8  # share of more rows with a label of their own that is no label


@register("table_task")
@dataclasses.dataclass(frozen=True)
class TableTask(TaskConfig):
  """Files relative to data_dir; .csv and .jsonl by their suffix, any other file is TSV."""

  train: str = option("train.tsv", "file of the training rows")
  dev: str = option("dev.tsv", "file of the rows to evaluate on")
  test: str = option("", "file of the test rows, read by evaluate with split=test; empty: none")
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
  kind: str = option(
    "one_label",
    "what the label column holds: one_label of a fixed set, multi_label (any number of them), or "
    "regression (a number)",
    choices=tuple(_METRICS),
  )
  separator: str = option(",", "between the labels in a cell of a multi_label table")
  labels: tuple[str, ...] = option(
    (), "allowed labels, in order; empty: those of the training file, sorted"
  )
  mean: float | None = option(
    None, "mean of a regression table's numbers, set from the training rows"
  )
  deviation: float | None = option(
    None, "standard deviation of the numbers, set from the training rows", low=0.0
  )
  transform: str = option(
    "classification", "the paper's input transformation", choices=tuple(_TRANSFORMS)
  )
  metric: str = option(
    "",
    "selects the best checkpoint; f1 is of the second label, macro_f1 the mean over all labels; "
    "empty: accuracy, micro_f1 of multi_label, r2 of regression",
    choices=("", *dict.fromkeys(itertools.chain.from_iterable(_METRICS.values()))),
  )
  dev_share: float = option(
    0.0,
    "hold out this share of the training rows in place of the dev file; rows with equal "
    "texts stay together",
    low=0.0,
    high=0.9,
  )
  folds: int = option(
    0,
    "as dev_share, but hold out one of so many parts; set by folds; 0: none",
    low=0,
    needs="dev_share=0.0",
  )
  fold: int = option(0, "the part that is held out, from 0; set by folds", low=0)
  balanced_folds: bool = option(
    True, "folds of as many texts each, with their share of each label; false: as before, by hash"
  )
  skip_bad_rows: bool = option(False, "leave rows out that cannot be used, with a warning")
  merge_labels: bool = option(
    True,
    "labels that differ only by case, spaces or form are one, the commonest; false: they differ",
    resumable=True,  # what it changes is in `labels`
  )

  # In configs that were saved without them: a fold of an earlier run keeps its rows.
  BEFORE: ClassVar = {"balanced_folds": False, "merge_labels": False}
  has_folds = True

  def __post_init__(self):
    super().__post_init__()
    count, wanted = len(self.columns), _NUM_COLUMNS.get(self.transform)
    metrics, is_choice = _METRICS[self.kind], self.transform == "multiple_choice"
    faults = {
      f"columns: {self.transform} takes {wanted or '3 or more'} text columns, not {self.columns}": (
        self.columns and (count < 3 if wanted is None else count != wanted)
      ),
      f"columns: {self.columns} and label {self.label!r} should all be different": (
        self.columns and len({*self.columns, self.label}) != count + 1
      ),
      f"metric: {self.metric} is not for kind={self.kind}, which has {', '.join(metrics)}": (
        self.metric and self.metric not in metrics
      ),
      f"kind: {self.kind}, but the label of multiple_choice is the column of the right option; "
      "leave kind out": self.kind != "one_label" and is_choice,
      "labels: a regression table has numbers, no labels; leave it out": (
        self.kind == "regression" and self.labels
      ),
      "separator: empty; should be what is between two labels": (
        self.kind == "multi_label" and not self.separator
      ),
      f"labels: {', '.join(self.labels)}: one is there twice": (
        len({*self.labels}) < len(self.labels)
      ),
      f"deviation: {self.deviation}; should be above 0": (
        self.deviation is not None and self.deviation <= 0
      ),
      f"fold={self.fold} of folds={self.folds}: should be 2 or more folds, and a fold from 0 to "
      "folds - 1": self.folds == 1 or self.fold >= max(self.folds, 1),
    }
    for fault, is_there in faults.items():
      if is_there:
        raise InputError(f"TableTask.{fault}")

  def with_labels(self, data_dir: str) -> "TableTask":
    """Fills in columns, metric, labels and scale, so that a checkpoint needs no training file."""
    file = None if self.columns and self.label else self._open(data_dir, "train")
    table = self.with_columns(data_dir, file)
    table = dataclasses.replace(table, metric=table.metric or next(iter(_METRICS[table.kind])))
    if table.kind == "regression":
      return table._with_scale(data_dir)
    path = table._path(data_dir, "train")
    if table.labels:
      labels = table.labels
    elif table.transform == "multiple_choice":
      labels = table.columns[1:]  # the first is the context, the others are the options
    else:
      file = file or self._open(data_dir, "train")
      rows, problems = split_usable(file.rows(table.columns, table.label))
      labels = table._find_labels(rows, path)
      # Too few labels may be the fault of rows that could not be read: they are named then.
      if len(labels) < 2 and problems and not self.skip_bad_rows:
        raise unusable_rows(problems, can_skip=True)
      if table.kind == "one_label":
        check_labels(file, table.columns, table.label, rows)
    if len(labels) < 2:
      column = f"{path}: column {table.label!r}"
      raise InputError(f"{column} has the labels {labels}; two or more are needed")
    for label in labels:
      if table.kind == "multi_label" and table.separator in label:  # files could not be read back
        raise InputError(
          f"TableTask.separator: {table.separator!r} is in the label {label!r}; "
          "config.task.separator=TEXT names another"
        )
    return dataclasses.replace(table, labels=labels)

  def build(self, data_dir: str) -> Task:
    table = self.with_labels(data_dir)
    labels, metric = table.labels, table.metric
    is_choice = self.transform == "multiple_choice"
    if is_choice and labels != table.columns[1:]:
      options = f"the options' columns {table.columns[1:]}"
      raise InputError(f"TableTask.labels: should be {options}, not {labels}")
    if metric == "f1" and len(labels) != 2:
      advice = "macro_f1 takes any number"
      raise InputError(f"TableTask.metric: f1 needs two labels, not {', '.join(labels)}; {advice}")
    fields: dict[str, Any] = {
      "name": "table",
      "labels": labels,
      "columns": table.columns,
      "label": table.label,
      "transform": _TRANSFORMS[self.transform],
      "read": table._read,
      "pooling": "per_choice" if is_choice else "sum",
      "truncate": first_field if is_choice else None,
      # None: of a checkpoint, whose user has no config to set it in.
      "skip_bad_rows": self.skip_bad_rows or (False if data_dir else None),
      "partial": self.transform == "entailment",  # the others compare their texts
      "merge_labels": self.merge_labels,
    }
    named = _METRICS[self.kind]
    primary = {metric: named[metric]}  # comes first
    if self.kind == "multi_label":
      return MultiLabelTask(**fields, metrics=primary | named, separator=self.separator)
    if self.kind == "regression":
      assert table.mean is not None and table.deviation is not None
      scale = Scale(table.mean, table.deviation)
      fields |= {"metrics": primary | named | REGRESSION_ERRORS, "scale": scale}
      return RegressionTask(**fields, target=scale.standardize, value=scale.values)
    return Task(**fields, metrics={**primary, "accuracy": accuracy})

  def _find_labels(self, rows: Sequence[Row], path: str) -> tuple[str, ...]:
    """The different labels of the rows, sorted; those that cannot be read are left out."""
    names: list[str] = []
    for row in rows:
      if self.kind == "one_label":
        names += [row.label] if row.label and row.label.strip() else []
        continue
      with contextlib.suppress(ValueError):  # the row is reported when it is read as an example
        names += split_labels(row.label or "", self.separator)
    setting = "config.task.merge_labels=false" if self.merge_labels else ""
    merged = merge_similar(names, path, setting)
    # Sorted, so that the number of a class does not depend on the order of the rows.
    return tuple(sorted({*names} - {*merged}))

  def _with_scale(self, data_dir: str) -> "TableTask":
    """The config with mean and deviation of the training rows that are not held out."""
    if self.mean is not None and self.deviation is not None:
      return self
    path = self._path(data_dir, "train")
    numbers = []
    # By _read, which leaves held-out rows out: they are not to set the scale.
    for row in self._read(data_dir, "train"):
      with contextlib.suppress(ValueError):  # reported when it is read as an example
        if isinstance(row, Row) and row.label:
          numbers.append(parse_number(row.label))
    column = f"{path}: column {self.label!r}"
    if not numbers:
      raise InputError(f"{column} has no numbers; config.task.kind=regression needs them")
    try:
      scale = Scale.of(numbers)
    except ValueError as error:
      raise InputError(f"{column} has {error}") from error
    return dataclasses.replace(self, mean=scale.mean, deviation=scale.deviation)

  def with_columns(self, data_dir: str, file: Table | None = None) -> "TableTask":
    """The config with text and label columns; file: the training file, if it is open already."""
    if self.columns and self.label:
      return self
    file = file or self._open(data_dir, "train")
    names = file.names
    label = self.label or self._find_label(file, [n for n in names if n not in self.columns])
    texts = [name for name in names if name != label]  # the columns that are left
    count = _NUM_COLUMNS.get(self.transform)
    if self.columns:
      columns = self.columns
    elif count == 1 and "text" in texts:
      columns = ("text",)
    elif len(texts) == count:
      columns = tuple(texts)
    else:
      which = f"{file.path}: which of its columns have the text? config.task.columns=NAME,… says it"
      raise InputError(f"{which}; they are {', '.join(names)}")
    return dataclasses.replace(self, columns=columns, label=label)

  def _find_label(self, file: Table, names: Sequence[str]) -> str:
    """The label column, among the columns that may be it."""
    if "label" in names:
      return "label"
    if self.columns and len(names) == 1:
      return names[0]
    if not self.columns and len(names) == 2:
      rows, _ = split_usable(file.rows(names))
      # Labels repeat, texts hardly do: the label is the column with fewer values.
      values = [{row.texts[i] for row in rows} for i in (0, 1)]
      numeric = [i for i in (0, 1) if all(map(is_number, values[i]))]
      if self.kind == "regression" and len(numeric) == 1:
        return names[numeric[0]]
      if len(values[0]) != len(values[1]):
        i = 0 if len(values[0]) < len(values[1]) else 1
        # A header that occurs as a value is the first row of a file without a header.
        if names[i] in values[i]:
          fault = f"should name the columns, but {names[i]!r} is a label of later rows"
          raise InputError(f"{file.path}:1: {fault}; add a line such as text, label")
        return names[i]
    which = f"{file.path}: which of its columns is the label? config.task.label=NAME says it"
    raise InputError(f"{which}; they are {', '.join(names)}")

  def _path(self, data_dir: str, split: str) -> str:
    if os.path.isfile(data_dir):
      if split != "train":  # the rows themselves
        return data_dir
      folder, name = os.path.split(data_dir)
      given = f"data={folder or os.curdir}, and config.task.train={name}"
      raise InputError(f"data={data_dir}: is a file; give its folder, {given}")
    file = getattr(self, split)
    if not file:
      advice = f"config.task.{split}=FILE, when fine-tuning, names one"
      raise InputError(f"TableTask.{split}: no file is named; {advice}")
    return os.path.join(data_dir, file)

  def _open(self, data_dir: str, split: str) -> Table:
    """The file of a split; if it is missing, the error names the tables that may be meant."""
    path = self._path(data_dir, split)
    try:
      return Table(path)
    except MissingInput as error:
      message, others = str(error), _tables_beside(path)
      if others:
        setting = f"config.task.{split}={others[0]}"
        message += f"; there: {', '.join(others[:5])} (to fine-tune: {setting})"
      if split == "dev":
        message += "; evaluate.run takes data=FILE; to fine-tune, config.task.dev_share=0.1 holds "
        message += "out a tenth of the training rows instead, folds=5 a fifth in each of five runs"
      raise MissingInput(message) from error

  def _read(self, data_dir: str, split: str) -> Iterator[Row | InputError]:
    # A test file is always a file of its own; a dev set may be a part of the training file.
    is_part = split != "test" and (self.folds or self.dev_share)
    file = self._open(data_dir, "train" if is_part else split)
    all_rows = file.rows(self.columns, self.label, unlabeled=split == "test")
    if not is_part:
      yield from all_rows
      return
    rows, problems = split_usable(all_rows)
    held_out = self._held_out(rows, file.path)
    if split == "train":  # counted once
      yield from problems
    for row in rows:
      if (_normalized_texts(row) in held_out) == (split == "dev"):
        yield row

  def check_folds(self, data_dir: str, batch_size: int) -> None:
    """Refuses a part that would be empty, or leave less than a batch to train on."""
    for fold in range(self.folds):
      rows = dataclasses.replace(self, fold=fold)._read(data_dir, "train")
      left = sum(isinstance(row, Row) or not self.skip_bad_rows for row in rows)
      if left < batch_size:
        without = f"{self._path(data_dir, 'train')}: without fold {fold} of {self.folds}"
        fault = f"{counted(left, 'row')} left, fewer than one batch; batch_size is {batch_size}"
        raise InputError(f"{without} {fault}")

  def _held_out(self, rows: Sequence[Row], path: str) -> set[str]:
    """The texts that are held out, by a hash: neither their order nor, with dev_share, other rows
    matter, and equal ones are on one side.
    """
    # The first row of a text says its label.
    labels = {_normalized_texts(row): row.label or "" for row in reversed(rows)}
    if self.kind != "one_label":
      labels = dict.fromkeys(labels, "")
    draws = {text: _hash(text) for text in labels}
    if self.folds and not self.balanced_folds:
      return {text for text, draw in draws.items() if int(draw * self.folds) == self.fold}
    if rows and len(labels) < (self.folds or 2):
      option = f"folds={self.folds}" if self.folds else f"dev_share={self.dev_share:g}"
      raise InputError(f"{path}: {counted(len(labels), 'different text')}, too few for {option}")
    if self.folds:
      # Every n-th of the texts by label: folds have as many texts, and their share of each label.
      order = sorted(labels, key=lambda text: (labels[text], draws[text]))
      return set(order[self.fold :: self.folds])
    chosen = {text for text, draw in draws.items() if draw < self.dev_share}
    if rows and len(chosen) in (0, len(labels)):
      which = "all" if chosen else "none"
      raise InputError(
        f"TableTask.dev_share={self.dev_share:g}: holds out {which} of the {len(rows):,} rows of "
        f"{path}; should be above {min(draws.values()):.3g} and at most {max(draws.values()):.3g}"
      )
    return chosen


def _tables_beside(path: str) -> list[str]:
  """Tables beside a missing file that differ from it by their suffix alone, as train.csv does from
  train.tsv; for train.tsv, the default, all tables there if there are none of those.
  """
  folder, name = os.path.split(path)
  try:
    names = sorted(files.list_folder(folder or os.curdir))
  except OSError:
    return []
  tables = [other for other in names if other.endswith((".csv", ".tsv", ".jsonl"))]
  stem = os.path.splitext(name)[0]
  same = [other for other in tables if os.path.splitext(other)[0] == stem]
  return same or (tables if name == "train.tsv" else [])


def _hash(texts: str) -> float:
  """A number from 0 to below 1."""
  digest = hashlib.blake2b(texts.encode(errors="surrogatepass"), digest_size=6).digest()
  return int.from_bytes(digest, "big") / 2**48  # exact in a float64


def _normalized_texts(row: Row) -> str:
  """The same for texts that differ by case and spaces alone."""
  return "\t".join(" ".join(text.split()).casefold() for text in row.texts)


def check_labels(table: Table, columns: Sequence[str], label: str, rows: Sequence[Row]) -> None:
  """Refuses a label column of numbers with decimals, or one that differs in nearly all rows, as the
  numbers of tickets do; warns of many integers.
  """
  labels = sorted({row.label for row in rows if row.label and row.label.strip()})
  column = f"{table.path}: column {label!r} has {len(labels):,} different"
  advice = "finetune.run with config.task.kind=regression predicts a number"
  are_numbers = len(labels) > _MANY_NUMBERS and all(map(is_number, labels))
  if are_numbers and not all(parse_number(number).is_integer() for number in labels):
    example = f"such as {labels[0]}, and not labels of a fixed set"
    raise InputError(f"{column} numbers, {example}; {advice}")
  if len(rows) >= _FEW_ROWS and len(labels) > _DISTINCT * len(rows):
    guess = _likelier(table, {*columns, label}, len(rows))
    guess += f"; {advice}" if are_numbers else ""
    raise InputError(f"{column} values in {len(rows):,} rows: is it the label?{guess}")
  if are_numbers:
    warn_once(f"{column} numbers, each of which counts as a label; {advice}")


def _likelier(table: Table, others: Set[str], rows: int) -> str:
  """For the end of a message: up to three columns, besides others, whose values repeat."""
  values = collections.defaultdict(set)
  for record in table.records():
    for name, value in record.items() if isinstance(record, dict) else ():
      values[name].add(str(value))
  sizes = {name: len(values[name]) for name in {*values} - others}
  likelier = sorted((size, name) for name, size in sizes.items() if 1 < size < rows / 5)
  guesses = [f"{name!r} ({size:,} different)" for size, name in likelier[:3]]
  return f" Likelier: {', '.join(guesses)}" if guesses else ""
