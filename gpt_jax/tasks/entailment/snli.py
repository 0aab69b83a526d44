"""SNLI: does a sentence follow from the caption of a picture, contradict it, or neither? (Bowman
et al. 2015)
"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_lines
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

LABELS = ("entailment", "neutral", "contradiction")
COLUMNS = ("gold_label", "sentence1", "sentence2")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """The release's table; pairs on which its annotators did not agree, "-", are left out and
  counted.
  """
  path = os.path.join(find_folder(data_dir, "snli_1.0"), f"snli_1.0_{split}.txt")
  (_, header), *rows = read_lines(path) or [(1, "")]
  names, dropped = header.split("\t"), 0
  if missing := [name for name in COLUMNS if name not in names]:
    raise InputError(
      f"{path}:1: no column {missing[0]!r}; the columns are {', '.join(map(repr, names))}"
    )
  places = [names.index(name) for name in COLUMNS]
  for number, line in rows:
    cells = line.split(
      "\t"
    )  # fewer than the header names, where not all five annotators were asked
    if len(cells) <= max(places):
      raise InputError(
        f"{path}:{number}: {len(cells)} columns; should be at least {max(places) + 1}"
      )
    label, *texts = (cells[place] for place in places)
    if label == "-":
      dropped += 1
    else:
      yield Row(tuple(texts), label, f"{path}:{number}")
  if dropped:
    warnings.warn(
      f"{path}: {dropped} of {len(rows)} rows have no gold label and are left out", stacklevel=2
    )


def parse(record: dict[str, Any], name: str) -> Iterator[Row]:
  """Of TFDS, where such pairs have the label -1."""
  if record["label"] is not None:
    yield Row((record["premise"], record["hypothesis"]), record["label"], name)


TASKS = (
  Task(
    name="snli",
    labels=LABELS,
    columns=("premise", "hypothesis"),
    sequences=entailment,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("snli",),
    parse=parse,
    paper="89.9 accuracy on the test set (Radford et al. 2018, table 2)",
  ),
)
