"""SST-2: does a phrase of a film review praise or blame? (Socher et al. 2013)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("negative", "positive")  # written 0 and 1 in the files


def read(data_dir: str, split: str) -> Iterator[Row]:
  path = os.path.join(find_folder(data_dir, "glue", "SST-2"), f"{split}.tsv")
  for row in read_table(path, ("sentence",), "label", unlabeled=split == "test"):
    yield with_label_name(row, LABELS)


TASKS = (
  Task(
    name="sst2",
    labels=LABELS,
    columns=("sentence",),
    sequences=classification,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("glue/sst2",),
    paper="91.3 accuracy on the test server (Radford et al. 2018, table 4)",
  ),
)
