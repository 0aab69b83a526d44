"""95 % intervals of what was measured on few examples, and the spread of metrics over seeds."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import require

_RESAMPLES = 1000  # of examples
RESAMPLES = 10_000  # of seeds


def wilson(successes: int, count: int) -> tuple[float, float]:
  """The interval of a share (Wilson 1927); 0 to 1 of nothing."""
  if not count:
    return 0.0, 1.0
  interval = _binomtest(successes, count).proportion_ci(method="wilson")
  return float(interval.low), float(interval.high)


def paired_interval(
  gained: int, lost: int, count: int, confidence: float = 0.95
) -> tuple[float, float]:
  """The interval of the difference of two accuracies on the same examples.

  Given how many examples just one of the two gets right, it is Clopper and Pearson's exact interval
  (1934) of the first one's share of these. It excludes 0 where McNemar's exact test has a p below
  1 - confidence.

  gained, lost: examples that only the first, or only the second, gets right; count: all.
  """
  differing = gained + lost
  if not differing:
    return 0.0, 0.0
  interval = _binomtest(gained, differing).proportion_ci(confidence, method="exact")
  scale = differing / count
  return float(2 * interval.low - 1) * scale, float(2 * interval.high - 1) * scale


def _binomtest(successes: int, count: int) -> Any:
  return require("scipy.stats", "an interval", "scipy", "metrics").binomtest(successes, count)


def bootstrap_macro_f1(confusion: np.ndarray) -> tuple[float, float]:
  """The interval of macro F1 by the percentile bootstrap over examples (Efron 1979), corrected for
  its bias: draws have a lower macro F1 where classes have few examples. With 77 classes of 4 the
  interval covers it in 83 % of cases uncorrected, in 98 % corrected.

  confusion: counts [K, K] of true and predicted classes.
  """
  # To draw examples is to draw the cells of the confusion matrix, of which few are not empty.
  true, predicted = np.nonzero(confusion)
  cells = confusion[true, predicted]

  def macro_f1(counts: np.ndarray) -> np.ndarray:  # of cells, [cells, draws]
    right, occurrences = np.zeros((2, len(confusion), counts.shape[1]))
    np.add.at(occurrences, true, counts)
    np.add.at(occurrences, predicted, counts)
    right[true[true == predicted]] = counts[true == predicted]
    f1 = 2 * right / np.maximum(occurrences, 1)
    return f1.sum(axis=0) / (occurrences > 0).sum(axis=0)

  random, count = np.random.default_rng(0), cells.sum()
  values = macro_f1(random.multinomial(count, cells / count, _RESAMPLES).T)
  bias = values.mean() - macro_f1(cells[:, None])[0]
  low, high = np.clip(np.quantile(values, (0.025, 0.975)) - bias, 0.0, 1.0)
  return float(low), float(high)


def bootstrap_difference(
  metric: Callable[[np.ndarray, np.ndarray], float],
  truth: np.ndarray,
  first: Sequence[np.ndarray],
  second: Sequence[np.ndarray] = (),
) -> tuple[float, float]:
  """The interval of a metric's mean over the seeds, by the percentile bootstrap over examples; with
  `second`, of how much that of `first` is above it on the same examples.

  The metric compares values [N], of each seed in first and second, with the truth [N].
  """
  random, differences = np.random.default_rng(0), []

  def mean(values: Sequence[np.ndarray], drawn: np.ndarray) -> float:
    of_seeds = [metric(truth[drawn], of_seed[drawn]) for of_seed in values]
    return float(np.mean(of_seeds)) if of_seeds else 0.0

  for _ in range(_RESAMPLES):
    drawn = random.integers(len(truth), size=len(truth))
    differences.append(mean(first, drawn) - mean(second, drawn))
  low, high = np.quantile(differences, (0.025, 0.975))
  return float(low), float(high)


class Spread(NamedTuple):
  """One metric over seeds.

  low, high are the 95 % interval of the mean by the percentile bootstrap (Efron 1979). For two or
  three values it is their range, and covers the mean over all seeds in about 50 % or 75 % of cases.
  It does not include the variance over the choice of examples.
  """

  values: tuple[float, ...]  # one per seed, in order
  median: float
  mean: float
  deviation: float  # of a sample; 0 for a single value
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
  stages: dict[str, dict[str, Any]] = {"dev": {}, "best": {}}
  for stage, spreads in stages.items():
    for name in results[0][stage]:
      # Of several tasks each may be degenerate with some seeds.
      if name != "step" and not name.endswith("degenerate"):
        spreads[name] = spread([result[stage][name] for result in results])._asdict()
  number = "fold" if "fold" in results[0] else "seed"
  return {
    "task": results[0]["task"],
    f"{number}s": [result[number] for result in results],
    "degenerate": [
      result[number]
      for result in results
      if any(name.endswith("degenerate") for name in result["best"])
    ],
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
