"""Entailment outside GLUE: does a sentence follow from another?

SNLI (Bowman et al. 2015): does it follow from an image caption, contradict it, or neither? SciTail
(Khot et al. 2018): does a science statement follow from a sentence found on the web?
"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError, agree, counted
from gpt_jax.tasks.readers import Row, find_folder, no_column, read_lines, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

PAIR = ("premise", "hypothesis")
SNLI_COLUMNS = ("gold_label", "sentence1", "sentence2")
NO_GOLD_LABEL = "-"  # the annotators did not agree


def read_snli(data_dir: str, split: str) -> Iterator[Row]:
  """Reads the release's tables; pairs without a gold label are left out and counted."""
  path = os.path.join(find_folder(data_dir, "snli_1.0"), f"snli_1.0_{split}.txt")
  (_, header), *rows = read_lines(path) or [(1, "")]
  names = header.split("\t")
  for column in SNLI_COLUMNS:
    if column not in names:
      raise no_column(path, column, names)
  # By name: the release has eleven further columns, such as parses.
  indices = [names.index(column) for column in SNLI_COLUMNS]
  dropped = 0
  for number, line in rows:
    # A row ends early if fewer than five annotators labeled it.
    cells = line.split("\t")
    if len(cells) <= max(indices):
      raise InputError(
        f"{path}:{number}: {counted(len(cells), 'column')}; should be at least {max(indices) + 1}"
      )
    label, premise, hypothesis = (cells[index] for index in indices)
    if label == NO_GOLD_LABEL:
      dropped += 1
    else:
      yield Row((premise, hypothesis), label, f"{path}:{number}")
  if dropped:
    have = agree(dropped, "has no gold label and is", "have no gold label and are")
    warnings.warn(f"{path}: {dropped} of {len(rows)} rows {have} left out", stacklevel=2)


def snli_of_tfds(record: dict[str, Any], location: str) -> Iterator[Row]:
  """Leaves out pairs without a gold label, -1 in TFDS."""
  if record["label"] is not None:
    yield Row((record["premise"], record["hypothesis"]), record["label"], location)


def read_scitail(data_dir: str, split: str) -> Iterator[Row]:
  """Reads the release's tsv_format, which has no header."""
  folder = find_folder(data_dir, "SciTailV1.1", "tsv_format")
  path = os.path.join(folder, f"scitail_1.0_{split}.tsv")
  return read_table(path, PAIR, "label", unnamed=(*PAIR, "label"))


TASKS = (
  Task(
    name="snli",
    labels=("entailment", "neutral", "contradiction"),
    columns=PAIR,
    transform=entailment,
    read=read_snli,
    tfds=("snli",),
    tfds_rows=snli_of_tfds,
    paper="89.9 accuracy on the test set (Radford et al. 2018, table 2)",
  ),
  Task(
    name="scitail",
    labels=("entails", "neutral"),
    columns=PAIR,
    transform=entailment,
    read=read_scitail,
    tfds=("sci_tail",),
    paper="88.3 accuracy on the test set (Radford et al. 2018, table 2)",
  ),
)
