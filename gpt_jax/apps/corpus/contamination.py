"""Finding rows of evaluation sets in text: GPT-3's 13-grams (Brown et al. 2020, appendix C).

The README beside this file has the rules. A row of more than 25 words with one of them replaced has
13 in a row that are the same; rows of fewer than 5 are phrases that any text has.
"""

import functools
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.corpus.duplicates import grams, normalized_words, word_hashes
from gpt_jax.data.file_kinds import JSON_ARRAY, JSON_LINES, PARQUET, TABLE, file_kind, typed_rows
from gpt_jax.data.sources import jsonl, table
from gpt_jax.data.sources.utf8 import lines, open_bytes
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import open_regular, split_names
from gpt_jax.tasks.task import find

RUN = 13  # words
MIN_WORDS, ONE_REPLACED, MAX_WORDS = 5, 8, 25  # words of a row that matches as a whole
RULES = ("", "13-gram", "whole row")


class Overlap(NamedTuple):
  rule: int  # index in RULES; 0: nothing
  row: int  # number of the evaluation row
  score: float  # the share of the row's 13-grams, or of its words, in the text


NOTHING = Overlap(0, -1, 0.0)


class EvaluationRows:
  """An index of the rows; it is saved as the hashes of their words."""

  def __init__(self, rows: list[np.ndarray]):
    """`rows`: uint64 [n] each, the hashes of a row's words."""
    self._rows = rows
    self._runs: dict[int, list[int]] = {}  # hash of RUN words -> rows
    # Number of words -> hash of a part -> the rows with it, and where it begins.
    self._parts: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for number, row in enumerate(rows):
      size = len(row)
      for run in grams(row, RUN).tolist():
        self._runs.setdefault(run, []).append(number)
      if not MIN_WORDS <= size <= MAX_WORDS:
        continue
      # One of its halves is intact if a word is replaced.
      bounds = [0, size] if size < ONE_REPLACED else [0, size // 2, size]
      for begin, end in itertools.pairwise(bounds):
        parts = self._parts.setdefault(end - begin, {})
        parts.setdefault(grams(row[begin:end], end - begin).item(), []).append((number, begin))

  def find(self, hashes: np.ndarray) -> Overlap:
    """The overlap of the highest score with a text, given the hashes of its words."""
    best = NOTHING
    counts: dict[int, set[int]] = {}
    for run in grams(hashes, RUN).tolist():
      for row in self._runs.get(run, ()):
        counts.setdefault(row, set()).add(run)
    for row, runs in counts.items():
      total = len(np.unique(grams(self._rows[row], RUN)))
      best = best_overlap(best, Overlap(1, row, len(runs) / total))
    for length, parts in self._parts.items():
      for position, part in enumerate(grams(hashes, length).tolist()):
        for number, offset in parts.get(part, ()):
          words, begin = self._rows[number], position - offset
          if begin < 0 or begin + len(words) > len(hashes):
            continue
          replaced = int((hashes[begin : begin + len(words)] != words).sum())
          if replaced <= (len(words) >= ONE_REPLACED):
            best = best_overlap(best, Overlap(2, number, 1 - replaced / len(words)))
    return best

  def save(self) -> bytes:
    content = io.BytesIO()
    flat = np.concatenate([np.empty(0, np.uint64), *self._rows])
    np.savez(content, words=flat, sizes=np.array(list(map(len, self._rows)), np.int64))
    return content.getvalue()


def index_rows(texts: Iterable[str]) -> EvaluationRows:
  return EvaluationRows([word_hashes(normalized_words(text)) for text in texts])


@functools.lru_cache(maxsize=1)
def load_rows(path: str) -> EvaluationRows:
  """Loads rows that `EvaluationRows.save` wrote to a file; caches the latest file."""
  with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
    words, sizes = arrays["words"], arrays["sizes"]
  return EvaluationRows(np.split(words, np.cumsum(sizes)[:-1]))


def best_overlap(a: Overlap, b: Overlap) -> Overlap:
  """The one of the higher score, or of the earlier row."""
  return min(a, b, key=lambda overlap: (-overlap.score, overlap.row if overlap.rule else 1 << 62))


class EvaluationRow(NamedTuple):
  location: str
  text: str


def evaluation_rows(names: str, data: str) -> list[EvaluationRow]:
  """The rows of files and tasks, separated by commas, without those too short: lines of text,
  strings of JSON, cells of tables, texts of dev and test rows of tasks with files in `data`.
  """
  rows: list[EvaluationRow] = []
  for name in filter(None, split_names(names)):
    of_one = list(_of_file(name) if os.path.isfile(name) else _of_task(name, data))
    usable = [row for row in of_one if len(normalized_words(row.text)) >= MIN_WORDS]
    if not usable:
      raise InputError(f"--decontaminate={name}: no row of at least {MIN_WORDS} words")
    print(
      f"{name}: {len(usable):,} texts to look for; {len(of_one) - len(usable):,} of fewer than "
      f"{MIN_WORDS} words are not"
    )
    rows += usable
  return rows


def _of_task(name: str, data: str) -> Iterator[EvaluationRow]:
  if os.sep in name or "." in name:
    raise InputError(f"--decontaminate={name}: no such file")
  task, missing, splits = find(name), [], ("dev", "test")
  for split in splits:
    try:
      examples = task.examples(data, split)
    except MissingInput as error:
      missing.append(error)
      continue
    for example in examples:
      for text in example.texts:
        yield EvaluationRow(f"{name} {split} {example.location}", text)
  if len(missing) == len(splits):
    raise InputError(f"--decontaminate={name}: {missing[-1]}; --data names the folder of the tasks")


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
    with open_bytes(path) as file:
      rows = [(f"{path}:{number}", line) for number, line in lines(file, path)]
  for location, value in rows:
    yield from (EvaluationRow(location, text) for text in _strings(value))


def _strings(value: Any) -> Iterator[str]:
  """All strings in nested lists and values of objects."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    yield from _strings(list(value.values()))
  elif isinstance(value, (list, tuple)):
    for item in value:
      yield from _strings(item)
