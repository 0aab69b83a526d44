"""ALiBi: slopes, and the bias in attention; test_every_trunk.py has the trunk."""

import jax
import numpy as np
import pytest

from gpt_jax.models.alibi import Alibi, slopes
from gpt_jax.ops.attention import AttentionMask
from gpt_jax.ops.attention_plain import attend_heads


def test_slopes_are_the_papers():
  np.testing.assert_allclose(slopes(8), [2.0**-i for i in range(1, 9)])
  np.testing.assert_allclose(slopes(12)[8:], [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])


@pytest.mark.parametrize("length", [9, 128])  # in one block of queries, and in four
def test_the_bias_is_added_to_the_scores(length):
  rng = np.random.default_rng(1)
  q, k, v = rng.normal(size=(3, 2, 2, length, 4)).astype(np.float32)
  positions = np.broadcast_to(np.arange(length), (2, length))
  bias = Alibi().build(2)

  @jax.jit
  def attend(q, k, v):
    return attend_heads(q, k, v, AttentionMask("causal"), bias.apply({}, positions, positions))

  output = attend(q, k, v)
  distance = np.arange(length)[:, None] - np.arange(length)[None]
  scores = np.einsum("bhtk,bhsk->bhts", q, k) / 2 - slopes(2)[:, None, None] * distance
  scores = np.where(distance >= 0, scores, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(output, np.einsum("bhts,bhsk->bhtk", weights, v), atol=1e-5)
