"""The choice of a token: the distribution of samples, the noise, and the likely tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from gpt_jax.inference import sampling
from gpt_jax.inference.sampling import Settings, choose, gumbel, keep_likely


def settings(count, temperature=1.0, top_k=0, top_p=1.0, seed=0):
  return Settings(
    jnp.full(count, temperature, jnp.float32),
    jnp.full(count, top_k, jnp.int32),
    jnp.full(count, top_p, jnp.float32),
    jnp.full(count, seed, jnp.uint32) if np.ndim(seed) == 0 else jnp.asarray(seed, jnp.uint32),
  )


def shares(scores, temperature, kept):
  weights = np.where(kept, np.exp(np.asarray(scores, np.float64) / temperature), 0)
  return weights / weights.sum()


@pytest.mark.parametrize(
  "temperature, top_k, top_p", [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.5, 7, 1.0), (0.9, 0, 0.7)]
)
@pytest.mark.parametrize("varied", ["seeds", "numbers"])
def test_samples_have_the_distribution_of_the_model(varied, temperature, top_k, top_p):
  count, scores = 20_000, np.random.default_rng(1).normal(size=12).astype(np.float32)
  counter, zeros = np.arange(count), np.zeros(count, np.int32)
  seeds, numbers = (counter, zeros) if varied == "seeds" else (zeros, counter)
  rows = jnp.broadcast_to(jnp.asarray(scores)[None], (count, 12))
  chosen = jax.jit(choose)(rows, settings(count, temperature, top_k, top_p, seeds), numbers)
  kept = np.isfinite(keep_likely(rows[:1], settings(1, temperature, top_k, top_p)))[0]
  expected = count * shares(scores, temperature, kept)
  counts = np.bincount(chosen, minlength=12)
  assert not counts[~kept].any()
  assert stats.chisquare(counts[kept], expected[kept]).pvalue > 1e-3


@pytest.mark.parametrize("bits", [0, 2**32 - 1])
def test_the_noise_is_finite(monkeypatch, bits):
  drawn = jnp.full((1, 3), bits, jnp.uint32)
  monkeypatch.setattr(sampling, "random_bits", lambda *_: drawn)
  assert np.isfinite(gumbel(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), 3)).all()


def test_the_noise_is_gumbel_and_independent():
  numbers = jnp.arange(50)
  noise = np.asarray(gumbel(jnp.zeros(50, jnp.int32), numbers, 4000))
  assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-3
  others = np.asarray(gumbel(jnp.ones(50, jnp.int32), numbers, 4000))
  neighbors = {
    "next token": (noise[1:], noise[:-1]),
    "next column": (noise[:, 1:], noise[:, :-1]),
    "next seed": (noise, others),
  }
  for name, (first, second) in neighbors.items():
    correlation = stats.pearsonr(first.ravel(), second.ravel())
    assert correlation.pvalue > 1e-3, name


def test_noise_depends_on_seed_number_and_column_alone():
  alone = gumbel(jnp.array([7]), jnp.array([3]), 20)[0]
  among = gumbel(jnp.array([1, 7]), jnp.array([0, 3]), 50)[1, :20]
  np.testing.assert_array_equal(alone, among)


def test_greedy_rows_take_the_first_of_the_most_likely():
  scores = jnp.array([[1.0, 3.0, 3.0], [-1e9, -2.0, -1.0], [0.0, 0.0, 0.0]])
  assert choose(scores, settings(3, temperature=0.0), jnp.zeros(3, jnp.int32)).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
  "temperature, top_k, top_p",
  [(1.0, 5, 1.0), (0.7, 0, 0.6), (1.3, 8, 0.5), (1.0, 99, 0.9), (1.0, 0, 1.0), (2.0, 1, 0.1)],
)
def test_keep_likely(temperature, top_k, top_p):
  """Beside a row with other settings."""
  scores = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32) * 2
  s = settings(6, temperature, top_k, top_p)
  s = Settings(s.temperature, s.top_k.at[5].set(3), s.top_p.at[5].set(1.0), s.seed)
  kept = np.isfinite(jax.jit(keep_likely)(jnp.asarray(scores), s))
  assert kept[5].sum() == 3
  for row, found in zip(scores[:5], kept[:5], strict=True):
    order = np.argsort(-row)[: top_k or None]
    cumulative = np.cumsum(shares(row[order], temperature, True))
    count = int(np.searchsorted(cumulative, top_p)) + 1 if top_p < 1 else len(order)
    assert set(np.flatnonzero(found)) == set(order[:count])


def test_equal_scores_are_kept_together():
  scores = jnp.array([[2.0, 1.0, 1.0, 0.0], [-0.0, 0.0, -1.0, -2.0]])
  kept = np.isfinite(keep_likely(scores, settings(2, top_k=2)))
  assert kept.tolist() == [[True, True, True, False], [True, True, False, False]]
