"""Calibration of class probabilities: expected calibration error and temperature scaling.

Guo et al. 2017, On Calibration of Modern Neural Networks. Letters: N examples, K classes.
"""

from typing import Any

import numpy as np

from gpt_jax.errors import InputError

BINS = 15  # as in Guo et al. 2017
_SMALLEST = 1e-30  # of a probability in a logarithm
_TEMPERATURES = (0.01, 100.0)  # the range of the search


def scale(probabilities: np.ndarray, temperature: float) -> np.ndarray:
  """The softmax of the logits divided by the temperature; their order stays.

  Args:
    probabilities: [N, K].
    temperature: above 1 makes the probabilities less extreme; 1 returns them unchanged.
  """
  if temperature == 1.0:
    return probabilities
  logits = _log(probabilities) / temperature
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, classes: np.ndarray) -> float:
  """The temperature with the lowest mean negative log-likelihood of the true classes.

  The likelihood alone would make a model certain that was right N times out of N. Each true class
  therefore counts (N + 1) / (N + 2), as in Platt 1999, section 2.2, and the others the rest.

  Args:
    probabilities: [N, K], of examples that were not trained on.
    classes: int [N], the true ones.

  Raises:
    InputError: scipy is not installed.
  """
  logs = _log(probabilities)
  count, num_classes = logs.shape
  targets = np.full_like(logs, 1 / (count + 2) / max(num_classes - 1, 1))
  targets[np.arange(count), classes] = (count + 1) / (count + 2)

  def loss(log_temperature: float) -> float:
    logits = logs / np.exp(log_temperature)
    highest = logits.max(axis=-1, keepdims=True)
    log_sums = highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True))
    return float((targets * (log_sums - logits)).sum(axis=-1).mean())

  bounds = tuple(np.log(_TEMPERATURES))
  return float(np.exp(_scipy_optimize().minimize_scalar(loss, bounds=bounds, method="bounded").x))


def reliability(probabilities: np.ndarray, classes: np.ndarray) -> list[dict[str, float]]:
  """How often predictions of each confidence are right: a reliability diagram.

  Args:
    probabilities: [N, K].
    classes: int [N], the true ones.

  Returns:
    For each of 15 equally wide bins of the highest probability that is not empty: its edges "low"
    and "high" (included), the mean "confidence", the "accuracy" and the "count" of its examples.
  """
  confidence = probabilities.max(axis=-1).astype(np.float64)
  correct = probabilities.argmax(axis=-1) == classes
  bin_of = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
  bins = []
  for number in np.unique(bin_of):
    inside = bin_of == number
    bins.append(
      {
        "low": float(number / BINS),
        "high": float((number + 1) / BINS),
        "confidence": float(confidence[inside].mean()),
        "accuracy": float(correct[inside].mean()),
        "count": int(inside.sum()),
      }
    )
  return bins


def expected_calibration_error(bins: list[dict[str, float]]) -> float:
  """The mean distance of confidence and accuracy over the examples; bins from `reliability`."""
  total = sum(entry["count"] for entry in bins)
  gaps = (entry["count"] * abs(entry["confidence"] - entry["accuracy"]) for entry in bins)
  return sum(gaps) / total


def _log(probabilities: np.ndarray) -> np.ndarray:
  return np.log(np.maximum(probabilities.astype(np.float64), _SMALLEST))


def _scipy_optimize() -> Any:
  try:
    import scipy.optimize
  except ImportError as error:
    raise InputError("calibration needs scipy: pip install 'gpt_jax[metrics]'") from error
  return scipy.optimize
