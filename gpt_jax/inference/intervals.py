"""95 % intervals of what was measured on few examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.errors import require

_RESAMPLES = 1000


def wilson(successes: int, count: int) -> tuple[float, float]:
  """The interval of a share (Wilson 1927); 0 to 1 of nothing. Raises InputError without scipy."""
  if not count:
    return 0.0, 1.0
  interval = _binomtest(successes, count).proportion_ci(method="wilson")
  return float(interval.low), float(interval.high)


def paired_interval(gained: int, lost: int, count: int) -> tuple[float, float]:
  """The interval of the difference of two accuracies on the same examples.

  Given how many examples just one of the two gets right, it is Clopper and Pearson's exact interval
  (1934) of the first one's share of these. It excludes 0 where McNemar's exact test has p < 0.05.

  Args:
    gained: examples that only the first gets right.
    lost: examples that only the second gets right.
    count: all examples.
  """
  differing = gained + lost
  if not differing:
    return 0.0, 0.0
  interval = _binomtest(gained, differing).proportion_ci(method="exact")
  scale = differing / count
  return float(2 * interval.low - 1) * scale, float(2 * interval.high - 1) * scale


def _binomtest(successes: int, count: int) -> Any:
  return require("scipy.stats", "an interval", "scipy", "metrics").binomtest(successes, count)


def bootstrap_macro_f1(confusion: np.ndarray) -> tuple[float, float]:
  """The interval of macro F1 by the percentile bootstrap over examples (Efron 1979).

  To draw examples is to draw the cells of the confusion matrix.

  Args:
    confusion: counts [K, K] of true and predicted classes.
  """
  count, classes = confusion.sum(), len(confusion)
  draws = np.random.default_rng(0).multinomial(count, confusion.ravel() / count, _RESAMPLES)
  draws = draws.reshape(-1, classes, classes)
  occurrences = draws.sum(axis=1) + draws.sum(axis=2)  # true and predicted, [draws, K]
  f1 = 2 * np.diagonal(draws, axis1=1, axis2=2) / np.maximum(occurrences, 1)
  values = f1.sum(axis=1) / (occurrences > 0).sum(axis=1)
  low, high = np.quantile(values, (0.025, 0.975))
  return float(low), float(high)


def bootstrap_difference(
  metric: Callable[[np.ndarray, np.ndarray], float],
  truth: np.ndarray,
  first: Sequence[np.ndarray],
  second: Sequence[np.ndarray] = (),
) -> tuple[float, float]:
  """The interval of a metric's mean over the seeds, by the percentile bootstrap over examples; with
  `second`, of how much that of `first` is above it on the same examples.

  Args:
    truth: values [N].
    first, second: what a metric compares with it, [N] for each seed.
  """
  random, differences = np.random.default_rng(0), []

  def mean(values: Sequence[np.ndarray], drawn: np.ndarray) -> float:
    return float(np.mean([metric(truth[drawn], one[drawn]) for one in values])) if values else 0.0

  for _ in range(_RESAMPLES):
    drawn = random.integers(len(truth), size=len(truth))
    differences.append(mean(first, drawn) - mean(second, drawn))
  low, high = np.quantile(differences, (0.025, 0.975))
  return float(low), float(high)
