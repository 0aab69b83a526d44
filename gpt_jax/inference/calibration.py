"""Calibration of class probabilities: expected calibration error (Guo et al. 2017), temperature
scaling (Clarté et al. 2023, Expectation consistency for calibration of neural networks), and a
threshold on the confidence that keeps a promised precision on unseen rows (Geifman and El-Yaniv
2017), tested in sequence (Angelopoulos et al. 2021, Learn then Test) with the exact binomial bound.

Letters: N examples, K classes; probabilities are [N, K], true classes int [N].
"""

from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import InputError, require

BINS = 15  # as in Guo et al. 2017
_MIN_PROBABILITY = 1e-30  # in a logarithm
_TEMPERATURES = (0.01, 100.0)  # the range of the search
_SHRINKAGE = 2.0
_FOLDS = 5
_SAMPLES = 300  # drawn by chance_error


def scale(probabilities: np.ndarray, temperature: float) -> np.ndarray:
  """The softmax of the logits divided by the temperature, which above 1 makes it less extreme."""
  if temperature == 1.0:
    return probabilities
  # Logits but for a constant of each row, which the softmax removes.
  logits = np.log(np.maximum(probabilities.astype(np.float64), _MIN_PROBABILITY)) / temperature
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, classes: np.ndarray) -> float:
  """The temperature at which the mean confidence is the accuracy, moved towards 1 where few
  examples or a small difference leave it to chance.

  Its logarithm is multiplied by 1 - 2 / z^2, where z is the difference of mean confidence and
  accuracy in standard errors (the shrinkage of James and Stein 1961, positive part): 0 below 1.4
  standard errors, 0.5 at 2, 0.9 at 4.5. Without it the temperature of a calibrated model would be
  noise.

  The lowest negative log-likelihood, the usual choice, depends on the most confident errors: where
  a few labels are wrong it makes all other predictions too unsure.

  A model that was right N times out of N is not made certain: the accuracy is that of two more
  examples, one of them wrong. The examples were not trained on.
  """
  _scipy_optimize()  # fail without scipy, however many examples there are
  return 1.0 if len(classes) < 2 * _FOLDS else _shrunk_temperature(probabilities, classes)


def scale_held_out(probabilities: np.ndarray, classes: np.ndarray) -> np.ndarray:
  """Cross-fitted probabilities [N, K]: each fold is scaled by the others' temperature.

  What a temperature does to unseen examples, where `scale` would flatter the ones it was fitted on.
  """
  # A fixed seed: the report of a run is the same each time.
  fold = np.random.default_rng(0).permutation(len(classes)) % _FOLDS
  scaled = np.array(probabilities, np.float64)
  for number in range(_FOLDS):
    others, held_out = fold != number, fold == number
    temperature = _shrunk_temperature(probabilities[others], classes[others])
    scaled[held_out] = scale(probabilities[held_out], temperature)
  return scaled


def measure_calibration(probabilities: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
  """The temperature, and what it does to examples it was not fitted on: the calibration errors
  without and with it, the `chance_error`, and the bins of `reliability` with it.
  """
  temperature = fit_temperature(probabilities, classes)
  scaled = probabilities if temperature == 1.0 else scale_held_out(probabilities, classes)
  bins = reliability(scaled, classes)
  return {
    "temperature": temperature,
    "ece_before": expected_calibration_error(reliability(probabilities, classes)),
    "ece_after": expected_calibration_error(bins),
    "ece_chance": chance_error(scaled),
    "bins": bins,
  }


def reliability(probabilities: np.ndarray, classes: np.ndarray) -> list[dict[str, float]]:
  """A reliability diagram: mean confidence and accuracy of the examples in each of 15 equally wide
  bins of the highest probability that is not empty; a bin includes its edge "high".
  """
  confidence = probabilities.max(axis=-1).astype(np.float64)
  correct = probabilities.argmax(axis=-1) == classes
  bin_of = _bin_of(confidence)
  bins = []
  for number in np.unique(bin_of):
    inside = bin_of == number
    entry = {
      "low": float(number / BINS),
      "high": float((number + 1) / BINS),
      "confidence": float(confidence[inside].mean()),
      "accuracy": float(correct[inside].mean()),
      "count": int(inside.sum()),
    }
    bins.append(entry)
  return bins


def expected_calibration_error(bins: list[dict[str, float]]) -> float:
  """The mean distance of confidence and accuracy over the examples; bins from `reliability`."""
  total = sum(entry["count"] for entry in bins)
  gaps = (entry["count"] * abs(entry["confidence"] - entry["accuracy"]) for entry in bins)
  return sum(gaps) / total


def chance_error(probabilities: np.ndarray) -> float:
  """The expected calibration error that a perfectly calibrated model stays below in 95 % of samples
  of this size, with these confidences. Errors below it are within what N examples can show.
  """
  confidence = probabilities.max(axis=-1).astype(np.float64)
  bin_of, rng = _bin_of(confidence), np.random.default_rng(0)
  errors = []
  for _ in range(_SAMPLES):
    correct = rng.random(len(confidence)) < confidence
    # Sums over each bin: its count cancels in the expected calibration error.
    gaps = np.bincount(bin_of, confidence - correct, BINS)
    errors.append(np.abs(gaps).sum() / len(confidence))
  return float(np.quantile(errors, 0.95))


def _bin_of(confidence: np.ndarray) -> np.ndarray:
  # Bins include their upper edge, as in Guo et al., so that 1.0 is in the last one.
  return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


def _scipy_optimize() -> Any:
  return require("scipy.optimize", "calibration", "scipy", "metrics")


def _shrunk_temperature(probabilities: np.ndarray, classes: np.ndarray) -> float:
  """See fit_temperature."""
  correct = probabilities.argmax(axis=-1) == classes
  gaps = probabilities.max(axis=-1) - correct
  error = max(float(gaps.std()) / np.sqrt(len(gaps)), 1e-12)
  evidence = (float(gaps.mean()) / error) ** 2
  # The exponent below would be negative: the positive part of the shrinkage is 0.
  if evidence <= _SHRINKAGE:
    return 1.0
  matched = _match_accuracy(probabilities, classes)
  return float(matched ** (1 - _SHRINKAGE / evidence))


def _match_accuracy(probabilities: np.ndarray, classes: np.ndarray) -> float:
  """The temperature at which the mean confidence is the accuracy."""
  correct = int((probabilities.argmax(axis=-1) == classes).sum())
  # Laplace's rule of succession: never 1, which no temperature above 0 gives.
  accuracy = (correct + 1) / (len(classes) + 2)

  def gap(log_temperature: float) -> float:  # falls as the temperature rises
    scaled = scale(probabilities, float(np.exp(log_temperature)))
    return float(scaled.max(axis=-1).mean()) - accuracy

  low, high = np.log(_TEMPERATURES)
  if gap(low) <= 0:
    return _TEMPERATURES[0]
  if gap(high) >= 0:
    return _TEMPERATURES[1]
  return float(np.exp(_scipy_optimize().brentq(gap, low, high, xtol=1e-6)))


CONFIDENCE = 0.95  # that the promise holds
# The thresholds that may be chosen: above which 1/20 of the rows are, 2/20, … all.
_SHARES = 20
_STARTS = (5, 10, 15, 20)


class Threshold(NamedTuple):
  """A threshold, and what labeled rows say about it."""

  value: float  # predictions with at least this confidence are given; 0.0: all
  given: int  # number of labeled rows with at least this confidence
  correct: int  # how many of them are predicted correctly
  promised: float  # a lower bound of the precision on unseen rows, with a confidence of 95 %


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, precision: float) -> Threshold:
  """The lowest threshold above which predictions on unseen rows have the precision.

  Four sequences of tests begin at the most confident 1/4, 1/2, 3/4 and all of the rows. Each adds
  the next 1/20 of the rows until a bound is too low. As a sequence ends at its first failure, and
  its bounds have a confidence of 1 - 0.05 / 4, the promise fails with a probability of 5 % at most.
  The unseen rows must be drawn as the labeled ones were.

  confidence: [N], the highest probability of each labeled row; the rows were not trained on.
  correct: bool [N], whether its most likely class is the true one.
  """
  if not len(confidence):
    raise InputError(f"precision={precision}: there are no dev rows to choose a threshold on")
  tested = [_test(confidence, correct, share) for share in range(1, _SHARES + 1)]
  # Fixed sequences: a test counts only if all before it in its sequence have passed, so none of
  # them costs confidence.
  chosen: Threshold | None = None
  for start in _STARTS:
    for threshold in tested[start - 1 :]:
      if threshold.promised < precision:
        break
      if chosen is None or threshold.given > chosen.given:
        chosen = threshold
  if chosen is not None:
    return chosen
  best = max((tested[start - 1] for start in _STARTS), key=lambda threshold: threshold.promised)
  raise InputError(
    f"precision={precision}: no threshold is sure to reach it: at best {best.correct:,} of the "
    f"{best.given:,} most confident dev rows are right, which promises {best.promised:.3f} with "
    f"{CONFIDENCE:.0%} confidence; ask for less, or use a larger dev set"
  )


def _test(confidence: np.ndarray, correct: np.ndarray, share: int) -> Threshold:
  """The threshold of the most confident `share` / 20 of the rows."""
  rows = max(len(confidence) * share // _SHARES, 1)
  value = 0.0 if share == _SHARES else float(np.sort(confidence)[-rows])
  above = confidence >= value  # ties with the last row come along
  given, hits = int(above.sum()), int(correct[above].sum())
  # Bonferroni: the allowed 5 % are shared among the sequences of tests.
  bound = precision_bound(hits, given, 1 - (1 - CONFIDENCE) / len(_STARTS))
  return Threshold(value, given, hits, bound)


def precision_bound(correct: int, count: int, confidence: float) -> float:
  """The lower confidence bound of a share of which `correct` of `count` were seen: exact, one side
  of Clopper and Pearson 1934.
  """
  if not correct:
    return 0.0
  beta = require("scipy.stats", "precision", "scipy", "metrics").beta
  return float(beta.ppf(1 - confidence, correct, count - correct + 1))
