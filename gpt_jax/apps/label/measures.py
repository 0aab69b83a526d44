"""Measurements of launch/label.py: scores, calibration, a threshold, a curve, label errors.

A label is probably wrong by the normalized margin of Northcutt et al. 2021, Confident Learning:
p(given) - max p(other), of models that have not seen it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.inference import calibration
from gpt_jax.inference.intervals import bootstrap_macro_f1, paired_interval, wilson
from gpt_jax.inference.linear_classifier import fit_linear, spread_classes
from gpt_jax.tasks.metrics import accuracy, class_report, macro_f1

_PROMISES = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)


def measure(
  name: str, probabilities: dict[str, np.ndarray], truth: dict[str, np.ndarray]
) -> dict[str, Any]:
  """The scores of a model, and its calibration error on the test set."""
  temperature = calibration.fit_temperature(probabilities["dev"], truth["dev"])
  scaled = calibration.scale(probabilities["test"], temperature)
  measures: dict[str, Any] = {"name": name, "temperature": temperature}
  for split in ("dev", "test"):
    predicted = probabilities[split].argmax(axis=-1)
    measures[split] = {
      "accuracy": float(accuracy(truth[split], predicted)),
      "macro_f1": float(macro_f1(truth[split], predicted)),
    }
  confusion = np.zeros((probabilities["test"].shape[1],) * 2, np.int64)
  predicted = probabilities["test"].argmax(axis=-1)
  np.add.at(confusion, (truth["test"], predicted), 1)
  measures["test"]["accuracy_interval"] = wilson(int(np.trace(confusion)), len(predicted))
  measures["test"]["macro_f1_interval"] = bootstrap_macro_f1(confusion)
  for when, values in (("before", probabilities["test"]), ("after", scaled)):
    bins = calibration.reliability(values, truth["test"])
    measures[f"ece_{when}"] = calibration.expected_calibration_error(bins)
  measures["ece_chance"] = calibration.chance_error(scaled)
  return measures


def compare(ours: np.ndarray, theirs: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
  """How much more accurate one of two models is on the same "rows", by classes, int [N]: the
  "difference", a share of the rows, and its "interval"; see paired_interval. "shares" are right.
  """
  gained = int(((ours == truth) & (theirs != truth)).sum())
  lost = int(((ours != truth) & (theirs == truth)).sum())
  interval = paired_interval(gained, lost, len(truth))
  shares = [float((guesses == truth).mean()) for guesses in (ours, theirs)]
  difference = {"difference": (gained - lost) / len(truth), "interval": interval}
  return {"rows": len(truth), "shares": shares, **difference}


def measure_classes(
  labels: tuple[str, ...], probabilities: np.ndarray, truth: np.ndarray
) -> dict[str, Any]:
  """The class_report of the test set, with intervals of precision and recall."""
  report = class_report(labels, probabilities, truth)
  confusion = np.array(report["confusion"])
  for number, label in enumerate(labels):
    right = int(confusion[number, number])
    report["per_class"][label] |= {
      "precision_interval": wilson(right, int(confusion[:, number].sum())),
      "recall_interval": wilson(right, int(confusion[number].sum())),
    }
  return report


def measure_threshold(
  probabilities: dict[str, np.ndarray],
  temperature: float,
  truth: dict[str, np.ndarray],
  precision: float,
) -> dict[str, Any]:
  """The threshold that launch/predict.py chooses on dev for a precision, and what it does on test.

  Where dev cannot show the precision, "problem" says why, and the threshold is of the highest
  lower one that it can show.
  """
  confidence, correct = {}, {}
  for split in ("dev", "test"):
    scaled = calibration.scale(probabilities[split], temperature)  # [N, K]
    confidence[split] = scaled.max(axis=-1)
    correct[split] = scaled.argmax(axis=-1) == truth[split]
  result: dict[str, Any] = {"asked": precision}
  # What was asked for, then lower promises, from the highest on.
  for promised in (precision, *(lower for lower in _PROMISES if lower < precision)):
    try:
      chosen = calibration.choose_threshold(confidence["dev"], correct["dev"], promised)
    except InputError as error:
      result.setdefault("problem", str(error))
      continue
    right = correct["test"][confidence["test"] >= chosen.value]
    dev = {"given": chosen.given, "correct": chosen.correct, "rows": len(correct["dev"])}
    test = {"given": len(right), "correct": int(right.sum()), "rows": len(correct["test"])}
    return result | {"precision": promised, "value": chosen.value, "dev": dev, "test": test}
  return result


def measure_curve(predicted: dict[str, dict[str, np.ndarray]], count: int) -> dict[str, Any]:
  """Accuracies of the two cheap models by training rows, and what more would bring "model", the
  better one.
  """
  sizes = subset_sizes(count)
  curves = {name: predicted[name]["curve"].tolist() for name in ("tfidf", "probe")}
  better = max(curves, key=lambda name: curves[name][-1])
  return {
    "sizes": sizes,
    **curves,
    "model": better,
    "gain": gain_of_doubling(sizes, curves[better]),
    "outlook": outlook(sizes, curves[better]),
  }


_SHARES = (0.1, 0.2, 0.4, 0.7, 1.0)  # of the training rows, for each point of the curve
_FLAT = 0.005  # a gain below this is not worth a promise


def subset_sizes(count: int) -> list[int]:
  """How many of `count` training rows each point of the curve has."""
  return [max(2, round(share * count)) for share in _SHARES]


def curve_of(
  train: tuple[Any, np.ndarray],
  held_out: tuple[Any, np.ndarray],
  num_classes: int,
  inverse_penalty: float,
  seed: int,
) -> list[float]:
  """Accuracy on held-out rows, features [N, F] and classes [N], of logistic regressions on ever
  more training rows: each subset contains those before it, and has its share of each class.
  """
  features, classes = train
  order = spread_classes(classes, seed)
  accuracies = []
  for size in subset_sizes(len(classes)):
    part = np.sort(order[:size])
    linear = fit_linear(features[part], classes[part], num_classes, inverse_penalty)
    accuracies.append(float((linear(held_out[0]).argmax(-1) == held_out[1]).mean()))
  return accuracies


def gain_of_doubling(sizes: Sequence[int], accuracies: Sequence[float]) -> float:
  """How much accuracy twice the labels would bring: the slope of the last three points over the
  binary logarithm of their sizes, at most half of the errors that are left.
  """
  slope = float(np.polyfit(np.log2(sizes[-3:]), accuracies[-3:], 1)[0])
  return min(max(slope, 0.0), (1 - accuracies[-1]) / 2)


def outlook(sizes: Sequence[int], accuracies: Sequence[float]) -> str:
  """One sentence on what doubling the number of labels would bring."""
  gain = gain_of_doubling(sizes, accuracies)
  rows = f"from {sizes[-3]:,} to {sizes[-1]:,} rows"
  past = f"{rows} accuracy went from {accuracies[-3]:.1%} to {accuracies[-1]:.1%}"
  if gain < _FLAT:
    return f"Twice as many labels would bring little: {past}. Correct labels may bring more."
  return f"Twice as many labels would bring about {100 * gain:.1f} points: {past}."


def out_of_fold(
  features: Any, classes: np.ndarray, num_classes: int, fold: np.ndarray, inverse_penalty: float
) -> np.ndarray:
  """Probabilities [N, K] of each example by a logistic regression on the other folds.

  Args:
    features: [N, F], dense or sparse.
    fold: int [N]; near-duplicates should share one.
  """
  probabilities = np.zeros((len(classes), num_classes))
  for number in np.unique(fold):
    inside = fold == number
    linear = fit_linear(features[~inside], classes[~inside], num_classes, inverse_penalty)
    probabilities[inside] = linear(features[inside])
  return probabilities


def margins(probabilities: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """p(given) - max p(other) of each example, [N], and the most likely other class, int [N].

  Below 0 another label is more likely than the given one.
  """
  every = np.arange(len(classes))
  others = probabilities.copy()
  others[every, classes] = -1.0
  other = others.argmax(axis=-1)
  return probabilities[every, classes] - others[every, other], other
