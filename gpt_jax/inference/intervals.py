"""95 % intervals of what was measured on few examples."""

import numpy as np

from gpt_jax.errors import InputError

_RESAMPLES = 1000


def wilson(successes: int, count: int) -> tuple[float, float]:
  """The interval of a share (Wilson 1927); 0 to 1 of nothing. Raises InputError without scipy."""
  if not count:
    return 0.0, 1.0
  try:
    from scipy.stats import binomtest
  except ImportError as error:
    raise InputError("intervals need scipy: pip install 'gpt_jax[metrics]'") from error
  interval = binomtest(successes, count).proportion_ci(method="wilson")
  return float(interval.low), float(interval.high)


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
