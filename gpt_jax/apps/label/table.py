"""The table that launch/label.py is given: columns, usable rows, and splits as files.

Importing it imports no JAX, so that a bad table is refused at once.
"""

import collections
import dataclasses
import functools
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.label.previous import Previous
from gpt_jax.data.file_kinds import write_table
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file
from gpt_jax.tasks.readers import Row, Table, merge_similar, split_usable
from gpt_jax.tasks.table import TableTask, check_labels

MIN_OF_LABEL = 8  # so that each split is likely to have some
MIN_ROWS = 2 * MIN_OF_LABEL
FEW_ROWS = 100  # fewer are too few to fine-tune on, and to choose a model by a seventh of them
_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Labeled:
  """The rows of a table that can be used."""

  columns: tuple[str, ...]  # one or two columns of text
  label: str  # the label column
  labels: tuple[str, ...]  # the K labels, sorted
  rows: list[Row]  # N rows
  skipped: int  # how many rows are left out
  known: frozenset[tuple[str, ...]]  # texts with a label, of rows left out for a rare one, too
  merge_labels: bool  # whether labels that differ by their form alone are one
  csv_layout: tuple[str, str]  # of tables that are written for a person; see Table.csv_layout

  @functools.cached_property
  def classes(self) -> np.ndarray:
    """int [N], the index of each row's label."""
    index = {label: number for number, label in enumerate(self.labels)}
    return np.array([index[row.label or ""] for row in self.rows])

  @functools.cached_property
  def texts(self) -> list[str]:
    """The columns of each row, one below the other."""
    return ["\n".join(row.texts) for row in self.rows]

  @functools.cached_property
  def locations(self) -> list[str]:
    """Where each row is, "file:line"."""
    return [row.location for row in self.rows]

  @property
  def summary(self) -> str:
    columns = ", ".join(self.columns)
    labels = counted(len(self.labels), "label")
    return f"{counted(len(self.rows), 'row')}; text in {columns}, {labels} in {self.label}"

  @property
  def identity(self) -> dict[str, Any]:
    """JSON that differs where rows or columns do."""
    content = repr([(row.texts, row.label) for row in self.rows])
    checksum = f"{zlib.crc32(content.encode()):08x}"
    return {
      "text columns": list(self.columns),
      "label column": self.label,
      "rows": f"{len(self.rows):,}, checksum {checksum}",
    }

  def task(self) -> TableTask:
    """The task of the files that write_splits writes."""
    return TableTask(
      train="train.csv",
      dev="dev.csv",
      test="test.csv",
      columns=self.columns,
      label=self.label,
      labels=self.labels,
      merge_labels=self.merge_labels,
      transform="classification" if len(self.columns) == 1 else "entailment",
    )


def find_columns(
  source: str, texts: Sequence[str], label: str, known: Sequence[str] = ()
) -> tuple[tuple[str, ...], str]:
  """The text columns and the label column, as TableTask finds those that are (), or "".

  known: labels of an earlier table; a column with one of them is the label.
  """
  file = Table(source)
  texts = file.split(texts)
  if len(texts) > 2:
    raise InputError(f"--text={','.join(texts)}: one or two columns, not {len(texts)}")
  if len({*texts, label}) <= len(texts):
    raise InputError(f"--text={','.join(texts)} and --label={label}: should be different columns")
  transform = "entailment" if len(texts) == 2 else "classification"
  folder, name = os.path.split(source)
  task = TableTask(train=name, columns=texts, label=label, transform=transform)
  try:
    task = task.with_columns(folder, file)
  except InputError as error:
    message = str(error).replace("config.task.columns=NAME,…", "--text=NAME")
    raise InputError(message.replace("config.task.label", "--label")) from error
  rows, _ = split_usable(file.rows(task.columns, task.label))
  if not any(row.label in known for row in rows):
    check_labels(file, task.columns, task.label, rows)
  return task.columns, task.label


def read_labeled(
  source: str, previous: Previous, tokenizer: Tokenizer, merge_labels: bool = True
) -> Labeled:
  """Reads a table, see find_columns, after the rows of a previous one; logs the rows that are left
  out, as those whose texts have no tokens.
  """
  columns, label = find_columns(source, previous.columns, previous.label, previous.labels)
  table = Table(source)
  new, skipped = usable_rows(table.rows(columns, label), columns, label, tokenizer)
  setting = "merge_labels=false" if merge_labels else ""
  merged = merge_similar((row.label or "" for row in new), source, setting)
  new = [row._replace(label=merged.get(row.label or "", row.label)) for row in new]
  usable, line = previous.with_rows(new, merge_labels)
  if line:
    _log(line)
  counts = collections.Counter(row.label or "" for row in usable)
  is_rare = lambda name: counts[name] < MIN_OF_LABEL and name not in previous.labels
  rare = {name: count for name, count in counts.items() if is_rare(name)}
  if rare:
    shown = ", ".join(f"{name[:50]!r} ({count})" for name, count in sorted(rare.items())[:_SHOWN])
    more = f" and {len(rare) - _SHOWN:,} more" if len(rare) > _SHOWN else ""
    _log(
      f"left out, with a label of fewer than {MIN_OF_LABEL} rows: "
      f"{counted(sum(rare.values()), 'row')}, of {shown}{more}"
    )
  rows = [row for row in usable if row.label not in rare]
  # Earlier labels keep their numbers.
  labels = (*previous.labels, *sorted(counts.keys() - rare.keys() - {*previous.labels}))
  if len(rows) < MIN_ROWS or len(labels) < 2:
    raise InputError(
      f"{source}: {counted(len(rows), 'usable row')} with {counted(len(labels), 'label')} of "
      f"{MIN_OF_LABEL} rows or more in column {label!r}; {MIN_ROWS} rows and 2 labels are needed"
    )
  known = frozenset(tuple(row.texts) for row in usable)
  left_out = skipped + sum(rare.values())
  return Labeled(columns, label, labels, rows, left_out, known, merge_labels, table.csv_layout)


def read_unlabeled(source: str, table: Labeled, tokenizer: Tokenizer) -> list[Row]:
  """The rows of a table of the same columns whose texts have no label in the other one; logs those
  that cannot be used.
  """
  usable, _ = usable_rows(Table(source).rows(table.columns), table.columns, "", tokenizer)
  rows = [row for row in usable if tuple(row.texts) not in table.known]
  if not rows:
    raise InputError(
      f"--pool={source}: has no row without a label in the other table; {len(usable):,} rows can "
      "be used"
    )
  return rows


def usable_rows(
  read: Iterable[Row | InputError], columns: tuple[str, ...], label: str, tokenizer: Tokenizer
) -> tuple[list[Row], int]:
  """The rows that can be used, and how many others there are, which are logged; label "": none."""
  rows, errors = split_usable(read)
  problems, usable, with_tokens = list(map(str, errors)), [], []
  for row in rows:
    if problem := _problem(row, columns, label):
      problems.append(f"{row.location}: {problem}")
    else:
      usable.append(row)
  texts = ["".join(row.texts) for row in usable]
  for row, ids in zip(usable, tokenizer.encode_many(texts) if texts else [], strict=True):
    if len(ids):
      with_tokens.append(row)
    else:
      problems.append(f"{row.location}: the tokenizer drops all of its text")
  if problems:
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    _log(f"{counted(len(problems), 'row')} cannot be used: {'; '.join(problems[:_SHOWN])}{more}")
  return with_tokens, len(problems)


def write_splits(
  table: Labeled, splits: dict[str, np.ndarray], folder: str, further: dict[str, list[str]]
) -> None:
  """Writes train.csv, dev.csv and test.csv, with the columns of the task and the cells of further
  ones.
  """
  own = [*table.columns, table.label]
  further = {name: cells for name, cells in further.items() if name not in own}
  os.makedirs(folder, exist_ok=True)
  for split, numbers in splits.items():
    with atomic_file(os.path.join(folder, f"{split}.csv")) as file:
      cells: list[list[Any]] = [[*own, *further]]
      for number in numbers:
        row, others = table.rows[number], [values[number] for values in further.values()]
        cells.append([*row.texts, row.label, *others])
      write_table(file, cells)


def _problem(row: Row, columns: Sequence[str], label: str) -> str:
  """Why a row cannot be used; "" if it can."""
  given = row.label or ""
  if not "".join(row.texts).strip():
    return f"no text in {' or '.join(map(repr, columns))}"
  if label and not given.strip():
    return f"column {label!r} is empty"
  # No tokenizer could encode it as UTF-8.
  if any("\ud800" <= letter <= "\udfff" for letter in "".join([*row.texts, given])):
    return "has half of a surrogate pair"
  return ""


def _log(line: str) -> None:
  from gpt_jax.parallel.processes import log  # imports JAX

  log(line)
