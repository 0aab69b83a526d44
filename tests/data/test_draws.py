"""Noise that is a pure function of seed, step, name, global row and position."""

import numpy as np
import pytest

from gpt_jax.data.draws import Draw

ROWS = np.arange(64)


def noise(seed=0, step=0, rows=ROWS, name="mask", shape=(50,)):
  return Draw(seed, step, rows)(name, shape)


def test_it_is_uniform():
  values = noise(shape=(40, 50))
  assert values.shape == (64, 40, 50) and values.min() >= 0 and values.max() < 1
  counts = np.histogram(values, bins=20, range=(0, 1))[0]
  assert np.abs(counts - values.size / 20).max() < 5 * np.sqrt(values.size / 20)


@pytest.mark.parametrize("hosts", [2, 4])
def test_rows_are_those_of_the_global_batch(hosts):
  parts = [noise(rows=rows) for rows in np.split(ROWS, hosts)]
  np.testing.assert_array_equal(np.concatenate(parts), noise())
  np.testing.assert_array_equal(noise(rows=ROWS[::-1]), noise()[::-1])


@pytest.mark.parametrize("change", [{"seed": 1}, {"step": 1}, {"name": "other"}])
def test_every_part_of_the_key_counts(change):
  a, b = noise().ravel(), noise(**change).ravel()
  assert (a != b).all()
  assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(a.size)


def test_neighbors_are_independent():
  values = noise(shape=(200,))
  for a, b in ((values[:-1], values[1:]), (values[:, :-1], values[:, 1:])):
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)
