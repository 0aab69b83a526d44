"""95 % intervals of what was measured on few examples."""

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.tasks.metrics import Metric

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


def bootstrap(metric: Metric, truth: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
  """The interval of a metric by the percentile bootstrap over examples (Efron 1979)."""
  draws = np.random.default_rng(0).integers(len(truth), size=(_RESAMPLES, len(truth)))
  values = [metric(truth[draw], predicted[draw]) for draw in draws]
  low, high = np.quantile(values, (0.025, 0.975))
  return float(low), float(high)
