"""Logistic regression, TF-IDF, the learning curve, intervals and spreads, against scikit-learn."""

import re

import numpy as np
import pytest
import scipy.stats
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler

from gpt_jax.apps.label.measures import curve_of, gain_of_doubling, margins, outlook
from gpt_jax.inference.intervals import bootstrap_macro_f1, paired_interval, spread, summarize
from gpt_jax.inference.linear_classifier import (
  TfidfClassifier,
  fit_linear,
  fit_tfidf,
  spread_classes,
)

pytestmark = pytest.mark.app


@pytest.fixture
def examples():
  rng = np.random.default_rng(0)
  classes = rng.integers(3, size=200)
  features = rng.normal(size=(200, 5)) * [1, 10, 0.1, 1, 1] + classes[:, None]
  return features, classes


@pytest.mark.parametrize("num_classes", [2, 3])
def test_probabilities_are_those_of_scikit_learn(examples, num_classes):
  features, classes = examples[0], examples[1] % num_classes
  scaled = StandardScaler().fit_transform(features)
  theirs = LogisticRegression(C=1.0, max_iter=300, tol=1e-3).fit(scaled, classes)
  ours = fit_linear(features, classes, num_classes, 1.0)(features)
  np.testing.assert_allclose(ours, theirs.predict_proba(scaled), atol=1e-6)


@pytest.mark.parametrize("count", [4, 7, 20, 60])
def test_the_beginning_of_an_order_has_its_share_of_each_class(count):
  alternating = np.tile([0, 1], 50)
  order = spread_classes(alternating, 3)
  assert sorted(order) == list(range(100))
  chosen = np.bincount(alternating[order[:count]])
  assert abs(chosen[0] - chosen[1]) <= 2
  rare = np.repeat([0, 1, 2], [97, 2, 1])
  assert {*rare[spread_classes(rare, 3)[:3]]} == {0, 1, 2}


def test_every_point_of_a_learning_curve_has_all_classes():
  classes = np.repeat([0, 1], [190, 10])
  features = np.eye(2)[classes]  # one example of each class is enough
  for seed in range(5):
    curve = curve_of((features, classes), (np.eye(2), np.arange(2)), 2, 100.0, seed)
    assert curve == [1.0] * 5


def test_a_class_without_examples_gets_no_probability(examples):
  features, classes = examples
  classes = np.array([0, 3, 4])[classes]
  probabilities = fit_linear(features, classes, 5, 1.0)(features)
  assert probabilities.shape == (200, 5)
  assert probabilities[:, 1:3].max() < 1e-6
  assert (probabilities.argmax(axis=1) == classes).mean() > 0.6
  one_class = fit_linear(features, np.full(200, 2), 3, 1.0)(features)
  assert one_class[:, 2].min() > 0.999


def test_tfidf_is_that_of_scikit_learn():
  train = ["a red barn", "the red cat", "the cat and the barn", "a b"]
  texts = [*train, "an unseen dog", ""]
  common = {"min_df": 2, "sublinear_tf": True}
  words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", **common).fit(train)
  pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **common).fit(train)
  ours = fit_tfidf(train)(texts).toarray()
  theirs = np.hstack([pieces.transform(texts).toarray(), words.transform(texts).toarray()])
  np.testing.assert_allclose(ours, theirs)
  # Texts that share no term have a blank feature.
  assert fit_tfidf(["ab", "cd"])(["ab", "x", "y"]).toarray().tolist() == [[0.0]] * 3


def test_a_classifier_with_its_classes_in_another_order(examples):
  order = np.array([2, 0, 1])
  model = TfidfClassifier("", "", {}, {"linear": fit_linear(*examples, 3, 1.0)})
  other = model.with_classes(order)
  expected, found = (each.params["linear"](examples[0]) for each in (model, other))
  np.testing.assert_allclose(found, expected[:, order])
  assert re.fullmatch("checksum [0-9a-f]{8}", other.identity)
  assert other.identity != model.identity


def test_the_interval_of_macro_f1_is_that_of_resampled_examples():
  rng = np.random.default_rng(1)
  truth = rng.choice(3, size=150, p=[0.6, 0.3, 0.1])
  predicted = np.where(rng.random(150) < 0.8, truth, rng.integers(3, size=150))
  confusion = np.zeros((3, 3), int)
  np.add.at(confusion, (truth, predicted), 1)
  draws = rng.integers(150, size=(600, 150))
  scores = [f1_score(truth[draw], predicted[draw], average="macro") for draw in draws]
  np.testing.assert_allclose(
    bootstrap_macro_f1(confusion), np.quantile(scores, (0.025, 0.975)), atol=0.02
  )


def test_the_interval_of_macro_f1_holds_of_many_small_classes():
  """Draws have lower ones, so that the interval of their percentiles lies below it."""
  rng, truth = np.random.default_rng(1), np.repeat(np.arange(300), 3)
  predicted = np.where(rng.random(900) < 0.85, truth, rng.integers(300, size=900))
  confusion = np.zeros((300, 300), int)
  np.add.at(confusion, (truth, predicted), 1)
  low, high = bootstrap_macro_f1(confusion)
  assert low < f1_score(truth, predicted, average="macro") < high < low + 0.06


def test_seeds_may_differ_in_what_is_degenerate():
  dev = lambda seed, **more: {
    "task": "a,b",
    "seed": seed,
    "best": {"step": 1, "dev_mean": 0.3},
    "dev": {"dev_mean": 0.3, **more},
  }
  assert [*summarize([dev(0, dev_trec_degenerate=1.0), dev(1)])["dev"]] == ["dev_mean"]


def test_a_margin_is_negative_where_another_label_is_more_likely():
  probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
  margin, other = margins(probabilities, np.array([0, 0]))
  np.testing.assert_allclose(margin, [0.5, -0.5])
  assert other.tolist() == [1, 2]


def test_the_outlook_is_the_slope_per_doubling():
  sizes = [100, 200, 400, 800, 1600]
  rising = [0.5, 0.6, 0.7, 0.75, 0.8]
  assert gain_of_doubling(sizes, rising) == pytest.approx(0.05)
  assert outlook(sizes, rising).startswith("Twice as many labels would bring about 5.0 points")
  assert gain_of_doubling(sizes, [0.9, 0.9, 0.8, 0.7, 0.6]) == 0.0
  assert "would bring little" in outlook(sizes, [0.5, 0.9, 0.95, 0.951, 0.95])


@pytest.mark.parametrize(
  "gained, lost", [(0, 0), (5, 0), (6, 0), (0, 6), (12, 3), (9, 3), (40, 41)]
)
def test_a_paired_interval_excludes_zero_where_mcnemars_exact_test_does(gained, lost):
  low, high = paired_interval(gained, lost, 200)
  p = scipy.stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
  assert (low > 0 or high < 0) == (p < 0.05)
  assert low <= (gained - lost) / 200 <= high
  assert paired_interval(lost, gained, 200) == pytest.approx((-high, -low))


def test_the_spread_of_a_sample_over_seeds():
  summary = spread([0.5, 0.7, 0.9])
  assert (summary.median, summary.values) == (0.7, (0.5, 0.7, 0.9))
  np.testing.assert_allclose([summary.mean, summary.deviation], [0.7, 0.2])
  assert 0.5 <= summary.low < 0.7 < summary.high <= 0.9
  assert spread([0.5, 0.7, 0.9]) == summary
  single = spread([0.25])
  assert single.median == single.mean == single.low == single.high == 0.25
  assert (single.deviation, str(single)) == (0, "0.2500")


def test_the_interval_of_a_spread_is_that_of_the_mean():
  values = np.random.default_rng(1).normal(10, 2, size=400)
  summary = spread(values)
  half = 1.96 * values.std(ddof=1) / 20  # what the normal distribution says
  np.testing.assert_allclose(
    [summary.low, summary.high], [summary.mean - half, summary.mean + half], atol=0.03
  )
