"""The sampled softmax: its draws and its value in NumPy, and the full softmax as its limit."""

from functools import partial

import jax
import numpy as np
import pytest

from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.dropout import step_key
from gpt_jax.ops.sampled_softmax import sampled_cross_entropy

B, T, D, TOKENS, SAMPLES = 2, 3, 4, 20, 6


@pytest.fixture(scope="module")
def arrays():
  """hidden, a table with a bias and 5 rows that are no tokens, targets, weights."""
  rng = np.random.default_rng(0)
  hidden = rng.standard_normal((B, T, D), np.float32)
  table = rng.standard_normal((TOKENS + 5, D + 1), np.float32)
  targets = np.array([[3, 1, 3], [3, 0, 3]])
  return hidden, table, targets, np.array([[1, 0, 2], [1, 1, 1]], np.float32)


@pytest.fixture(scope="module")
def chances():
  """How often each id is in a sample, of 20,000 that NumPy draws one id after the other."""
  ids = np.arange(TOKENS)
  share = np.log((ids + 2) / (ids + 1)) / np.log(TOKENS + 1)
  rng = np.random.default_rng(0)
  found = [rng.choice(TOKENS, SAMPLES, replace=False, p=share) for _ in range(20_000)]
  return np.bincount(np.concatenate(found), minlength=TOKENS) / 20_000


def by_steps(arrays, samples, steps):
  """Losses and gradients of hidden and table, with the sample of each step."""
  hidden, table, *labels = arrays

  def loss(hidden, table, step):
    return sampled_cross_entropy(hidden, table, *labels, TOKENS, samples, step_key(0, step))

  of_step = partial(jax.value_and_grad(loss, (0, 1)), hidden, table)
  return jax.tree.map(np.asarray, jax.jit(jax.vmap(of_step))(np.arange(steps)))


def test_the_value_and_the_draws_are_those_of_numpy(arrays, chances):
  hidden, table, _, weights = arrays
  target = 3  # of all positions, so whether it is drawn changes nothing
  targets = np.full((B, T), target)
  losses, (_, d_table) = by_steps((hidden, table, targets, weights), SAMPLES, 2000)
  drawn = (d_table != 0).any(-1)
  assert not drawn[:, TOKENS:].any()
  drawn[:, target] = False
  expected = np.where(np.arange(TOKENS) == target, 0, chances)
  np.testing.assert_allclose(drawn[:, :TOKENS].mean(0), expected, atol=0.04)
  logs, wide = np.log(chances), np.append(hidden, np.ones((B, T, 1)), -1)
  for loss, counted in zip(losses[:20], drawn, strict=False):
    (ids,) = np.nonzero(counted)
    scores = wide @ table[ids].T - logs[ids]
    right = wide @ table[target] - logs[target]
    log_sum = np.log(np.exp(scores).sum(-1) + np.exp(right))
    assert loss == pytest.approx(((log_sum - right) * weights).sum(), rel=0.02)


def test_a_sample_of_nearly_all_has_the_gradient_of_all(arrays):
  hidden, table, *labels = arrays
  _, actual = by_steps(arrays, TOKENS - 1, 200)
  expected = jax.grad(partial(cross_entropy, num_tokens=TOKENS), (0, 1))(hidden, table, *labels)
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one.mean(0), other, atol=0.05 * np.abs(other).max())
