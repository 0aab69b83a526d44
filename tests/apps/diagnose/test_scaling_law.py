"""The scaling law: constants come back, also with an outlier, and a prediction is no fit."""

import itertools

import numpy as np
import pytest

from gpt_jax.apps.diagnose.scaling import Law, fit_law, prediction_range
from gpt_jax.errors import InputError

pytestmark = pytest.mark.app
LAW = Law(1.69, 406.4, 0.34, 410.7, 0.28)  # Hoffmann et al. 2022, eq. 10
SIZES, LENGTHS = [2e5 * 2**i for i in range(5)], [1e6, 4e6, 16e6]
N, D = map(np.array, zip(*itertools.product(SIZES, LENGTHS), strict=True))


def runs(losses):
  return list(zip(N, D, losses, strict=True))


def test_constants_of_losses_without_noise_come_back():
  fitted = fit_law(runs(LAW(N, D)))
  np.testing.assert_allclose(fitted, LAW, rtol=1e-4)
  assert sum(fitted.parts(1e7, 1e8)) == fitted(1e7, 1e8)
  assert fitted(1e7, 1e8) == pytest.approx(LAW(1e7, 1e8), rel=1e-6)


def test_an_outlier_moves_the_law_little():
  losses = LAW(N, D)
  losses[4] *= 1.3
  fitted = fit_law(runs(losses))
  assert fitted(3.2e6, 64e6) == pytest.approx(LAW(3.2e6, 64e6), rel=0.003)


def test_the_range_contains_predictions_that_lack_a_run():
  losses = LAW(N, D) * np.exp(0.01 * np.random.default_rng(0).normal(size=len(N)))
  law, at = fit_law(runs(losses)), (6.4e6, 64e6)
  low, high = prediction_range(law, runs(losses), at)
  without_first = fit_law(runs(losses)[1:], near=law)(*at)
  assert low <= without_first <= high and low < high < law(*at) * 1.05


def test_too_few_runs_are_refused():
  with pytest.raises(InputError, match="5 runs of 2 sizes and 3 numbers of tokens"):
    fit_law(runs(LAW(N, D))[:5])
