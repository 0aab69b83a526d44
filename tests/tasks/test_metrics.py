"""Metrics, compared with their definitions."""

import sys
import warnings

import numpy as np
import pytest
from refused import refused

from gpt_jax.tasks import metrics


@pytest.fixture
def classes():
  rng = np.random.default_rng(0)
  truth = rng.integers(0, 2, 200)
  return truth, np.where(rng.random(200) < 0.7, truth, 1 - truth)


def test_class_metrics_equal_their_definitions(classes):
  truth, predicted = classes
  tp, tn = np.sum(truth & predicted), np.sum((1 - truth) & (1 - predicted))
  fp, fn = np.sum((1 - truth) & predicted), np.sum(truth & (1 - predicted))
  assert metrics.accuracy(truth, predicted) == pytest.approx((tp + tn) / 200)
  assert metrics.f1(truth, predicted) == pytest.approx(2 * tp / (2 * tp + fp + fn))
  matthews = (tp * tn - fp * fn) / np.sqrt(float((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
  assert metrics.matthews(truth, predicted) == pytest.approx(matthews)
  # 0 where class 1 is never predicted.
  assert metrics.f1(truth, 0 * truth) == metrics.f1(0 * truth, 0 * truth) == 0


def test_macro_f1_is_the_mean_over_the_classes():
  rng = np.random.default_rng(0)
  truth = rng.integers(0, 5, 300)
  predicted = np.where(rng.random(300) < 0.6, truth, rng.integers(0, 5, 300))
  of_each = [metrics.f1(truth == n, predicted == n) for n in range(5)]
  assert metrics.macro_f1(truth, predicted) == pytest.approx(np.mean(of_each))
  expected = metrics.f1(truth == 0, truth >= 0) / 5
  assert metrics.macro_f1(truth, np.zeros(300, int)) == pytest.approx(expected)


def test_correlations_equal_their_definitions():
  rng = np.random.default_rng(0)
  truth = rng.permutation(100) / 20
  predicted = truth + rng.normal(size=100)
  assert metrics.pearson(truth, predicted) == pytest.approx(np.corrcoef(truth, predicted)[0, 1])
  ranks = [np.argsort(np.argsort(values)) for values in (truth, predicted)]
  assert metrics.spearman(truth, predicted) == pytest.approx(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("metric", [metrics.matthews, metrics.pearson, metrics.spearman])
def test_the_correlation_with_a_constant_is_zero(metric):
  constant, varied = np.ones(4), np.array([0.0, 1, 1, 0])
  with warnings.catch_warnings(action="error"):
    assert metric(varied, constant) == metric(constant, varied) == metric(constant, constant) == 0


@pytest.mark.parametrize("metric, library", [("accuracy", "sklearn"), ("pearson", "scipy")])
def test_a_missing_library_is_reported_with_the_extra_to_install(
  monkeypatch, classes, metric, library
):
  for module in (library, f"{library}.metrics", f"{library}.stats"):
    monkeypatch.setitem(sys.modules, module, None)
  refused(r"gpt_jax\[metrics\]", getattr(metrics, metric), *classes)
