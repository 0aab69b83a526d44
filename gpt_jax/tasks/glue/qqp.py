"""QQP: do two questions from Quora ask the same? (GLUE)"""

import os
import warnings
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import accuracy, f1
from gpt_jax.tasks.readers import Row, find_folder, read_lines, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import similarity

LABELS = ("not_duplicate", "duplicate")  # 0 and 1 in the files
COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Reads GLUE's files, without the few labeled rows that are malformed as published.

  Most of these have too few columns, and two have no second question
  (https://github.com/huggingface/datasets/issues/277).
  """
  path = os.path.join(find_folder(data_dir, "glue", "QQP"), f"{split}.tsv")
  if split == "test":
    yield from read_table(path, ("question1", "question2"))
    return
  (_, header), *rows = read_lines(path) or [(1, "")]
  if tuple(header.split("\t")) != COLUMNS:
    raise InputError(f"{path}:1: should name the columns {', '.join(COLUMNS)}")
  broken = []
  for number, line in rows:
    # Without quoting: a question may have a single quotation mark.
    cells = line.split("\t")
    if len(cells) != len(COLUMNS) or _is_blank(cells[3]) or _is_blank(cells[4]):
      broken.append(number)
    else:
      row = Row((cells[3], cells[4]), cells[5], f"{path}:{number}")
      yield with_label_name(row, LABELS)
  if broken:
    message = (
      f"{path}: {len(broken)} of {len(rows)} rows are broken and left out, "
      f"the first in line {broken[0]}"
    )
    if len(broken) > 0.001 * len(rows) + 2:
      raise InputError(f"{message}; copy the file again")
    warnings.warn(message, stacklevel=2)


def tfds_rows(record: dict[str, Any], location: str) -> Iterator[Row]:
  """Leaves out the rows without a second question, which TFDS has too."""
  questions = record["question1"], record["question2"]
  if not any(map(_is_blank, questions)):
    yield Row(questions, record["label"], location)


def _is_blank(text: str) -> bool:
  return not text.strip()


TASKS = (
  Task(
    name="qqp",
    labels=LABELS,
    columns=("question1", "question2"),
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
