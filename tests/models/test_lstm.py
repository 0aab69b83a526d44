"""The LSTM against a plain NumPy one, and its dropout; test_every_trunk.py has the rest."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy_lstm import numpy_lstm
from numpy_transformer import numpy_dense, random_params
from plain_rows import plain_rows

from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.ops.dropout import step_key

CONFIG = LSTMConfig(vocab_size=60, context=32, width=12, units=16)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def params():
  return random_params(ModelConfig(CONFIG, ()), 0.4)["trunk"]


def tokens(rows, length):
  return plain_rows(RNG.integers(0, 63, (rows, length)))


def expected(params, ids):
  """Of one sequence."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return numpy_dense(numpy_lstm(p, p["tokens"][ids])[0], p["out"])


def test_equals_numpy(params):
  rows = tokens(2, 9)
  hidden, table, *_ = jax.jit(CONFIG.build().apply)({"params": params}, rows)
  for found, ids in zip(hidden, rows.inputs, strict=True):
    np.testing.assert_allclose(found, expected(params, ids), atol=1e-5)
  np.testing.assert_array_equal(table, params["tokens"])


def test_dropout(params):
  """The table's mask is that of the tied output too; the output's is drawn for each place."""
  module = dataclasses.replace(CONFIG, embedding_dropout=0.25, residual_dropout=0.5).build()
  rows = tokens(8, 16)
  hidden, table, *_ = jax.jit(module.apply)({"params": params}, rows, step_key(0, 0))
  np.testing.assert_allclose((np.asarray(table) == 0).mean(), 0.25, atol=0.05)
  np.testing.assert_allclose((np.asarray(hidden) == 0).mean(), 0.5, atol=0.05)
  whole = np.stack([expected({**params, "tokens": table}, ids) for ids in rows.inputs])
  np.testing.assert_allclose(hidden, np.where(np.asarray(hidden) == 0, 0, 2 * whole), atol=1e-4)
