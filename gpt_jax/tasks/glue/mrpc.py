"""MRPC: are two sentences from the news paraphrases? (Dolan and Brockett 2005)"""

import os
from collections.abc import Iterator

from gpt_jax.files import exists
from gpt_jax.tasks.metrics import accuracy, f1
from gpt_jax.tasks.readers import Row, find_folder, read_table
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import similarity

LABELS = ("not_equivalent", "equivalent")  # 0 and 1 in the files
IDS = ("#1 ID", "#2 ID")
SENTENCES = ("#1 String", "#2 String")


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Reads Microsoft's two files; GLUE's dev set are the pairs of the train file in dev_ids.tsv.

  Without them, reads the three files that GLUE's download script makes, whose test set is
  unlabeled.
  """
  folder = find_folder(data_dir, "glue", "MRPC")
  original = os.path.join(folder, f"msr_paraphrase_{'test' if split == 'test' else 'train'}.txt")
  glue = os.path.join(folder, f"{split}.tsv")
  # Microsoft's files first: their test set has labels.
  if exists(glue) and not exists(original):
    return read_table(glue, SENTENCES, "Quality", label_names=LABELS, unlabeled=split == "test")
  if split == "test":
    return read_table(original, SENTENCES, "Quality", label_names=LABELS)
  return _read_split(original, os.path.join(folder, "dev_ids.tsv"), split)


def _read_split(path: str, dev_ids: str, split: str) -> Iterator[Row]:
  rows = list(read_table(path, (*IDS, *SENTENCES), "Quality", label_names=LABELS))
  dev_pairs = {row.texts for row in read_table(dev_ids, IDS, unnamed=IDS)}
  for row in rows:
    pair, sentences = row.texts[:2], row.texts[2:]
    # One file holds both: the ids say which rows are the dev set.
    if (pair in dev_pairs) == (split == "dev"):
      yield row._replace(texts=sentences)


TASKS = (
  Task(
    name="mrpc",
    labels=LABELS,
    columns=("sentence1", "sentence2"),
    transform=similarity,
    read=read,
    metrics={"f1": f1, "accuracy": accuracy},
    tfds=("glue/mrpc",),
    paper=(
      "82.3 F1 on the test server (Radford et al. 2018, table 4); accuracy 75.7 (GLUE leaderboard)"
    ),
  ),
)
