"""The LSTM against a plain NumPy one: causality, state reset, reading on from a state."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.batch import Rows
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.ops.dropout import step_key

CONFIG = LSTMConfig(vocab_size=60, context=32, width=12, units=16)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def trunk():
  """(apply(inputs, positions, segments, key), params), every parameter perturbed."""
  module = CONFIG.build()
  text = np.zeros((1, 4), np.int32)
  params = jax.jit(module.init)(jax.random.key(0), Rows(text, text))["params"]
  rng = np.random.default_rng(1)
  params = jax.tree.map(lambda p: p + 0.4 * rng.standard_normal(p.shape, np.float32), params)
  return jax.jit(
    lambda inputs, positions, segments=None, key=None: module.apply(
      {"params": params}, Rows(inputs, positions, segments), key
    )
  ), params


def tokens(rows, length):
  inputs = RNG.integers(0, 63, (rows, length)).astype(np.int32)
  return inputs, np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)


def numpy_lstm(params, ids):
  """One sequence; gates input, forget, candidate, output; the forget gate's bias 1 higher."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  sigmoid = lambda x: 1 / (1 + np.exp(-x))
  h = c = np.zeros(CONFIG.units)
  outputs = []
  for i in ids:
    gates = np.einsum("d,dgu->gu", p["tokens"][i], p["read"]["kernel"]) + p["read"]["bias"]
    gates += np.einsum("u,ugv->gv", h, p["recur"]["kernel"])
    c = sigmoid(gates[1] + 1) * c + sigmoid(gates[0]) * np.tanh(gates[2])
    h = sigmoid(gates[3]) * np.tanh(c)
    outputs.append(h @ p["out"]["kernel"] + p["out"]["bias"])
  return np.array(outputs)


def test_equals_numpy(trunk):
  apply, params = trunk
  inputs, positions = tokens(2, 9)
  hidden, table, *_ = apply(inputs, positions)
  for found, ids in zip(hidden, inputs, strict=True):
    np.testing.assert_allclose(found, numpy_lstm(params, ids), atol=1e-5)
  np.testing.assert_array_equal(table, params["tokens"])


def test_parameter_count():
  config = LSTMConfig(vocab_size=40_478)
  text = jnp.zeros((1, 8), jnp.int32)
  params = jax.eval_shape(config.build().init, jax.random.key(0), Rows(text, text))["params"]
  unused = (40_576 - 40_478) * 768
  assert (
    sum(math.prod(p.shape) for p in jax.tree.leaves(params)) - unused == config.parameter_count()
  )


def test_causality(trunk):
  apply, _ = trunk
  inputs, positions = tokens(1, 9)
  other = inputs.copy()
  other[0, 4] = (other[0, 4] + 1) % 60
  before, after = apply(inputs, positions)[0], apply(other, positions)[0]
  np.testing.assert_array_equal(before[0, :4], after[0, :4])
  assert (np.abs(before - after)[0, 4:].max(-1) > 0).all()


def test_packed_rows_equal_rows_alone(trunk):
  apply, params = trunk
  inputs, _ = tokens(1, 9)
  positions = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 0]], np.int32)
  hidden, *_ = apply(inputs, positions, np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]], np.int32))
  for begin, end in ((0, 3), (3, 7)):
    np.testing.assert_allclose(
      hidden[0, begin:end], numpy_lstm(params, inputs[0, begin:end]), atol=1e-5
    )


def test_reading_on_equals_the_full_forward(trunk):
  """Prompts of three lengths in one pass, then token by token."""
  apply, params = trunk
  module = CONFIG.build()
  lengths, rows, total = np.array([1, 6, 5]), 3, 9
  inputs, positions = tokens(rows, total)
  full, *_ = apply(inputs, positions)

  @jax.jit
  def extend(inputs, positions, valid, state):
    return module.apply({"params": params}, inputs, positions, valid, state, method="extend")

  state = module.apply({"params": params}, rows, method="start")
  valid = positions[:, :6] < lengths[:, None]
  hidden, table, state = extend(np.where(valid, inputs[:, :6], 59), positions[:, :6], valid, state)
  np.testing.assert_array_equal(table, params["tokens"])
  for row, length in enumerate(lengths):
    np.testing.assert_allclose(hidden[row, :length], full[row, :length], atol=1e-5)
  for step in range(total - 6):
    at = (lengths + step)[:, None].astype(np.int32)
    hidden, _, state = extend(
      np.take_along_axis(inputs, at, 1), at, np.ones((rows, 1), bool), state
    )
    np.testing.assert_allclose(hidden[:, 0], full[np.arange(rows), at[:, 0]], atol=1e-5)


def test_dropout(trunk):
  """The table's mask is that of the tied output too; the output's is drawn for each place."""
  module = dataclasses.replace(CONFIG, embedding_dropout=0.25, residual_dropout=0.5).build()
  params = trunk[1]
  inputs, positions = tokens(8, 16)
  hidden, table, *_ = jax.jit(module.apply)(
    {"params": params}, Rows(inputs, positions), step_key(0, 0)
  )
  np.testing.assert_allclose((np.asarray(table) == 0).mean(), 0.25, atol=0.05)
  np.testing.assert_allclose((np.asarray(hidden) == 0).mean(), 0.5, atol=0.05)
  expected = np.stack([numpy_lstm({**params, "tokens": table}, ids) for ids in inputs])
  np.testing.assert_allclose(hidden, np.where(np.asarray(hidden) == 0, 0, 2 * expected), atol=1e-4)


def test_bfloat16_is_near_float32(trunk):
  inputs, positions = tokens(2, 9)
  exact, *_ = trunk[0](inputs, positions)
  module = dataclasses.replace(CONFIG, dtype="bfloat16").build()
  rough, table, *_ = jax.jit(module.apply)({"params": trunk[1]}, Rows(inputs, positions))
  assert rough.dtype == jnp.bfloat16 and table.dtype == jnp.float32
  assert 0 < np.abs(np.asarray(rough, np.float32) - exact).max() < 0.05 * np.abs(exact).max()
