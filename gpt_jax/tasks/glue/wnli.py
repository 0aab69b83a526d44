"""WNLI: does a sentence with its pronoun replaced follow from the text? (GLUE, from Levesque et al.
2012)

GLUE's ninth task, and none of the paper's twelve. Training and dev set share sentences, mostly with
opposite labels: a model that remembers its training set is worse than chance on dev
(gluebenchmark.com/faq).
"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

LABELS = ("not_entailment", "entailment")  # written 0 and 1 in the files


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "WNLI"), f"{split}.tsv")
  for row in read_table(path, ("sentence1", "sentence2"), "label", unlabeled=split == "test"):
    yield with_label_name(row, LABELS)


TASKS = (
  Task(
    name="wnli",
    labels=LABELS,
    columns=("sentence1", "sentence2"),
    sequences=entailment,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("glue/wnli",),
    paper="no result of it (Radford et al. 2018 leave it out); its model has 53.4 accuracy on GLUE's leaderboard",
  ),
)
