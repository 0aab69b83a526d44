"""SST-2: is a phrase from a film review positive or negative? (Socher et al. 2013)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("negative", "positive")  # 0 and 1 in the files


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "SST-2"), f"{split}.tsv")
  return read_table(path, ("sentence",), "label", label_names=LABELS, unlabeled=split == "test")


TASKS = (
  Task(
    name="sst2",
    labels=LABELS,
    columns=("sentence",),
    transform=classification,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("glue/sst2",),
    paper="91.3 accuracy on the test server (Radford et al. 2018, table 4)",
  ),
)
