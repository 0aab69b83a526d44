"""The next token by its logits: greedy, or sampled from the likely ones. B rows, V vocabulary."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.dropout import random_bits, step_key


class Settings(NamedTuple):
  """How the next token of each row is chosen: arrays [B]."""

  temperature: Any  # float32; 0 takes the most likely token
  top_k: Any  # int32; tokens to choose among, 0: all
  top_p: Any  # float32; probability of the tokens to choose among
  seed: Any  # uint32


def choose(scores: jax.Array, settings: Settings, numbers: jax.Array) -> jax.Array:
  """The next token of each row, int32 [B], from logits float32 [B, V].

  Sampling adds temperature x Gumbel noise to the logits and takes the largest. Noise and thresholds
  are computed only if a row needs them.

  numbers: int32 [B], how many tokens were added to each text; the noise depends on the seed and on
  this only, so texts do not depend on each other.
  """

  def sampled(scores):
    some = ((settings.top_k > 0) | (settings.top_p < 1)) & (settings.temperature > 0)
    kept = jax.lax.cond(some.any(), keep_likely, lambda scores, _: scores, scores, settings)
    noise = gumbel(settings.seed, numbers, scores.shape[1])
    # argmax(s / T + g) = argmax(s + T g), which also holds the greedy rows, T = 0.
    return kept + settings.temperature[:, None] * noise

  # The branch ends before the search: noise computed in a reduction would not be vectorized.
  noisy = (settings.temperature > 0).any()
  scores = jax.lax.cond(noisy, sampled, lambda scores: scores, scores)
  # The first of the largest; on a CPU three times as fast as jnp.argmax.
  columns = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
  return jnp.where(scores == scores.max(-1, keepdims=True), columns, scores.shape[1] - 1).min(-1)


def gumbel(seeds: jax.Array, numbers: jax.Array, size: int) -> jax.Array:
  """Gumbel noise, float32 [B, size], a function of a row's seed and number and of the column."""
  # A counter hash, as for dropout: threefry takes longer than the rest of a token of a small model.
  words = step_key(seeds, numbers).word
  bits = random_bits(jax.lax.broadcasted_iota(jnp.uint32, (len(words), size), 1), words[:, None])
  uniform = ((bits >> 8).astype(jnp.int32).astype(jnp.float32) + 0.5) * np.float32(2**-24)
  # All 24 bits set round to 1, whose noise is infinite: that column would win, however unlikely.
  uniform = jnp.minimum(uniform, np.float32(1 - 2**-24))
  return -jnp.log(-jnp.log(uniform))


def keep_likely(scores: jax.Array, settings: Settings) -> jax.Array:
  """Scores [B, V] with -inf for all but the k most likely tokens and the nucleus of share p.

  The nucleus is the fewest of the k tokens whose probabilities add up to p. Thresholds are found
  bit by bit, which is faster than sorting the vocabulary.
  """
  temperature, top_k, top_p, _ = settings
  # uint32 in the order of the floats: of negative ones all bits but the sign are flipped, since a
  # larger magnitude is a smaller number.
  bits = jax.lax.bitcast_convert_type(scores.astype(jnp.float32), jnp.int32)
  bits = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
  ordered = jax.lax.bitcast_convert_type(bits, jnp.uint32) ^ np.uint32(1 << 31)
  none = jnp.zeros(len(scores), jnp.uint32)  # threshold of a row that keeps all

  def at_least(threshold):
    return ordered >= threshold[:, None]

  def by_count():
    return _highest(lambda t: at_least(t).sum(-1, dtype=jnp.int32), top_k)

  threshold = jax.lax.cond((top_k > 0).any(), by_count, lambda: none)
  threshold = jnp.where(top_k > 0, threshold, 0)

  def by_mass():
    scaled = scores / jnp.maximum(temperature, 1e-6)[:, None]
    # The nucleus is of the distribution after temperature and top_k.
    weights = jnp.exp(scaled - scaled.max(-1, keepdims=True))
    weights = jnp.where(at_least(threshold), weights, 0)
    # The likeliest token, whose weight is 1, is kept however small top_p is.
    wanted = jnp.maximum(top_p * weights.sum(-1), 1)
    return _highest(lambda t: jnp.where(at_least(t), weights, 0).sum(-1), wanted)

  # Rounding must not cut a row that asks for all.
  nucleus = jax.lax.cond((top_p < 1).any(), by_mass, lambda: none)
  threshold = jnp.maximum(threshold, jnp.where(top_p < 1, nucleus, 0))
  return jnp.where(at_least(threshold), scores, -jnp.inf)


def _highest(amount: Callable[[jax.Array], jax.Array], wanted: jax.Array) -> jax.Array:
  """The highest threshold uint32 [B] whose amount, which falls with it, is at least `wanted`."""

  def try_bit(number, threshold):
    # From the highest bit down, each is kept if enough still lies above.
    higher = threshold | (jnp.uint32(1 << 31) >> number.astype(jnp.uint32))
    return jnp.where(amount(higher) >= wanted, higher, threshold)

  return jax.lax.fori_loop(0, 32, try_bit, jnp.zeros(wanted.shape, jnp.uint32))
