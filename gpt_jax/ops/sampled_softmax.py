"""Cross-entropy of a softmax over the target and a sample of the vocabulary, for training.

Jean et al. 2015, section 3.2, as tf.nn.sampled_softmax_loss, by which allenai/bilm-tf trains ELMo:
N predictions need the scores of S tokens in place of all. The S are different tokens, drawn one by
one with P(k) = log((k + 2) / (k + 1)) / log(V + 1) for id k of V: Zipf's law, where a vocabulary is
sorted by frequency.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.cross_entropy import as_wide
from gpt_jax.ops.dropout import Key, random_bits
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import product


def sampled_cross_entropy(
  hidden: jax.Array,
  table: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  num_tokens: int,
  samples: int,
  key: Key,
) -> jax.Array:
  """Weighted sum of -log softmax(scores)[target] over the target and the drawn tokens, in nats.

  From each score the log of its token's chance to be drawn is subtracted, by which the gradient
  tends to the full softmax's as the sample grows. A drawn token that is the target does not count.
  All scores [B, T, S] are in memory at once, not in chunks as those of cross_entropy.

  Args:
    hidden, table, targets, weights: see cross_entropy.
    num_tokens: tokens, of which the sample is drawn: V.
    samples: S, less than V.
    key: of the step; all parts of a batch have the same sample.
  """
  hidden = as_wide(hidden, table)
  log_chances = jnp.asarray(_log_chances(num_tokens, samples))
  drawn = _draw(num_tokens, samples, key)
  rows = lookup(table, drawn, hidden.dtype.name)  # [S, D]
  scores = product("btd,sd->bts", hidden, rows, jnp.float32) - log_chances[drawn][None, None]
  scores = jnp.where(drawn[None, None] == targets[..., None], -1e9, scores)
  of_targets = lookup(table, targets, hidden.dtype.name)  # [B, T, D]
  right = product("btd,btd->bt", hidden, of_targets, jnp.float32) - log_chances[targets]
  log_sum = jnp.logaddexp(jax.nn.logsumexp(scores, axis=-1), right)
  return ((log_sum - right) * weights).sum()


def _log_uniform(num_tokens: int) -> np.ndarray:
  return np.log1p(1 / np.arange(1, num_tokens + 1)) / np.log(num_tokens + 1)


def _draw(num_tokens: int, samples: int, key: Key) -> jax.Array:
  """Different ids, int32 [S]: the largest of log P(k) + Gumbel noise are draws one by one."""
  bits = random_bits(jax.lax.iota(jnp.uint32, num_tokens), key.word)
  uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * np.float32(2**-24)  # in (0, 1)
  noisy = jnp.log(_log_uniform(num_tokens).astype(np.float32)) - jnp.log(-jnp.log(uniform))
  return jax.lax.top_k(noisy, samples)[1]


@functools.cache
def _log_chances(num_tokens: int, samples: int) -> np.ndarray:
  """log of each id's chance to be among S different ones, float32 [V].

  1 - (1 - P(k))^n, with the number of draws n after which S different ids are expected.
  """
  log_missed = np.log1p(-_log_uniform(num_tokens))

  def chances(log_draws):
    return -np.expm1(np.exp(log_draws) * log_missed)

  low, high = 0.0, np.log(100 / -log_missed[-1])  # by then every id is drawn
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (low, middle) if chances(middle).sum() > samples else (middle, high)
  return np.log(chances(low)).astype(np.float32)
