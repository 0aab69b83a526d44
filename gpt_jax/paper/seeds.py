"""Mean, median, standard deviation and bootstrap interval of a metric over seeds."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Spread(NamedTuple):
  """One metric over seeds.

  Attributes:
    values: one per seed, in order.
    median, mean: of the values.
    deviation: sample standard deviation; 0 for a single value.
    low, high: 95 % interval of the mean by the percentile bootstrap (Efron 1979). For two or three
      values it is their range, and covers the mean over all seeds in about 50 % or 75 % of cases.
      It does not include the variance over the choice of examples.
  """

  values: tuple[float, ...]
  median: float
  mean: float
  deviation: float
  low: float
  high: float

  def __str__(self):
    if len(self.values) == 1:
      return f"{self.mean:.4f}"
    values = ", ".join(f"{value:.4f}" for value in self.values)
    return (
      f"median {self.median:.4f}, mean {self.mean:.4f} ± {self.deviation:.4f}, "
      f"bootstrap {self.low:.4f} to {self.high:.4f} ({values})"
    )


def spread(values: Sequence[float]) -> Spread:
  """The Spread of at least one value; deterministic."""
  values = tuple(map(float, values))
  draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
  low, high = np.quantile(draws.mean(axis=1), (0.025, 0.975))
  deviation = statistics.stdev(values) if len(values) > 1 else 0.0
  return Spread(
    values, statistics.median(values), statistics.mean(values), deviation, float(low), float(high)
  )
