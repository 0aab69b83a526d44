"""Scores by another column, and how far rows are from those that a model was measured on."""

import random

import numpy as np
import pytest
import scipy.stats
from refused import refused

from gpt_jax.inference.drift import MIN_TEXTS, RELABEL, Drift, measure_drift, predict_left_out
from gpt_jax.tasks.slices import Slices, about_slices, make_slices

NAMES = [f"value {number}" for number in range(6)]


def test_rare_values_are_one_slice():
  values = ["de"] * 20 + ["en"] * 12 + ["fr", "it", "it"] + [""] * 10
  expected = ["de"] * 20 + ["en"] * 12 + ["other (2)"] * 3 + ["(empty)"] * 10
  assert make_slices("language", values) == ("language", expected)
  refused("none of its 1 values has 10 of the 9 measured rows", make_slices, "x", values[:9])


def test_values_that_begin_alike_are_slices_of_their_own():
  shoes, hats = (f"https://www.example.com/products/category/{name}" for name in ("shoes", "hats"))
  values = [shoes] * 10 + [hats] * 10 + ["(empty)"] * 10 + [""] * 10 + ["other (1)"] * 10 + ["x"]
  shown = [repr(value) for value in values[:-1]] + ["other (1)"]
  assert make_slices("url", values).of_row == shown
  assert set(make_slices("url", [shoes] * 10).of_row) == {shoes[:40]}


def test_each_slice_has_its_interval():
  right = np.repeat([True, False, True], [30, 10, 60])
  weeks = Slices("week", ["1"] * 40 + ["2"] * 60)
  report = weeks.measure(right)
  second, first = report["slices"]
  assert (first["slice"], first["rows"], first["score"]) == ("1", 40, 0.75)
  interval = scipy.stats.binomtest(30, 40).proportion_ci(method="wilson")
  assert first["interval"] == pytest.approx(tuple(interval))
  assert second["score"] == 1.0 and report["different"] == "2" and report["others"] == 0.75
  sure = np.random.default_rng(0).uniform(size=100)
  report = weeks.measure(sure)
  interval = scipy.stats.norm(sure[40:].mean(), sure[40:].std() / 60**0.5).interval(0.95)
  assert report["measure"] == "confidence"
  assert report["slices"][0]["interval"] == pytest.approx(interval, abs=1e-5)


def test_a_slice_is_named_where_it_differs_by_more_than_chance():
  rng, values = np.random.default_rng(0), np.repeat(NAMES, [90, 60, 50, 40, 30, 20])
  weeks = Slices("week", values.tolist())
  false = [bool(weeks.measure(rng.random(290) < 0.85)["different"]) for _ in range(400)]
  assert 0.005 < np.mean(false) < 0.07
  for worse in NAMES[:4]:
    report = weeks.measure(rng.random(290) < np.where(values == worse, 0.4, 0.9))
    assert report["different"] == worse
    assert about_slices(report).startswith(f"week {worse} differs most: accuracy ")
  assert "more than chance" in about_slices({"column": "week", "different": "", "slices": []})


def test_predictions_without_a_row_are_those_of_a_regression_on_the_others():
  rng = np.random.default_rng(0)
  features, targets = rng.normal(size=(30, 4)), rng.integers(2, size=(30, 3)).astype(float)
  found = predict_left_out(features @ features.T, targets)
  for number in range(30):
    others = np.delete(np.arange(30), number)
    mean = features[others].mean(axis=0)
    x, y = features[others] - mean, targets[others] - targets[others].mean(axis=0)
    weights = np.linalg.solve(x.T @ x + np.eye(4), x.T @ y)
    expected = (features[number] - mean) @ weights + targets[others].mean(axis=0)
    np.testing.assert_allclose(found[number], expected)


def above_chance(pairs):
  drifts = [measure_drift(*pair) for pair in pairs]
  return np.mean([found.value > found.chance for found in drifts]), drifts


def test_drift_of_questions_is_small_beside_questions_and_large_beside_reviews(data_root):
  lines = (data_root / "trec" / "train_5500.label").read_text("latin-1").splitlines()
  questions = [line.partition(" ")[2] for line in lines]
  reviews = (data_root / "glue" / "SST-2" / "dev.tsv").read_text().splitlines()[1:]
  reviews = [line.partition("\t")[0] for line in reviews]
  rng = random.Random(0)
  rng.shuffle(questions)
  halves = [(questions[n : n + 100], questions[n + 100 : n + 250]) for n in range(0, 5000, 250)]
  share, drifts = above_chance(halves)
  assert share <= 0.15 and all(found.chance < RELABEL for found in drifts)
  assert measure_drift(questions[:100], reviews[:150]).value > 0.9
  # Half of the rows are of another kind.
  mixed = [(old, new[:75] + reviews[:75]) for old, new in halves[:4]]
  share, drifts = above_chance(mixed)
  assert share == 1 and all(found.value > RELABEL for found in drifts)
  assert measure_drift(questions[:100], reviews[: MIN_TEXTS - 1]) is None


def test_what_is_said_of_drift():
  for value, words in ((0.1, "nothing to do"), (0.15, "look at the"), (0.3, "label some")):
    line = Drift(value, 0.12, 140).advise("dev rows")
    assert f"drift {value:.0%}: " in line and "140 dev rows" in line and words in line
