"""The spread of a measure over seeds."""

import numpy as np

from gpt_jax.paper.seeds import spread


def test_numbers_of_a_sample():
  found = spread([0.5, 0.7, 0.9])
  assert (found.median, found.values) == (0.7, (0.5, 0.7, 0.9))
  np.testing.assert_allclose([found.mean, found.deviation], [0.7, 0.2])
  assert 0.5 <= found.low < 0.7 < found.high <= 0.9
  assert spread([0.5, 0.7, 0.9]) == found


def test_the_interval_is_that_of_the_mean():
  values = np.random.default_rng(1).normal(10, 2, size=400)
  found = spread(values)
  half = 1.96 * values.std(ddof=1) / 20  # what the normal distribution says
  np.testing.assert_allclose(
    [found.low, found.high], [found.mean - half, found.mean + half], atol=0.03
  )


def test_a_single_value():
  found = spread([0.25])
  assert (found.median, found.mean, found.deviation, found.low, found.high) == (
    0.25,
    0.25,
    0,
    0.25,
    0.25,
  )
  assert str(found) == "0.2500"
