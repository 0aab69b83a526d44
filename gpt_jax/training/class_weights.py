"""Loss weights of classes, by the labels' names or from their frequencies."""

from collections.abc import Sequence

import numpy as np

from gpt_jax.errors import InputError


def balanced(distributions: np.ndarray, labels: Sequence[str]) -> tuple[str, ...]:
  """LABEL=WEIGHT of every class; see balanced_weights."""
  weights = balanced_weights(distributions)
  return tuple(f"{name}={weight:.6g}" for name, weight in zip(labels, weights, strict=True))


def balanced_weights(distributions: np.ndarray) -> np.ndarray:
  """Weights in inverse proportion to the frequencies of the classes, [K], as scikit-learn's.

  Args:
    distributions: [N, K], of the training examples.
  """
  # N / (K count): weights whose mean over the examples is 1.
  counts = distributions.sum(axis=0)
  return counts.sum() / (len(counts) * np.maximum(counts, 1))


def parse_weights(items: Sequence[str], labels: Sequence[str]) -> tuple[float, ...]:
  """The weight of each label, from LABEL=WEIGHT items; 1 where there is no item, and none at all
  without items.

  Raises:
    InputError: an unknown label, or a weight that is no finite number from 0.
  """
  given = dict(_parse(item, labels) for item in items)
  return tuple(given.get(name, 1.0) for name in labels) if given else ()


def _parse(item: str, labels: Sequence[str]) -> tuple[str, float]:
  name, _, number = item.rpartition("=")
  try:
    weight = float(number)
  except ValueError:
    weight = -1.0
  if name not in labels or not 0 <= weight < float("inf"):
    raise InputError(
      f"class_weights: {item!r} should be LABEL=WEIGHT, with one of the labels "
      f"{', '.join(labels)}, or balanced alone"
    )
  return name, weight
