"""MNLI: does a sentence follow from another, contradict it, or neither? (Williams et al. 2018)

The texts are of ten genres, five of them in the training set: the matched dev and test sets are of
these five, the mismatched ones of the others.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator

from gpt_jax.files import exists
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

_DIAGNOSTIC_FILES = ("AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv")


def read(data_dir: str, split: str, genres: str) -> Iterator[Row]:
  """Reads GLUE's files; genres is "matched" or "mismatched", and both share the training set."""
  name = "train" if split == "train" else f"{split}_{genres}"
  path = os.path.join(find_folder(data_dir, "glue", "MNLI"), f"{name}.tsv")
  return read_table(path, ("sentence1", "sentence2"), "gold_label", unlabeled=split == "test")


def read_diagnostic(data_dir: str, split: str) -> Iterator[Row]:
  """Reads the diagnostic set as test set; training and dev set are MNLI's, matched."""
  if split == "test":
    return read_table(diagnostic_file(data_dir), ("sentence1", "sentence2"))
  return read(data_dir, split, "matched")


def diagnostic_file(data_dir: str) -> str:
  """Path of the diagnostic set, AX.tsv as published, or as GLUE's download script writes it; if
  there is none, the path where it is looked for first.
  """
  folders = itertools.product(("glue", ""), _DIAGNOSTIC_FILES)
  paths = [os.path.join(data_dir, *parts) for parts in folders]
  return next(filter(exists, paths), paths[0])


def _task(name: str, genres: str, paper: str) -> Task:
  return Task(
    name=name,
    # Read by name: other copies of MNLI number the same labels in another order.
    labels=("entailment", "neutral", "contradiction"),
    columns=("premise", "hypothesis"),
    transform=entailment,
    read=functools.partial(read, genres=genres),
    metrics={"accuracy": accuracy},
    tfds=("glue/mnli",),
    tfds_splits={"dev": f"validation_{genres}", "test": f"test_{genres}"},
    paper=paper,
  )


TASKS = (
  _task("mnli", "matched", "82.1 accuracy on the test server (Radford et al. 2018, table 2)"),
  _task(
    "mnli-mismatched",
    "mismatched",
    "81.4 accuracy on the test server (Radford et al. 2018, table 2)",
  ),
  dataclasses.replace(
    _task(
      "mnli-diagnostic",
      "matched",
      "no result in Radford et al. 2018; 29.8 Matthews with their model (GLUE leaderboard)",
    ),
    read=read_diagnostic,
    tfds=("glue/ax",),
    tfds_splits={},
  ),
)
