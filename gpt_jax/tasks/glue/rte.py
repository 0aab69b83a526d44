"""RTE: does the second sentence follow from the first? (GLUE, Wang et al. 2018)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "RTE"), f"{split}.tsv")
  # GLUE keeps the labels of its test sets to itself.
  return read_table(path, ("sentence1", "sentence2"), "label", unlabeled=split == "test")


TASKS = (
  Task(
    name="rte",
    labels=("entailment", "not_entailment"),
    columns=("sentence1", "sentence2"),
    transform=entailment,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("glue/rte",),
    paper="56.0 accuracy on the test server (Radford et al. 2018, table 2)",
  ),
)
