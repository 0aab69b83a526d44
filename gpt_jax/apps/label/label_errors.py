"""Rows whose label is probably wrong, by models that have not seen them.

As the normalized margin of Northcutt et al. 2021, Confident Learning: p(given) - max p(other).
"""

from typing import Any

import numpy as np

from gpt_jax.inference.linear_classifier import fit_linear


def out_of_fold(
  features: Any, classes: np.ndarray, num_classes: int, fold: np.ndarray, inverse_penalty: float
) -> np.ndarray:
  """Probabilities [N, K] of each example by a logistic regression on the other folds.

  Args:
    features: [N, F], dense or sparse.
    classes: int [N].
    fold: int [N]; near-duplicates should share one.
    inverse_penalty: see Linear.
  """
  probabilities = np.zeros((len(classes), num_classes))
  for number in np.unique(fold):
    inside = fold == number
    linear = fit_linear(features[~inside], classes[~inside], num_classes, inverse_penalty)
    probabilities[inside] = linear(features[inside])
  return probabilities


def margins(probabilities: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """p(given) - max p(other) of each example, [N], and the most likely other class, int [N].

  Below 0 another label is more likely than the given one.
  """
  every = np.arange(len(classes))
  others = probabilities.copy()
  others[every, classes] = -1.0
  other = others.argmax(axis=-1)
  return probabilities[every, classes] - others[every, other], other
