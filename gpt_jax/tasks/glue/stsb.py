"""STS-B: how similar are two sentences, from 0 to 5? (Cer et al. 2017)"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt_jax.tasks.metrics import pearson, spearman
from gpt_jax.tasks.readers import Row, glue_files
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import similarity


def bins(score: str) -> tuple[float, ...]:
  """The distribution over 0..5 with the score as its mean (Tai et al. 2015, section 4.2).

  For example, 3.4 is 0.6 at 3 and 0.4 at 4.

  Raises:
    ValueError: not a number from 0 to 5.
  """
  try:
    value = float(score)
  except ValueError:
    value = float("nan")
  if not 0 <= value <= 5:
    raise ValueError("should be a number from 0 to 5")
  return tuple(max(0.0, 1 - abs(value - k)) for k in range(6))


def expectation(distributions: np.ndarray) -> np.ndarray:
  """[N, 6] -> the mean scores [N], within 0..5."""
  # Never outside 0 to 5, where GLUE's server refuses a prediction.
  return distributions @ np.arange(6)


def tfds_rows(record: dict[str, Any], location: str) -> Iterator[Row]:
  """TFDS's labels are scores, -1 in the test set."""
  score = record["label"]
  label = str(score) if score >= 0 else None
  yield Row((record["sentence1"], record["sentence2"]), label, location)


TASKS = (
  Task(
    name="stsb",
    labels=("0", "1", "2", "3", "4", "5"),
    columns=("sentence1", "sentence2"),
    transform=similarity,
    read=glue_files("STS-B", ("sentence1", "sentence2"), "score"),
    metrics={"pearson": pearson, "spearman": spearman},
    target=bins,
    value=expectation,
    tfds=("glue/stsb",),
    tfds_rows=tfds_rows,
    paper=(
      "82.0 Pearson on the test server (Radford et al. 2018, table 4); "
      "Spearman 80.0 (GLUE leaderboard)"
    ),
  ),
)
