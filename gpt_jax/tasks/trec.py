"""TREC: what does a question ask for? (Li and Roth 2002; the six coarse classes, TREC-6)"""

import os
from collections.abc import Iterator

from gpt_jax.errors import InputError
from gpt_jax.tasks.readers import Row, find_folder, read_lines
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_HELD_OUT = 10  # of so many questions the last is held out: there is no official dev set


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Rows of "LABEL:fine question"."""
  file = "TREC_10.label" if split == "test" else "train_5500.label"
  path = os.path.join(find_folder(data_dir, "trec"), file)
  # The published file has the byte 0xf0 for the space of "sister city".
  for number, line in read_lines(path, stray=b"\xf0"):
    fine, _, question = line.partition(" ")
    label, colon, _ = fine.partition(":")
    if not colon or not question.strip():
      raise InputError(f"{path}:{number}: should be LABEL:fine, a space and the question")
    is_dev = number % _HELD_OUT == 0
    if split == "test" or is_dev == (split == "dev"):
      yield Row((question,), label, f"{path}:{number}")


TASKS = (
  Task(
    name="trec",
    labels=LABELS,
    columns=("question",),
    transform=classification,
    read=read,
    paper="96.4 accuracy on the test set (ULMFiT, Howard and Ruder 2018, table 2)",
  ),
)
