"""Accuracy against the number of labels, and what more of them would bring."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.inference.linear_classifier import fit_linear, spread_classes

SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)
_FLAT = 0.005  # a gain below this is not worth a promise


def subset_sizes(count: int) -> list[int]:
  """How many of `count` training rows each point of the curve has."""
  return [max(2, round(share * count)) for share in SHARES]


def curve_of(
  train: tuple[Any, np.ndarray],
  held_out: tuple[Any, np.ndarray],
  num_classes: int,
  inverse_penalty: float,
  seed: int,
) -> list[float]:
  """Accuracy on dev and test rows of logistic regressions on ever more training rows.

  Each subset contains those before it, and has its share of each class.

  Args:
    train, held_out: features [N, F] and classes [N].
    inverse_penalty: see Linear.
    seed: of the subsets.
  """
  features, classes = train
  order = spread_classes(classes, seed)
  accuracies = []
  for size in subset_sizes(len(classes)):
    part = np.sort(order[:size])
    linear = fit_linear(features[part], classes[part], num_classes, inverse_penalty)
    accuracies.append(float((linear(held_out[0]).argmax(-1) == held_out[1]).mean()))
  return accuracies


def gain_of_doubling(sizes: Sequence[int], accuracies: Sequence[float]) -> float:
  """How much accuracy twice the labels would bring: the slope of the last three points over the
  binary logarithm of their sizes, at most half of the errors that are left.
  """
  slope = float(np.polyfit(np.log2(sizes[-3:]), accuracies[-3:], 1)[0])
  return min(max(slope, 0.0), (1 - accuracies[-1]) / 2)


def outlook(sizes: Sequence[int], accuracies: Sequence[float]) -> str:
  """One sentence on what doubling the number of labels would bring."""
  gain = gain_of_doubling(sizes, accuracies)
  past = f"from {sizes[-3]:,} to {sizes[-1]:,} rows accuracy went from {accuracies[-3]:.1%} to "
  past += f"{accuracies[-1]:.1%}"
  if gain < _FLAT:
    return f"Twice as many labels would bring little: {past}. Correct labels may bring more."
  return f"Twice as many labels would bring about {100 * gain:.1f} points: {past}."
