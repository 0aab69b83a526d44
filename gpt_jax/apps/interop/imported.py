"""The task of a model that others have fine-tuned: its labels are known, its files are not.

A text is alone or one of a pair. Rows have the columns `text`, `text_pair` if there is one, and
`label`, in train, dev and test with a suffix of TABLE_SUFFIXES.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from gpt_jax.config import Config, option, register
from gpt_jax.data.file_kinds import TABLE_SUFFIXES
from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.labels import MultiLabelTask
from gpt_jax.tasks.answers.number import RegressionTask, Scale
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask, split_words
from gpt_jax.tasks.metrics import (
  MULTI_LABEL_METRICS,
  REGRESSION_ERRORS,
  REGRESSION_METRICS,
  accuracy,
  macro_f1,
)
from gpt_jax.tasks.readers import Row, Table, usable
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences

KINDS = ("one_label", "multi_label", "regression", "tags")
COLUMN, PAIR, LABEL = "text", "text_pair", "label"
_SEPARATORS = (",", ";", "|", "\t")


@register("imported_task")
@dataclasses.dataclass(frozen=True)
class ImportedTask(Config):
  """The labels that a transformers folder names."""

  kind: str = option("one_label", "what is predicted of a text, or of each word", choices=KINDS)
  labels: tuple[str, ...] = option((), "names of the outputs, in order; none of a regression")

  def build(self, data_dir: str) -> LabeledTask:
    del data_dir  # names no files
    if self.kind == "tags":
      return TagTask(
        "token-classification", self.labels, _read_tagged, {"accuracy": accuracy}, spaced=True
      )
    fields: dict[str, Any] = {
      "name": "text-classification",
      "labels": self.labels,
      "columns": (COLUMN,),
      "pair": PAIR,
      "transform": _one_or_two,
      "partial": True,  # a tokenizer of transformers puts nothing for an empty text
      "read": _read,
    }
    if self.kind == "regression":
      scale = Scale()  # of mean 0 and deviation 1: their numbers are in the task's units already
      metrics = REGRESSION_METRICS | REGRESSION_ERRORS
      fields |= {"target": scale.standardize, "value": scale.values}
      return RegressionTask(**fields, metrics=metrics, scale=scale, knows_scale=False)
    if self.kind == "one_label":
      return Task(**fields, metrics={"accuracy": accuracy, "macro_f1": macro_f1})
    # The first separator that is in no label's name.
    in_names = "\0".join(self.labels)
    separator = next((mark for mark in _SEPARATORS if mark not in in_names), "\n")
    return MultiLabelTask(**fields, metrics=MULTI_LABEL_METRICS, separator=separator)


def _one_or_two(*texts: str) -> Sequences:
  """A text alone, or a pair."""
  return (texts,)


def _read(data_dir: str, split: str) -> Iterator[Row | InputError]:
  table = _open(data_dir, split)
  columns = (COLUMN, PAIR) if table.has(PAIR) else (COLUMN,)
  return table.rows(columns, LABEL, unlabeled=split == "test")


def _read_tagged(data_dir: str, split: str) -> Iterator[TaggedExample]:
  """Words and tags with spaces between them."""
  rows = _open(data_dir, split).rows((COLUMN,), LABEL, unlabeled=split == "test")
  for row in usable(rows):
    # A label cell has one tag for each word, also with spaces between.
    words = split_words(row.texts[0])
    tags = None if row.label is None else split_words(row.label)
    if not words:
      raise InputError(f"{row.location}: column {COLUMN!r} is empty; remove the row")
    if tags is not None and len(tags) != len(words):
      raise InputError(
        f"{row.location}: {len(tags)} tags for {len(words)} words; give one for each"
      )
    yield TaggedExample(words, tags, row.location)


def _open(data_dir: str, split: str) -> Table:
  paths = [os.path.join(data_dir, f"{split}{suffix}") for suffix in TABLE_SUFFIXES]
  path = next(filter(exists, paths), None)
  if path is None:
    raise InputError(
      f"{paths[0]}: missing; the rows of an imported model are in "
      f"{split}{', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]}, with the columns "
      f"{COLUMN}, {PAIR} (of pairs) and {LABEL}"
    )
  return Table(path)
