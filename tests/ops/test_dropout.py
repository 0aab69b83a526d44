"""The hash of dropout masks: rate, independence, the same mask however a batch is spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.ops import dropout as module
from gpt_jax.ops.dropout import dropout, dropout_rows, step_key

SHAPE = (64, 32, 32)


# One program for each shape and rate, whatever the key.
compiled_bits = jax.jit(module._bits, static_argnums=(0, 2))
compiled = jax.jit(dropout, static_argnums=1, static_argnames="sharded")


def bits(shape, key, sharded=True):
  return np.asarray(compiled_bits(shape, key, sharded))


def mask(rate, key, shape=SHAPE):
  return np.asarray(compiled(np.ones(shape, np.float32), rate, key)) == 0


def assert_independent(a, b, name):
  """Correlation of two arrays of bits, each uniform: 5 standard deviations of what chance gives."""
  a, b = (np.asarray(x, np.float64).ravel() / 2**32 for x in (a, b))
  assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size), name
  # A linear measure does not see everything: the joint distribution over 16 x 16 cells as well.
  assert_chi_square(np.histogram2d(a, b, bins=16, range=[[0, 1], [0, 1]])[0], name)


def assert_chi_square(counts, name=""):
  """Counts of equally likely cells: within 5 standard deviations of the statistic."""
  expected = counts.mean()
  statistic, freedom = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
  assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom), name


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("step", [0, 1, 1_000_000])
def test_rate(rate, step):
  share = mask(rate, step_key(0, step)).mean()
  assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / np.prod(SHAPE))


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_bits_are_uniform(seed):
  found = bits(SHAPE, step_key(seed, 0).fold(3))
  assert_chi_square(np.bincount((found >> 24).ravel(), minlength=256))
  assert_chi_square(np.bincount((found & 255).ravel(), minlength=256))
  ones = (found[..., None] >> np.arange(32, dtype=np.uint32) & 1).mean((0, 1, 2))
  assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(found.size)
  assert len(np.unique(found)) > 0.99 * found.size


def test_rows_are_uniform_each():
  """The same share in every row and every column: none is favoured."""
  dropped = mask(0.1, step_key(0, 7), (256, 4096))
  for axis in (0, 1):
    shares = dropped.mean(axis)
    assert np.abs(shares - 0.1).max() < 5.5 * np.sqrt(0.09 / dropped.shape[axis])
    np.testing.assert_allclose(shares.std(), np.sqrt(0.09 / dropped.shape[axis]), rtol=0.25)


def test_independence():
  key = step_key(0, 5)
  base = bits(SHAPE, key.fold(0))
  others = {
    "layer": bits(SHAPE, key.fold(1)),
    "place in a layer": bits(SHAPE, key.fold(0).fold(0)),
    "order of folding": bits(SHAPE, key.fold(1).fold(0)),
    "step": bits(SHAPE, step_key(0, 6).fold(0)),
    "seed": bits(SHAPE, step_key(1, 5).fold(0)),
    "seed and step exchanged": bits(SHAPE, step_key(5, 0).fold(0)),
    "shard": bits(SHAPE, step_key(0, 5, 1).fold(0)),
    "another row": np.roll(base, 1, 0),
    "a row that is 32 away": np.roll(base, 32, 0),
    "neighbour": np.roll(base, 1, 2),
    "neighbour on the middle axis": np.roll(base, 1, 1),
  }
  for name, other in others.items():
    assert_independent(base, other, name)
  assert (bits(SHAPE, key.fold(0).fold(1)) != others["order of folding"]).mean() > 0.99


def test_rows_do_not_share_masks():
  """No two rows of all layers and steps have (nearly) the same mask, nor its complement."""
  keys = [step_key(0, step).fold(layer) for step in range(4) for layer in range(4)]
  rows = np.concatenate([mask(0.5, key, (32, 512)) for key in keys]).astype(np.float32) * 2 - 1
  agreement = rows @ rows.T / 512
  np.fill_diagonal(agreement, 0)
  assert np.abs(agreement).max() < 6.5 / np.sqrt(512)


def test_rows_whose_words_are_close_do_not_share_masks():
  """Of many rows, some have first words that differ in the last bits only."""
  count, width = 2**17, 64
  key = step_key(0, 0)
  words = key.word + np.arange(count, dtype=np.uint32) * module._GOLDEN
  first = np.asarray(module._finalize(words))
  order = np.argsort(first)
  close = np.flatnonzero(np.diff(first[order] // width) == 0)
  assert len(close) > 50
  found = bits((count, width), key)
  for one, other in zip(found[order[close]], found[order[close + 1]], strict=True):
    assert len(np.intersect1d(one, other)) < 3


@pytest.mark.parametrize("parts", [2, 4])
def test_a_part_has_the_mask_of_its_rows(parts):
  x = np.random.default_rng(0).normal(size=(8, 6, 5)).astype(np.float32)
  whole = compiled(x, 0.3, step_key(0, 9).fold(2))
  rows = 8 // parts
  for part in range(parts):
    here = slice(part * rows, (part + 1) * rows)
    key = step_key(0, 9, part).fold(2)
    np.testing.assert_array_equal(compiled(x[here], 0.3, key), whole[here])


def test_a_parameter_has_the_same_mask_on_every_part():
  table = np.ones((16, 8), np.float32)
  first, second = (compiled(table, 0.3, step_key(0, 9, part), sharded=False) for part in (0, 3))
  np.testing.assert_array_equal(first, second)
  assert (first != compiled(table, 0.3, step_key(0, 9, 3))).any()


def test_rows_that_were_looked_up_have_the_mask_of_the_table():
  table, key = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32), step_key(0, 9, 3)
  rows = np.array([[3, 0, 3], [15, 7, 1]])
  expected = compiled(table, 0.3, key, sharded=False)[rows]
  got = jax.jit(dropout_rows, static_argnums=2)(table[rows], rows, 0.3, key)
  np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_scale_and_gradient(monkeypatch, on_gpu):
  monkeypatch.setattr(module, "on_gpu", lambda: on_gpu)
  x = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
  key = step_key(0, 1)

  @jax.jit
  def with_gradient(x):
    dropped, pull = jax.vjp(lambda x: dropout(x, 0.2, key), x)
    # A GPU draws the mask again: from the forward pass it has the key alone.
    assert any(array.shape == x.shape for array in jax.tree.leaves(pull)) != on_gpu
    return dropped, pull(jnp.ones_like(x))

  dropped, gradient = with_gradient(x)
  kept = np.asarray(dropped) != 0
  np.testing.assert_allclose(dropped, np.where(kept, x / 0.8, 0), rtol=1e-6)
  np.testing.assert_allclose(gradient[0], kept / 0.8, rtol=1e-6)


def test_evaluation_and_rate_0_change_nothing():
  x = jnp.ones((4, 4), jnp.bfloat16)
  assert dropout(x, 0.5, None) is x
  assert dropout(x, 0.0, step_key(0, 0)) is x
  assert jax.eval_shape(lambda x: dropout(x, 0.5, step_key(0, 0)), x).dtype == jnp.bfloat16


def test_step_may_be_traced():
  x = np.ones((4, 32), np.float32)
  traced = jax.jit(lambda step: dropout(x, 0.5, step_key(3, step)))(np.int32(8))
  np.testing.assert_array_equal(traced, compiled(x, 0.5, step_key(3, 8)))
