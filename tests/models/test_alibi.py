"""ALiBi: slopes, the bias in attention, packed rows, and generation with a cache."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gpt_jax.batch import Rows
from gpt_jax.models.alibi import Alibi, slopes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.attention import AttentionMask, attention

CONFIG = TransformerConfig(
  60, context=128, layers=2, width=16, heads=2, attention_bias=Alibi(), learned_positions=False
)


def rows_of(length, batch=2):
  ids = np.random.default_rng(0).integers(60, size=(batch, length)).astype(np.int32)
  positions = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
  return Rows(ids, positions)


@pytest.fixture(scope="module")
def model():
  module = CONFIG.build()
  params = jax.jit(module.init)(jax.random.key(0), rows_of(8))["params"]
  return jax.jit(lambda rows: module.apply({"params": params}, rows).hidden), module, params


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
    return attention(q, k, v, AttentionMask("causal"), bias.apply({}, positions, positions))

  output = attend(q, k, v)
  distance = np.arange(length)[:, None] - np.arange(length)[None]
  scores = np.einsum("bhtk,bhsk->bhts", q, k) / 2 - slopes(2)[:, None, None] * distance
  scores = np.where(distance >= 0, scores, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(output, np.einsum("bhts,bhsk->bhtk", weights, v), atol=1e-5)


def test_there_are_no_position_embeddings(model):
  _, _, params = model
  assert "positions" not in params
  learned = dataclasses.replace(CONFIG, attention_bias=None, learned_positions=True)
  assert learned.parameter_count() - CONFIG.parameter_count() == 128 * 16


def test_packed_rows_equal_single_texts(model):
  apply, _, _ = model
  rows = rows_of(12, batch=1)
  packed = rows._replace(
    positions=np.array([[0, 1, 2, 3, 4, *range(7)]], np.int32),
    segments=np.array([[1] * 5 + [2] * 7], np.int32),
  )
  alone = Rows(rows.inputs[:, 5:], np.arange(7, dtype=np.int32)[None])
  np.testing.assert_allclose(apply(packed)[:, 5:], apply(alone), atol=1e-5)


def test_a_cache_changes_nothing(model):
  apply, module, params = model
  rows = rows_of(10)
  cache = module.apply({"params": params}, 2, method="start")
  extend = jax.jit(functools.partial(module.apply, method="extend"))
  hidden = []
  for part in (slice(0, 5), slice(5, 10)):
    inputs, positions = rows.inputs[:, part], rows.positions[:, part]
    valid = np.ones(inputs.shape, bool)
    states, _, cache = extend({"params": params}, inputs, positions, valid, cache)
    hidden.append(states)
  np.testing.assert_allclose(np.concatenate(hidden, axis=1), apply(rows), atol=1e-5)
