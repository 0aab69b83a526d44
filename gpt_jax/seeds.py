"""What a result is worth over several seeds: median, mean, standard deviation, and an interval by the bootstrap."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Spread(NamedTuple):
  """One measure over seeds.

  Attributes:
    values: of every seed, in their order.
    median, mean: of the values.
    deviation: the sample's standard deviation; 0 of a single value.
    low, high: a 95 % interval of the mean, by the percentile bootstrap (Efron 1979). Of few seeds it is too narrow (of
      three by about a third), and it says nothing of the choice of examples.
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
    each = ", ".join(f"{value:.4f}" for value in self.values)
    return (
      f"median {self.median:.4f}, mean {self.mean:.4f} ± {self.deviation:.4f}, "
      f"95 % of means {self.low:.4f} to {self.high:.4f} ({each})"
    )


def spread(values: Sequence[float]) -> Spread:
  """Median, mean, deviation and interval of at least one value; the same for the same values."""
  values = tuple(map(float, values))
  draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
  low, high = np.quantile(draws.mean(axis=1), (0.025, 0.975))
  deviation = statistics.stdev(values) if len(values) > 1 else 0.0
  return Spread(values, statistics.median(values), statistics.mean(values), deviation, float(low), float(high))
