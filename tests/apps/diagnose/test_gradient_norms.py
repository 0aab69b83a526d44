"""Gradient norms at hidden states: against blocks applied one by one, and against finite
differences of a NumPy LSTM; how they decay.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused

from gpt_jax.apps.diagnose import gradients
from gpt_jax.apps.diagnose.gradients import decay_of, gradient_norms
from gpt_jax.batch import Batch, Rows
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.transformer import Block, TransformerConfig
from gpt_jax.ops.attention import AttentionMask

RNG = np.random.default_rng(0)
ROWS = RNG.integers(0, 30, (3, 7)).astype(np.int32)


def made(trunk):
  """A language model and its parameters, all of them perturbed."""
  model, rng = language_model(trunk), np.random.default_rng(1)
  batch = Batch(Rows(ROWS[:, :-1], ROWS[:, :-1]))
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  return model, jax.tree.map(
    lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), jnp.float32), shapes
  )


def losses(hidden, table):
  """[B, T] nats of the next tokens."""
  scores = jax.nn.log_softmax(hidden @ table[:30].T)
  return -jnp.take_along_axis(scores, ROWS[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.slow
def test_norms_equal_those_of_blocks_applied_one_by_one(norm, monkeypatch):
  config = TransformerConfig(30, context=8, layers=2, width=8, heads=2, norm=norm, special_tokens=0)
  model, params = made(config)
  trunk = params["trunk"]
  embedded = trunk["tokens"][ROWS[:, :-1]] + trunk["positions"][None, :6]

  def block(i, x):
    variables = {"params": trunk[f"block_{i}"]}
    return Block(config).apply(variables, x, AttentionMask("causal"), None)[0]

  def top(x):
    if norm == "pre":
      scale, bias = (trunk["last_norm"][name][None, None] for name in ("scale", "bias"))
      x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
      x = x * scale + bias
    return losses(x, trunk["tokens"])

  rest = (lambda x: top(block(1, block(0, x))), lambda x: top(block(1, x)), top)

  @jax.jit
  def expected_norms(embedded):
    """Of each state: [of_text, of_last]."""
    first = block(0, embedded)
    states = (embedded, first, block(1, first))
    read = (lambda each: each.mean(1).sum(), lambda each: each[:, -1].sum())
    return [
      [jnp.linalg.norm(jax.grad(lambda x, f=f, r=r: r(f(x)))(x), axis=-1).mean(0) for r in read]
      for f, x in zip(rest, states, strict=True)
    ]

  monkeypatch.setattr(gradients, "_ROWS", 2)  # three rows are two batches
  norms = gradient_norms(model, params, ROWS)
  assert norms.layers == ["embedding", "block 1", "block 2"]
  for i, expected in enumerate(expected_norms(embedded)):
    np.testing.assert_allclose(norms.of_text[i], expected[0], rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(norms.of_last[i], expected[1], rtol=2e-3, atol=1e-6)
  assert norms.of_last[2, :-1].max() == 0 < norms.of_last[2, -1]  # the head reads its own position


def numpy_loss(params, ids, targets, added, weights):
  """Of one row; `added` [2, T, U] to output and memory at each position."""
  sigmoid = lambda x: 1 / (1 + np.exp(-x))
  h = c = np.zeros(added.shape[-1])
  total = 0.0
  for t, token in enumerate(ids):
    gates = np.einsum("d,dgu->gu", params["tokens"][token], params["read"]["kernel"])
    gates += params["read"]["bias"] + np.einsum("u,ugv->gv", h, params["recur"]["kernel"])
    c = sigmoid(gates[1] + 1) * c + sigmoid(gates[0]) * np.tanh(gates[2]) + added[1, t]
    h = sigmoid(gates[3]) * np.tanh(c) + added[0, t]
    scores = params["tokens"][:30] @ (h @ params["out"]["kernel"] + params["out"]["bias"])
    total += weights[t] * (np.log(np.exp(scores).sum()) - scores[targets[t]])
  return total


def test_the_states_of_an_lstm_have_the_gradient_through_time():
  model, params = made(LSTMConfig(30, context=8, width=6, units=4, special_tokens=0))
  norms = gradient_norms(model, params, ROWS)
  assert norms.layers == ["embedding", "output", "memory"]
  trunk = jax.tree.map(lambda x: np.asarray(x, np.float64), params["trunk"])
  length = ROWS.shape[1] - 1
  for measured, weights in (
    (norms.of_text, np.full(length, 1 / length)),
    (norms.of_last, np.eye(length)[-1]),
  ):
    expected = np.zeros((2, length))
    for row in ROWS:
      gradient = np.zeros((2, length, 4))
      for place in np.ndindex(gradient.shape):
        step = np.zeros_like(gradient)
        step[place] = 1e-5
        values = [numpy_loss(trunk, row[:-1], row[1:], sign * step, weights) for sign in (1, -1)]
        gradient[place] = (values[0] - values[1]) / 2e-5
      expected += np.linalg.norm(gradient, axis=-1) / len(ROWS)
    np.testing.assert_allclose(measured[1:], expected, rtol=2e-3, atol=1e-6)


def test_a_trunk_that_does_not_name_its_states_is_refused():
  trunk = T5Config(30, context=8, layers=1, width=8, heads=2, head_width=4, units=8, decoder=False)
  model = ModelConfig(trunk, attention="bidirectional").build()
  batch = Batch(Rows(ROWS[:, :-1], ROWS[:, :-1]))
  params = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  refused("T5Config does not name its hidden states", gradient_norms, model, params, ROWS)


def test_a_decay_is_told_from_another():
  distances = np.arange(64)[::-1]
  exponential = decay_of(5 * np.exp(-distances / 10.0))
  assert exponential["half_distance"] == pytest.approx(10 * np.log(2))
  assert exponential["exponential_fit"] == pytest.approx(1) and exponential["power_fit"] < 0.9
  power = decay_of(np.maximum(distances, 1) ** -0.8)
  assert power["exponent"] == pytest.approx(0.8)
  assert power["power_fit"] > power["exponential_fit"]
  assert decay_of(np.eye(1, 64, 63)[0]) is None  # the last block: nothing but the last position
  assert decay_of(np.full(64, 2.0))["half_distance"] > 1e6
