"""MRPC: do two sentences from the news say the same? (Dolan and Brockett 2005)"""

import os
from collections.abc import Iterator

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import accuracy, f1
from gpt_jax.tasks.readers import Row, find_folder, read_lines, read_table, with_label_name
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import similarity

LABELS = ("not_equivalent", "equivalent")  # written 0 and 1 in the files


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Microsoft's two files; GLUE's dev split is the pairs of the train file that dev_ids.tsv lists.

  Where they are not there, the three that GLUE's download script makes of them, whose test set has
  no labels.
  """
  place = find_folder(data_dir, "glue", "MRPC")
  path = os.path.join(place, f"msr_paraphrase_{'test' if split == 'test' else 'train'}.txt")
  divided = os.path.join(place, f"{split}.tsv")
  if os.path.exists(divided) and not os.path.exists(path):
    for row in read_table(
      divided, ("#1 String", "#2 String"), "Quality", unlabeled=split == "test"
    ):
      yield with_label_name(row, LABELS)
    return
  rows = list(read_table(path, ("#1 ID", "#2 ID", "#1 String", "#2 String"), "Quality"))
  dev = set() if split == "test" else _pairs(os.path.join(place, "dev_ids.tsv"))
  for row in rows:
    *ids, first, second = row.texts
    if split == "test" or (tuple(ids) in dev) == (split == "dev"):
      yield with_label_name(row._replace(texts=(first, second)), LABELS)


def _pairs(path: str) -> set[tuple[str, ...]]:
  pairs = set()
  for number, line in read_lines(path):
    ids = tuple(line.split("\t"))
    if len(ids) != 2:
      raise InputError(
        f"{path}:{number}: should be the two sentence ids of a pair, separated by a tab"
      )
    pairs.add(ids)
  return pairs


TASKS = (
  Task(
    name="mrpc",
    labels=LABELS,
    columns=("sentence1", "sentence2"),
    sequences=similarity,
    read=read,
    metrics={"f1": f1, "accuracy": accuracy},
    tfds=("glue/mrpc",),
    paper="82.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 75.7 (GLUE leaderboard)",
  ),
)
