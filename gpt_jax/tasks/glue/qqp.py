"""QQP: do two questions from Quora ask the same? (GLUE)"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import accuracy, f1
from gpt_jax.tasks.readers import Row, Table, find_folder, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import similarity

LABELS = ("not_duplicate", "duplicate")  # 0 and 1 in the files
COLUMNS = ("question1", "question2")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Reads GLUE's files, without the few labeled rows that are malformed as published.

  Most of these have too few columns, and two have no second question
  (https://github.com/huggingface/datasets/issues/277).
  """
  path = os.path.join(find_folder(data_dir, "glue", "QQP"), f"{split}.tsv")
  if split == "test":
    yield from read_table(path, COLUMNS)
    return
  rows = list(Table(path, official=True).rows(COLUMNS, "is_duplicate"))
  intact = [row for row in rows if isinstance(row, Row) and all(map(str.strip, row.texts))]
  for row in intact:
    yield with_label_name(row, LABELS)
  if broken := len(rows) - len(intact):
    message = f"{path}: {broken} of {len(rows)} rows are broken and left out"
    if broken > 0.001 * len(rows) + 2:
      raise InputError(f"{message}; copy the file again")
    warnings.warn(message, stacklevel=2)


def tfds_rows(record: dict[str, Any], location: str) -> Iterator[Row]:
  """Leaves out the rows without a second question, which TFDS has too."""
  questions = record["question1"], record["question2"]
  if all(map(str.strip, questions)):
    yield Row(questions, record["label"], location)


TASKS = (
  Task(
    name="qqp",
    labels=LABELS,
    columns=COLUMNS,
    transform=similarity,
    read=read,
    metrics={"f1": f1, "accuracy": accuracy},
    tfds=("glue/qqp",),
    tfds_rows=tfds_rows,
    paper=(
      "70.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 88.5 (GLUE leaderboard)"
    ),
  ),
)
