"""Calibration and thresholds: definitions, second implementations, promises kept in simulations."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from refused import refused
from scipy.special import softmax

from gpt_jax.inference.calibration import (
  chance_error,
  choose_threshold,
  expected_calibration_error,
  fit_temperature,
  measure_calibration,
  precision_bound,
  reliability,
  scale,
  scale_held_out,
)


def draw(count, num_classes, temperature, seed, spread=2.0):
  """Probabilities of a model whose logits are `temperature` times too large, and true classes."""
  rng = np.random.default_rng(seed)
  logits = spread * rng.normal(size=(count, num_classes))
  drawn = (softmax(logits, axis=-1).cumsum(axis=-1) > rng.random((count, 1))).argmax(axis=-1)
  return softmax(temperature * logits, axis=-1), drawn


def ece(probabilities, classes):
  return expected_calibration_error(reliability(probabilities, classes))


@pytest.mark.parametrize("num_classes", [2, 3, 20])
def test_the_error_is_that_of_its_definition(num_classes):
  probabilities, classes = draw(500, num_classes, 2.0, seed=num_classes)
  confidence, edges = probabilities.max(axis=-1), np.linspace(0, 1, 16)
  expected = 0.0
  for low, high in zip(edges[:-1], edges[1:], strict=True):
    inside = (confidence > low) & (confidence <= high)
    if inside.any():
      right = (probabilities[inside].argmax(axis=-1) == classes[inside]).mean()
      expected += inside.mean() * abs(right - confidence[inside].mean())
  assert ece(probabilities, classes) == pytest.approx(expected)
  bins = reliability(probabilities, classes)
  assert sum(entry["count"] for entry in bins) == 500
  assert all(entry["low"] < entry["confidence"] <= entry["high"] for entry in bins)


def test_certain_and_even_probabilities_have_a_bin():
  (certain,) = reliability(np.array([[1.0, 0.0]]), np.array([0]))
  assert (certain["low"], certain["high"], certain["count"]) == (14 / 15, 1.0, 1)
  (even,) = reliability(np.full((3, 15), 1 / 15), np.zeros(3, int))
  assert even["count"] == 3 and even["accuracy"] == 1.0


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("num_classes", [2, 6])
def test_the_temperature_undoes_over_confidence(truth, num_classes):
  probabilities, classes = draw(20_000, num_classes, truth, seed=0)
  fitted = fit_temperature(probabilities, classes)
  assert fitted == pytest.approx(truth, rel=0.05)
  fresh, of_fresh = draw(20_000, num_classes, truth, seed=1)
  assert ece(scale(fresh, fitted), of_fresh) < 0.015
  if truth != 1:
    assert ece(fresh, of_fresh) > 0.05


def test_confidence_and_accuracy_agree_but_for_the_shrinkage():
  """By the softmax, search and t statistic of scipy; with two more examples, one of them wrong."""
  probabilities, classes = draw(300, 4, 1.4, seed=0)
  logits, correct = np.log(probabilities), probabilities.argmax(axis=-1) == classes

  def gap(temperature):
    confidence = softmax(logits / temperature, axis=-1).max(axis=-1)
    return confidence.mean() - (correct.sum() + 1) / 302

  equal = scipy.optimize.brentq(gap, 0.1, 10)
  z = scipy.stats.ttest_1samp(probabilities.max(axis=-1) - correct, 0).statistic
  z *= (300 / 299) ** 0.5  # its standard error is of N - 1, ours of N
  assert equal > 1.3 and 2 < z < 6
  fitted = fit_temperature(probabilities, classes)
  assert np.log(fitted) == pytest.approx((1 - 2 / z**2) * np.log(equal), abs=1e-5)


def test_what_may_be_chance_hardly_changes_the_probabilities():
  """The estimated error of a calibrated model is small at 430 examples, by the shrinkage."""
  fresh = draw(20_000, 2, 1.0, seed=99, spread=1.0)
  before = ece(*fresh)
  rises = [
    ece(scale(fresh[0], fit_temperature(*draw(430, 2, 1.0, seed, spread=1.0))), fresh[1]) - before
    for seed in range(40)
  ]
  assert np.mean(rises) < 0.005


def test_a_calibrated_model_is_mostly_left_alone():
  """And where it is not, the temperature is near 1."""
  fitted = [fit_temperature(*draw(300, 3, 1.0, seed)) for seed in range(40)]
  assert np.mean(np.array(fitted) == 1.0) > 0.6 and max(np.abs(np.log(fitted))) < 0.4


def with_wrong_labels(count, seed):
  """A calibrated model of 6 classes, and labels of which 6 % are drawn at random."""
  probabilities, classes = draw(count, 6, 1.0, seed, spread=6.0)
  rng = np.random.default_rng(seed + 100)
  return probabilities, np.where(rng.random(count) < 0.06, rng.integers(0, 6, count), classes)


def test_a_few_wrong_labels_do_not_spoil_the_other_probabilities():
  """The lowest likelihood, the usual choice, makes everything too unsure because of them."""
  fresh = with_wrong_labels(20_000, 99)

  def likelihood(probabilities, classes):
    rows = np.arange(len(classes))

    def loss(log):
      return -np.log(scale(probabilities, np.exp(log))[rows, classes]).mean()

    return np.exp(scipy.optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)

  errors = {"ours": [], "likelihood": []}
  for seed in range(5):
    labeled = with_wrong_labels(430, seed)
    for name, temperature in (("ours", fit_temperature), ("likelihood", likelihood)):
      errors[name].append(ece(scale(fresh[0], temperature(*labeled)), fresh[1]))
  assert np.mean(errors["ours"]) < ece(*fresh) + 0.003
  assert np.mean(errors["likelihood"]) > ece(*fresh) + 0.02


def test_rows_are_scaled_by_the_temperature_of_others():
  probabilities, classes = draw(400, 3, 3.0, seed=0)
  scaled = scale_held_out(probabilities, classes)
  used = np.log(probabilities).std(axis=-1) / np.log(scaled).std(axis=-1)
  temperatures, counts = np.unique(used.round(6), return_counts=True)
  assert set(counts) == {80} and len(temperatures) == 5
  changed = classes.copy()
  changed[0] = (classes[0] + 1) % 3
  again = scale_held_out(probabilities, changed)
  np.testing.assert_array_equal(again[0], scaled[0])  # its own label does not matter
  measured = measure_calibration(probabilities, classes)
  assert measured["temperature"] == fit_temperature(probabilities, classes)
  assert measured["ece_before"] == ece(probabilities, classes)
  assert measured["ece_after"] == ece(scaled, classes)
  assert measured["bins"] == reliability(scaled, classes)


@pytest.mark.parametrize("count", [50, 400])
def test_a_calibrated_model_stays_below_the_error_of_chance(count):
  """In 95 % of samples, by labels drawn from its own probabilities."""
  probabilities, _ = draw(count, 4, 1.0, seed=0)
  limit, rng = chance_error(probabilities), np.random.default_rng(1)
  sums = probabilities.cumsum(axis=-1)
  errors = [ece(probabilities, (sums > rng.random((count, 1))).argmax(axis=-1)) for _ in range(400)]
  assert 0.9 < np.mean(np.array(errors) <= limit) < 0.98


@pytest.mark.parametrize("temperature", [0.02, 0.5, 1.0, 7.0, 90.0])
def test_scaling_keeps_the_order_of_the_classes(temperature):
  probabilities, _ = draw(1000, 5, 1.5, seed=0)
  scaled = scale(probabilities, temperature)
  np.testing.assert_array_equal(scaled.argmax(axis=-1), probabilities.argmax(axis=-1))
  np.testing.assert_allclose(scaled.sum(axis=-1), 1)
  if temperature >= 0.5:  # below, most probabilities are 0 or 1
    np.testing.assert_allclose(scale(scaled, 1 / temperature), probabilities, atol=1e-9)


def test_a_probability_of_zero_stays_finite():
  certain = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
  temperature = fit_temperature(certain, np.array([0, 0]))
  assert np.isfinite(temperature) and np.isfinite(scale(certain, temperature)).all()


def test_a_model_that_was_always_right_is_not_made_certain():
  probabilities = np.tile([0.9, 0.1], (30, 1))
  temperature = fit_temperature(probabilities, np.zeros(30, int))
  assert scale(probabilities, temperature)[0, 0] == pytest.approx(31 / 32, abs=1e-5)


@pytest.mark.parametrize("correct, count", [(0, 5), (1, 5), (5, 5), (190, 200), (1999, 2000)])
@pytest.mark.parametrize("confidence", [0.9, 0.9975])
def test_the_bound_is_the_exact_one_of_scipy(correct, count, confidence):
  bound = precision_bound(correct, count, confidence)
  # An interval with both sides has half of the error on each.
  interval = scipy.stats.binomtest(correct, count).proportion_ci(2 * confidence - 1, "exact")
  assert bound == pytest.approx(interval.low, abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 4.0], ids=["calibrated", "over-confident"])
@pytest.mark.parametrize("precision", [0.9, 0.95])
def test_the_promised_precision_holds_on_unseen_rows(temperature, precision):
  """In at least 19 of 20 splits, by the precision on many unseen rows of the same kind; the
  largest share of the labeled rows that has the precision does not keep it on unseen ones.
  """
  splits, kept, kept_by_the_share, shares, accuracies = 60, 0, 0, [], []
  for split in range(splits):
    probabilities, classes = draw(6_000, 3, temperature, seed=split, spread=4.0)
    confidence, correct = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == classes
    chosen = choose_threshold(confidence[:1000], correct[:1000], precision)
    given = confidence[1000:] >= chosen.value
    kept += correct[1000:][given].mean() >= precision
    shares.append(given.mean())
    accuracies.append(correct.mean())
    order = np.argsort(-confidence[:1000])
    rows = np.flatnonzero(correct[order].cumsum() >= precision * np.arange(1, 1001))[-1]
    given = confidence[1000:] >= confidence[order[rows]]
    kept_by_the_share += correct[1000:][given].mean() >= precision
  assert kept >= 0.95 * splits > 0.7 * splits > kept_by_the_share
  assert np.mean(accuracies) < precision - 0.02  # all rows would not have it
  assert np.mean(shares) > 0.5  # nor are nearly all withheld


def test_a_precision_that_all_rows_have_needs_no_threshold():
  confidence = np.linspace(0.5, 1, 1000)
  chosen = choose_threshold(confidence, np.ones(1000, bool), 0.95)
  assert (chosen.value, chosen.given, chosen.correct) == (0.0, 1000, 1000)
  assert chosen.promised == pytest.approx(0.0125 ** (1 / 1000))


def test_rows_of_equal_confidence_are_given_or_withheld_together():
  confidence = np.repeat([0.9, 0.6], 200)
  correct = np.concatenate([np.ones(200, bool), np.arange(200) % 2 == 0])
  chosen = choose_threshold(confidence, correct, 0.9)
  assert (chosen.value, chosen.given, chosen.correct) == (0.9, 200, 200)


@pytest.mark.parametrize(
  "count, message",
  [
    (30, "at best 30 of the 30 most confident dev rows are right, which promises 0.864"),
    (0, "there are no dev rows"),
  ],
)
def test_a_promise_that_cannot_be_kept_is_refused(count, message):
  refused(message, choose_threshold, np.linspace(0.5, 1, count), np.ones(count, bool), 0.95)
