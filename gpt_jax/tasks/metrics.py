"""Metrics of labeled tasks, computed on host arrays by scikit-learn and scipy (extra `metrics`).

To add a metric, write a function (truth [N], predicted [N]) -> float below. Task files name it in
`metrics={"f1": f1, ...}`; add it to CLASS_METRICS to allow `--config.task.metric=NAME` for tables.
"""

import types
from collections.abc import Callable

import numpy as np

from gpt_jax.errors import InputError

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Share of equal entries."""
  return _sklearn().accuracy_score(truth, predicted)


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """F1 of class 1 in a binary task; 0 if class 1 is never predicted."""
  return _sklearn().f1_score(truth, predicted, zero_division=0)


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Mean F1 of the classes that occur in either array, each with the same weight."""
  return _sklearn().f1_score(truth, predicted, average="macro", zero_division=0)


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Matthews correlation of class indices; 0 if either array is constant."""
  if _is_constant(truth) or _is_constant(predicted):
    return 0.0  # as scikit-learn, which would also warn
  return _sklearn().matthews_corrcoef(truth, predicted)


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Pearson correlation; 0, not nan, if either array is constant."""
  if _is_constant(truth) or _is_constant(predicted):
    return 0.0
  return _scipy().pearsonr(truth, predicted).statistic


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Spearman rank correlation; 0, not nan, if either array is constant."""
  if _is_constant(truth) or _is_constant(predicted):
    return 0.0
  return _scipy().spearmanr(truth, predicted).statistic


# The choices of TableTask.metric.
CLASS_METRICS: dict[str, Metric] = {
  "accuracy": accuracy,
  "f1": f1,
  "macro_f1": macro_f1,
  "matthews": matthews,
}


def _is_constant(values: np.ndarray) -> bool:
  return np.ptp(values) == 0


def _sklearn() -> types.ModuleType:
  try:
    import sklearn.metrics
  except ImportError as error:
    raise InputError("this metric needs scikit-learn: pip install 'gpt_jax[metrics]'") from error
  return sklearn.metrics


def _scipy() -> types.ModuleType:
  try:
    import scipy.stats
  except ImportError as error:
    raise InputError("this metric needs scipy: pip install 'gpt_jax[metrics]'") from error
  return scipy.stats
