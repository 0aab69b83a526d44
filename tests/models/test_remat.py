"""Rematerialization: what is computed anew, and that nothing else changes."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import POLICIES
from gpt_jax.ops.dropout import step_key

CONFIG = TransformerConfig(vocab_size=60, context=16, layers=2, width=16, heads=2)
ROWS = Rows(
  np.arange(32, dtype=np.int32).reshape(2, 16),
  np.broadcast_to(np.arange(16, dtype=np.int32), (2, 16)),
  np.repeat([[0, 1]], 8, axis=1).repeat(2, axis=0).astype(np.int32),
)


def gradient(config, remat):
  """params -> value and gradient of a number made of all hidden states, with dropout."""
  trunk = config.build("causal", remat)

  def total(params):
    return (trunk.apply({"params": params}, ROWS, step_key(0, 0)).hidden ** 3).sum()

  return jax.value_and_grad(total)


@functools.cache
def params_of(config):
  return jax.jit(config.build().init)(jax.random.key(0), ROWS)["params"]


@functools.cache
def traced(norm, remat, dtype="float32"):
  """(the traced gradient, parameters): counting reads its operations, comparing compiles it."""
  config = dataclasses.replace(CONFIG, norm=norm, dtype=dtype)
  params = params_of(config)
  return jax.jit(gradient(config, remat)).trace(params), params


@functools.cache
def gradient_of(norm, remat):
  program, params = traced(norm, remat)
  return program.lower().compile()(params)


@pytest.mark.parametrize("remat", POLICIES[1:])
def test_values_and_gradients_stay_the_same(remat):
  expected, actual = (gradient_of("post", name) for name in ("none", remat))

  def check(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6 * np.abs(y).max())

  jax.tree.map(check, actual, expected)


@pytest.mark.parametrize(
  "norm, dtype", [("post", "float32"), ("pre", "float32"), ("pre", "bfloat16")]
)
def test_each_policy_computes_more_anew(norm, dtype):
  texts = {remat: str(traced(norm, remat, dtype)[0].jaxpr) for remat in POLICIES}

  def count(remat, operation):
    return len(re.findall(rf"= {operation}\b", texts[remat]))

  products = {remat: count(remat, "dot_general") for remat in POLICIES}
  # Of the six products of a block two are between activations; the last one's result is not needed.
  assert products["dots"] - products["none"] == 2 * CONFIG.layers
  assert products["full"] - products["none"] >= 5 * CONFIG.layers
  assert count("dots", "tanh") - count("none", "tanh") == CONFIG.layers


def test_an_lstm_has_none():
  with pytest.raises(InputError, match="train.remat=full: an LSTM has no blocks"):
    LSTMConfig(vocab_size=60).build("causal", "full")
