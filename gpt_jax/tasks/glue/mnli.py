"""MNLI: does a sentence follow from another, contradict it, or neither, in ten kinds of text?
(Williams et al. 2018)
"""

import dataclasses
import functools
import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment


def read(data_dir: str, split: str, kind: str) -> Iterator[Row]:
  """GLUE's files; both kinds of dev and test set go with the one training set."""
  name = "train" if split == "train" else f"{split}_{kind}"
  path = os.path.join(find_folder(data_dir, "glue", "MNLI"), f"{name}.tsv")
  return read_table(path, ("sentence1", "sentence2"), "gold_label", unlabeled=split == "test")


def read_diagnostic(data_dir: str, split: str) -> Iterator[Row]:
  """The diagnostic set is a test set alone, for models of MNLI, whose training and matched dev
  set it goes with.
  """
  if split == "test":
    return read_table(diagnostic_file(data_dir), ("sentence1", "sentence2"))
  return read(data_dir, split, "matched")


def diagnostic_file(data_dir: str) -> str:
  """AX.tsv as published, diagnostic/diagnostic.tsv as GLUE's download script has it; it may not
  be there.
  """
  names = ("AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv")
  paths = [os.path.join(data_dir, place, name) for place in ("glue", "") for name in names]
  return next(filter(os.path.exists, paths), paths[0])


def _task(name: str, kind: str, paper: str) -> Task:
  return Task(
    name=name,
    labels=("entailment", "neutral", "contradiction"),
    columns=("premise", "hypothesis"),
    sequences=entailment,
    read=functools.partial(read, kind=kind),
    metrics={"accuracy": accuracy},
    tfds=("glue/mnli",),
    tfds_splits={"dev": f"validation_{kind}", "test": f"test_{kind}"},
    paper=f"{paper} accuracy on the test server (Radford et al. 2018, table 2)",
  )


TASKS = (
  _task("mnli", "matched", "82.1"),
  _task("mnli-mismatched", "mismatched", "81.4"),
  dataclasses.replace(
    _task("mnli-diagnostic", "matched", ""),
    read=read_diagnostic,
    tfds=("glue/ax",),
    tfds_splits={},
    paper="no result of it (Radford et al. 2018); its model has 29.8 Matthews on GLUE's leaderboard",
  ),
)
