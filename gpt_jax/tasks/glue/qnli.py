"""QNLI: does the sentence answer the question? (GLUE, from SQuAD; second version)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "QNLI"), f"{split}.tsv")
  return read_table(path, ("question", "sentence"), "label", unlabeled=split == "test")


TASKS = (
  Task(
    name="qnli",
    labels=("entailment", "not_entailment"),
    columns=("question", "sentence"),
    transform=entailment,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("glue/qnli",),
    paper="88.1 accuracy on the test server, first version (Radford et al. 2018, table 2)",
  ),
)
