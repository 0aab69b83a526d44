"""The spread of a measure over seeds."""

import numpy as np
import pytest

from gpt_jax.inference.intervals import spread

pytestmark = pytest.mark.app


def test_numbers_of_a_sample():
  summary = spread([0.5, 0.7, 0.9])
  assert (summary.median, summary.values) == (0.7, (0.5, 0.7, 0.9))
  np.testing.assert_allclose([summary.mean, summary.deviation], [0.7, 0.2])
  assert 0.5 <= summary.low < 0.7 < summary.high <= 0.9
  assert spread([0.5, 0.7, 0.9]) == summary


def test_the_interval_is_that_of_the_mean():
  values = np.random.default_rng(1).normal(10, 2, size=400)
  summary = spread(values)
  half = 1.96 * values.std(ddof=1) / 20  # what the normal distribution says
  np.testing.assert_allclose(
    [summary.low, summary.high], [summary.mean - half, summary.mean + half], atol=0.03
  )


def test_a_single_value():
  summary = spread([0.25])
  assert summary.median == summary.mean == summary.low == summary.high == 0.25
  assert summary.deviation == 0
  assert str(summary) == "0.2500"
