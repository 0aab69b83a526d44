"""Story Cloze: which of two endings belongs to a story of four sentences? (Mostafazadeh et al.
2016)
"""

import functools
import glob
import os
from collections.abc import Iterator

import numpy as np

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences, multiple_choice

SENTENCES = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
ENDINGS = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
DIVISION = 3535999445  # the seed of OpenAI's split (released datasets.py); the paper trains on the validation set


def read(data_dir: str, split: str, test: str) -> Iterator[Row]:
  """The set's own CSV files: "val" of spring 2016, divided 4 to 1 for training and dev, and the
  test set asked for.
  """
  root = find_folder(data_dir, "story_cloze")
  if split == "test":
    yield from _rows(root, test)
    return
  rows = list(_rows(root, "val__spring2016"))
  order = np.random.RandomState(DIVISION).permutation(
    len(rows)
  )  # as sklearn.model_selection.train_test_split has it
  held_out = len(rows) // 5  # 374 of 1,871
  yield from (rows[i] for i in (order[:held_out] if split == "dev" else order[held_out:]))


def _rows(root: str, name: str) -> Iterator[Row]:
  found = sorted(
    glob.glob(os.path.join(glob.escape(root), "**", f"cloze_test_{name}*.csv"), recursive=True)
  )
  if len(found) != 1:
    problem = InputError if found else MissingInput
    raise problem(f"{root}: {len(found)} files cloze_test_{name}*.csv; there should be one")
  return read_table(found[0], (*SENTENCES, *ENDINGS), "AnswerRightEnding")


def sequences(*texts: str) -> Sequences:
  """<start> story <delimiter> ending <extract>, for each of the two endings."""
  return multiple_choice(" ".join(texts[:4]), *texts[4:])


def _task(name: str, test: str, paper: str) -> Task:
  return Task(
    name=name,
    labels=("1", "2"),
    columns=(*SENTENCES, *ENDINGS),
    sequences=sequences,
    read=functools.partial(read, test=test),
    metrics={"accuracy": accuracy},
    pooling="per_choice",
    paper=paper,
  )


TASKS = (
  _task(
    "storycloze",
    "test__spring2016",
    "86.5 accuracy on the test set of 2016 (Radford et al. 2018, table 3)",
  ),
  _task("storycloze-2018", "val__winter2018", ""),
)
