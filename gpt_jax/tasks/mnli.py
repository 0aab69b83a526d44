"""MNLI: does a sentence follow from another, contradict it, or neither, in ten kinds of text? (Williams et al. 2018)"""

import functools
import os
from collections.abc import Iterator

from gpt_jax.metrics import accuracy
from gpt_jax.tasks.rows import Row, folder, table
from gpt_jax.tasks.task import Task, entailment


def read(data_dir: str, split: str, kind: str) -> Iterator[Row]:
  """GLUE's files; both kinds of dev and test set go with the one training set."""
  name = "train" if split == "train" else f"{split}_{kind}"
  path = os.path.join(folder(data_dir, "glue", "MNLI"), f"{name}.tsv")
  return table(path, ("sentence1", "sentence2"), "gold_label", unlabelled=split == "test")


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


TASKS = (_task("mnli", "matched", "82.1"), _task("mnli-mismatched", "mismatched", "81.4"))
