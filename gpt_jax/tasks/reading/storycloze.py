"""Story Cloze: which of two endings belongs to a four-sentence story? (Mostafazadeh et al. 2016)"""

import functools
import glob
import os
from collections.abc import Iterator

import numpy as np

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import find_files
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences, multiple_choice

SENTENCES = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
ENDINGS = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
SPLIT_SEED = 3535999445  # OpenAI's (openai/datasets.py)


def story_endings(*texts: str) -> Sequences:
  """<start> story <delimiter> ending <extract>, for each of the two endings."""
  return multiple_choice(" ".join(texts[:4]), *texts[4:])


def read(data_dir: str, split: str, edition: str) -> Iterator[Row]:
  """Reads the official CSV files of an edition, "spring2016" or "winter2018", whose test set has no
  labels.

  The paper trains on the validation set of spring 2016, divided 4 to 1 into training and dev set,
  as by sklearn.model_selection.train_test_split. The edition of winter 2018 is divided likewise.
  The two are not mixed: 1,556 of the 1,571 stories of 2018's validation set are in that of 2016.
  """
  root = find_folder(data_dir, "story_cloze")
  if split == "test":
    yield from _read_file(root, f"test__{edition}", unlabeled=True)
    return
  rows = list(_read_file(root, f"val__{edition}"))
  # train_test_split draws so: the first places of one permutation are its test set. RandomState's
  # numbers are the same in all versions of NumPy, unlike default_rng's.
  order = np.random.RandomState(SPLIT_SEED).permutation(len(rows))
  dev_size = len(rows) // 5  # 374 of 1,871
  chosen = order[:dev_size] if split == "dev" else order[dev_size:]
  yield from (rows[i] for i in chosen)


def _read_file(root: str, name: str, unlabeled: bool = False) -> Iterator[Row]:
  pattern = os.path.join(glob.escape(root), "**", f"cloze_test_{name}*.csv")
  paths = [*find_files(pattern)]
  if len(paths) != 1:
    problem = InputError if paths else MissingInput
    raise problem(f"{root}: {len(paths)} files cloze_test_{name}*.csv; there should be one")
  columns = (*SENTENCES, *ENDINGS)
  return read_table(paths[0], columns, "AnswerRightEnding", unlabeled=unlabeled)


def _task(name: str, edition: str, paper: str) -> Task:
  return Task(
    name=name,
    labels=("1", "2"),
    columns=(*SENTENCES, *ENDINGS),
    transform=story_endings,
    read=functools.partial(read, edition=edition),
    metrics={"accuracy": accuracy},
    pooling="per_choice",
    paper=paper,
  )


PAPER = "86.5 accuracy on the test set of 2016 (Radford et al. 2018, table 3)"
TASKS = (
  _task("storycloze", "spring2016", PAPER),
  _task("storycloze-2018", "winter2018", ""),
)
