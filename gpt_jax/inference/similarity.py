"""How similar two texts are, by the cosine of their embeddings: no label is trained on."""

from typing import Any

import numpy as np

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.inference.model import Model
from gpt_jax.tasks.task import find


def cosine_measures(loaded: LoadedModel, data_dir: str, split: str, name: str) -> dict[str, Any]:
  """How well the cosines of a split's pairs agree with its scores.

  Args:
    loaded: any checkpoint; see Model.embed for how it reads a text.
    data_dir: folder of the task's files.
    split: "train", "dev" or "test".
    name: of the task.

  Returns:
    The number of examples, and the task's metrics, such as pearson and spearman.

  Raises:
    InputError: a task that does not score the similarity of two texts, or unlabeled examples.
  """
  task = find(name)
  if not (task.kind == "similarity" and "spearman" in task.metrics):
    raise InputError(
      f"task={name}: {loaded.path} is {loaded.without_task}; this program evaluates it on "
      "similarity scores such as stsb, zero_shot.run language models on other tasks"
    )
  examples = task.examples(data_dir, split)
  if unlabeled := next((example.location for example in examples if example.label is None), None):
    raise InputError(f"{unlabeled}: no label to compare with; use a split that has them")
  model = Model(loaded)
  # Of the two sequences of an example the first has both texts in order.
  first, second = (
    model.embed([example.sequences[0][i] for example in examples], truncate=True) for i in (0, 1)
  )
  scores = task.value(np.array([example.label for example in examples]))
  similarities = cosines(first, second)
  metrics = {name: float(metric(scores, similarities)) for name, metric in task.metrics.items()}
  return {"examples": len(examples), **metrics}


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Cosine similarity of each pair of rows of two arrays [N, D]: float64 [N]."""
  first, second = first.astype(np.float64), second.astype(np.float64)
  lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
  return (first * second).sum(axis=1) / np.maximum(lengths, 1e-12)
