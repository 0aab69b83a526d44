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

LABELS = ("not_duplicate", "duplicate")  # written 0 and 1 in the files
COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """GLUE's files. A few rows of the labeled ones are broken as published; they are left out and
  counted.

  Most have too few columns, and two have no second question
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
    cells = line.split("\t")
    if len(cells) != len(COLUMNS) or _lacks_text(*cells[3:5]):
      broken.append(number)
    else:
      yield with_label_name(Row((cells[3], cells[4]), cells[5], f"{path}:{number}"), LABELS)
  if broken:
    message = f"{path}: {len(broken)} of {len(rows)} rows are broken and left out, the first in line {broken[0]}"
    if len(broken) > 0.001 * len(rows) + 2:  # more than were published
      raise InputError(f"{message}; copy the file again")
    warnings.warn(message, stacklevel=2)


def parse(record: dict[str, Any], name: str) -> Iterator[Row]:
  """Of TFDS, which has the rows without a second question."""
  questions = record["question1"], record["question2"]
  if not _lacks_text(*questions):
    yield Row(questions, record["label"], name)


def _lacks_text(*questions: str) -> bool:
  return not all(map(str.strip, questions))


TASKS = (
  Task(
    name="qqp",
    labels=LABELS,
    columns=("question1", "question2"),
    sequences=similarity,
    read=read,
    metrics={"f1": f1, "accuracy": accuracy},
    tfds=("glue/qqp",),
    parse=parse,
    paper="70.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 88.5 (GLUE leaderboard)",
  ),
)
