"""The rows of evaluation sets, from files and tasks, that a corpus must not hold."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpt_jax.apps.corpus.contamination import SHORTEST
from gpt_jax.apps.corpus.word_grams import normalized_words
from gpt_jax.data.file_kinds import JSON_ARRAY, JSON_LINES, PARQUET, TABLE, file_kind
from gpt_jax.data.sources import jsonl, table
from gpt_jax.data.sources.source import typed_rows
from gpt_jax.data.sources.utf8 import lines, open_bytes
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import split_names
from gpt_jax.tasks.task import find

EVALUATED = ("dev", "test")  # splits of a task


class EvaluationRow(NamedTuple):
  """A text of an evaluation set, and where it comes from."""

  location: str
  text: str


def evaluation_rows(names: str, data: str) -> list[EvaluationRow]:
  """The rows of files and tasks, separated by commas, without those too short.

  A file is text (a row per line), JSON lines (every string) or a table (every cell). Of a task
  these are the texts of its dev and test rows.

  Args:
    data: the folder of the tasks.
  """
  rows: list[EvaluationRow] = []
  for name in filter(None, split_names(names)):
    of_one = list(_of_file(name) if os.path.isfile(name) else _of_task(name, data))
    usable = [row for row in of_one if len(normalized_words(row.text)) >= SHORTEST]
    if not usable:
      raise InputError(f"--decontaminate={name}: no row of at least {SHORTEST} words")
    print(
      f"{name}: {len(usable):,} texts to look for; {len(of_one) - len(usable):,} of fewer than "
      f"{SHORTEST} words are not"
    )
    rows += usable
  return rows


def _of_task(name: str, data: str) -> Iterator[EvaluationRow]:
  if os.sep in name or "." in name:
    raise InputError(f"--decontaminate={name}: no such file")
  task, n_splits = find(name), 0
  for split in EVALUATED:
    try:
      examples = task.examples(data, split)
    except MissingInput as error:
      missing = error
      continue
    n_splits += 1
    for example in examples:
      for text in example.texts:
        yield EvaluationRow(f"{name} {split} {example.location}", text)
  if not n_splits:
    raise InputError(f"--decontaminate={name}: {missing}; --data names the folder of the tasks")


def _of_file(path: str) -> Iterator[EvaluationRow]:
  kind = file_kind(path).format
  rows: Iterable[tuple[str, Any]]
  if kind == TABLE:
    rows = ((f"{path}:{number}", cells) for number, cells in table.table_rows(path))
  elif kind in (JSON_LINES, JSON_ARRAY):
    rows = jsonl.values(path)
  elif kind == PARQUET:
    rows = ((f"{path}: row {number}", row) for number, row in enumerate(typed_rows(path), 1))
  else:
    rows = _lines(path)
  for location, value in rows:
    yield from (EvaluationRow(location, text) for text in _strings(value))


def _lines(path: str) -> Iterator[tuple[str, str]]:
  with open_bytes(path) as file:
    for number, line in lines(file, path):
      yield f"{path}:{number}", line


def _strings(value: Any) -> Iterator[str]:
  """All strings in nested lists and values of objects."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    yield from _strings(list(value.values()))
  elif isinstance(value, (list, tuple)):
    for item in value:
      yield from _strings(item)
