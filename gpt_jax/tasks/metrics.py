"""The tasks' metrics from host arrays, by scikit-learn and scipy (the extra `metrics`)."""

import numpy as np

from gpt_jax.errors import InputError


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Share of equal entries; truth and predicted [N]."""
  return _sklearn().accuracy_score(truth, predicted)


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
  """F1 of outcome 1 against 0; 0 where nothing is predicted to be 1."""
  return _sklearn().f1_score(truth, predicted, zero_division=0)


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Matthews' correlation of classes; 0 where either side has one class only."""
  if _constant(truth) or _constant(predicted):
    return 0.0  # scikit-learn's value too, but without its warning about a single label
  return _sklearn().matthews_corrcoef(truth, predicted)


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Pearson's correlation; 0, not nan, where either side is constant."""
  return (
    0.0
    if _constant(truth) or _constant(predicted)
    else _scipy().pearsonr(truth, predicted).statistic
  )


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
  """Spearman's rank correlation; 0, not nan, where either side is constant."""
  return (
    0.0
    if _constant(truth) or _constant(predicted)
    else _scipy().spearmanr(truth, predicted).statistic
  )


def _constant(values: np.ndarray) -> bool:
  return np.ptp(values) == 0


def _sklearn():
  try:
    import sklearn.metrics
  except ImportError as error:
    raise InputError("this metric needs scikit-learn: pip install 'gpt_jax[metrics]'") from error
  return sklearn.metrics


def _scipy():
  try:
    import scipy.stats
  except ImportError as error:
    raise InputError("this metric needs scipy: pip install 'gpt_jax[metrics]'") from error
  return scipy.stats
