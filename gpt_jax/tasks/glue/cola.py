"""CoLA: is the sentence acceptable English? (Warstadt et al. 2018)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy, matthews
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("unacceptable", "acceptable")  # 0 and 1 in the files
COLUMNS = ("source", "label", "the author's mark", "sentence")


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "CoLA"), f"{split}.tsv")
  if split == "test":  # unlabeled, and the only file with a header
    return read_table(path, ("sentence",))
  return read_table(path, ("sentence",), "label", label_names=LABELS, unnamed=COLUMNS)


TASKS = (
  Task(
    name="cola",
    labels=LABELS,
    columns=("sentence",),
    transform=classification,
    read=read,
    metrics={"matthews": matthews, "accuracy": accuracy},
    tfds=("glue/cola",),
    paper="45.4 Matthews on the test server (Radford et al. 2018, table 4)",
  ),
)
