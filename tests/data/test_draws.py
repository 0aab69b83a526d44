"""Noise that is a pure function of seed, step, name, global row and position."""

import numpy as np
import pytest

from gpt_jax.data.draws import Draw, permute

ROWS = np.arange(64)


def noise(seed=0, step=0, rows=ROWS, name="mask", shape=(50,)):
  return Draw(seed, step, rows)(name, shape)


def test_it_is_uniform_and_neighbors_are_independent():
  values = noise(shape=(200,))
  for a, b in ((values[:-1], values[1:]), (values[:, :-1], values[:, 1:])):
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)
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


def test_permute_is_a_permutation_and_looks_random():
  """Every element lands anywhere equally often over keys, and neighbours do not stay together."""
  for size in [*range(1, 70), 1000, 4096, 4097]:
    assert sorted(permute(np.arange(size), size, 3, 4)) == list(range(size))
  size, keys = 8, 1500
  landed = np.stack([permute(np.arange(size), size, 0, key) for key in range(keys)])
  counts = np.stack([np.bincount(column, minlength=size) for column in landed.T])
  chi_square = ((counts - keys / size) ** 2 / (keys / size)).sum()
  assert chi_square < 110  # 49 degrees of freedom: 1e-6
  order = permute(np.arange(100_000), 100_000, 5, 6)
  assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
  assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02
