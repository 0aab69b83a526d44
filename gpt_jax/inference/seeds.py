"""Mean, median, standard deviation and bootstrap interval of a metric over seeds."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

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
  # [RESAMPLES, seeds], with replacement.
  draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
  low, high = np.quantile(draws.mean(axis=1), (0.025, 0.975))
  deviation = statistics.stdev(values) if len(values) > 1 else 0.0
  return Spread(
    values, statistics.median(values), statistics.mean(values), deviation, float(low), float(high)
  )


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
  """The content of summary.json: the spread over seeds or folds of every dev metric, after the last
  update ("dev") and at the best evaluation ("best").

  `degenerate` lists those whose best model predicts the same for every example.
  """
  stages: dict[str, dict[str, Any]] = {}
  for stage in ("dev", "best"):
    names = [name for name in results[0][stage] if name not in ("step", "dev_degenerate")]
    stages[stage] = {}
    for name in names:
      values = [result[stage][name] for result in results]
      stages[stage][name] = spread(values)._asdict()
  number = "fold" if "fold" in results[0] else "seed"
  return {
    "task": results[0]["task"],
    f"{number}s": [result[number] for result in results],
    "degenerate": [result[number] for result in results if "dev_degenerate" in result["best"]],
    **stages,
  }


def format_summary(summary: dict[str, Any]) -> str:
  """The summary over seeds or folds for the console."""
  number = "fold" if "folds" in summary else "seed"
  lines = [f"{summary['task']}: {len(summary[f'{number}s'])} {number}s"]
  titles = {"dev": "after the last update", "best": f"at each {number}'s best evaluation"}
  for stage, title in titles.items():
    lines.append(f"  {title}")
    lines += [f"    {name}: {Spread(**values)}" for name, values in summary[stage].items()]
  if summary["degenerate"]:
    numbers = ", ".join(map(str, summary["degenerate"]))
    lines.append(f"  degenerate, one prediction for every example: {number} {numbers}")
  return "\n".join(lines)
