"""SciTail: does a science statement follow from a sentence found on the web? (Khot et al. 2018)"""

import os
from collections.abc import Iterator

from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import entailment

COLUMNS = ("premise", "hypothesis")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Reads the release's tsv_format, which has no header."""
  folder = find_folder(data_dir, "SciTailV1.1", "tsv_format")
  path = os.path.join(folder, f"scitail_1.0_{split}.tsv")
  return read_table(path, COLUMNS, "label", unnamed=(*COLUMNS, "label"))


TASKS = (
  Task(
    name="scitail",
    labels=("entails", "neutral"),
    columns=COLUMNS,
    transform=entailment,
    read=read,
    metrics={"accuracy": accuracy},
    tfds=("sci_tail",),
    paper="88.3 accuracy on the test set (Radford et al. 2018, table 2)",
  ),
)
