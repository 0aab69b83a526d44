"""The LSTM encoder-decoder: against a NumPy transcription, its counts, and reading on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from numpy_lstm import numpy_lstm, numpy_step
from numpy_transformer import random_params

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.errors import InputError
from gpt_jax.models import lstm, lstm_encoder_decoder
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.views import TranslationViews
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.ops.dropout import dropout, step_key

# All sizes differ, but D = 2 U.
CONFIG = LSTMEncoderDecoderConfig(60, 32, embedding_width=5, layers=2, units=4)
RNG = np.random.default_rng(0)
B, T, S = 3, 6, 9
TARGET, SOURCE = (RNG.integers(60, size=(B, n)).astype(np.int32) for n in (T, S))
LENGTHS = np.array([9, 4, 6])
KEY = step_key(0, 0)


def rows(ids, lengths=None):
  positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  inside = None if lengths is None else (positions < lengths[:, None]).astype(np.int32)
  return Rows(ids, positions, inside)


@pytest.fixture(scope="module")
def params():
  return random_params(ModelConfig(CONFIG, ()), 0.5)["trunk"]


@jax.jit
def read(params, key=None):
  trunk = CONFIG.build()
  return trunk.apply({"params": params}, rows(TARGET), key, rows(SOURCE, LENGTHS), layers=True)


def transcribed(params, source, target, masks):
  """salesforce/cove, OpenNMT-py/onmt/Models.py and modules/GlobalAttention.py, "general".

  Args:
    source, target: ids [s] and [t].
    masks: of one row, see masks_of.
  """
  tokens, targets, encoder, decoder = (
    params[name] for name in ("tokens", "targets", "encoder", "decoder")
  )
  x, states = tokens[source], []
  for number in range(2):
    block, ways = encoder[f"block_{number}"], masks[f"encoder_{number}"]
    forward, last = numpy_lstm(block["forward"], x * ways[: len(x), 0])
    backward, first = numpy_lstm(block["backward"], (x * ways[: len(x), 1])[::-1])
    x = np.concatenate([forward, backward[::-1]], -1)
    states.append([np.concatenate(pair) for pair in zip(last, first, strict=True)])
  memory, fed, hidden, tops = x, np.zeros(8), [], []
  for t, token in enumerate(target):
    at = targets[token] * masks["target"][t]
    for number in range(2):
      block, (h, c) = decoder[f"block_{number}"], states[number]
      if not number:
        gates = np.einsum("i,igu->gu", at, block["read"]["kernel"]) + block["read"]["bias"]
        gates += np.einsum("i,igu->gu", fed, block["feed"]["kernel"])
      else:
        gates = np.einsum("i,igu->gu", at, block["read"]["kernel"]) + block["bias"]
      h, c = states[number] = numpy_step(
        gates + np.einsum("p,pgu->gu", h, block["recur"]["kernel"]), c
      )
      at = h * masks["between"][t] if not number else h
    weights = np.exp(memory @ (decoder["attention"]["key"]["kernel"] @ at))
    context = weights / weights.sum() @ memory
    fed = np.tanh(np.concatenate([context, at]) @ decoder["attention"]["mix"]["kernel"])
    fed = fed * masks["output"][t]
    hidden.append(fed)
    tops.append(at)
  return np.array(hidden), np.array(tops), memory


def masks_of(key):
  """Dropout on what each direction reads [B, S, 2, I], the target, between layers, the output."""
  encoder, decoder = (key and key.fold(i) for i in range(2))

  def of_ways(number, width):
    ways = [encoder and encoder.fold(number).fold(way).fold(0) for way in range(2)]
    return jnp.stack([dropout(jnp.ones((B, S, width)), 0.2, way) for way in ways], 2)

  between, output, target = (
    dropout(jnp.ones((B, T, width)), 0.2, decoder and decoder.fold(i))
    for i, width in enumerate((8, 8, 5))
  )
  masks = {"encoder_0": of_ways(0, 5), "encoder_1": of_ways(1, 8)}
  return masks | {"target": target, "between": between, "output": output}


@pytest.mark.parametrize("key", [None, KEY], ids=["evaluated", "with dropout"])
def test_against_numpy(params, key):
  found = read(params, key)
  tree = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  dropped = jax.jit(masks_of)(key)
  for row, length in enumerate(LENGTHS):
    masks = {name: np.asarray(mask)[row] for name, mask in dropped.items()}
    hidden, top, memory = transcribed(tree, SOURCE[row, :length], TARGET[row], masks)
    np.testing.assert_allclose(found.hidden[row], hidden, atol=2e-5)
    np.testing.assert_allclose(found.attended[0][row], top, atol=2e-5)
    np.testing.assert_allclose(found.attended[1].values[row, :length], memory, atol=2e-5)
  np.testing.assert_array_equal(found.layers[-1], found.hidden)
  assert [layer.shape[-1] for layer in found.layers] == [5, 8, 8]


def test_the_gradient_is_that_of_the_loop(params, monkeypatch):
  """Of each parameter, beside JAX's own differentiation."""

  def gradient(params):
    return jax.jit(jax.grad(lambda p: (read.__wrapped__(p, KEY).hidden ** 3).sum()))(params)

  found = gradient(params)
  monkeypatch.setattr(
    lstm_encoder_decoder, "scan", lambda step, *args: lstm._loop(step, False, *args)[0]
  )
  wanted = gradient(params)

  def close(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max())

  jax.tree.map(close, found, wanted)


VIEWS = TranslationViews()
WEIGHTS = (np.arange(T) < np.array([[6], [3], [5]])).astype(np.float32)
WRITTEN = RNG.integers(60, size=(B, T)).astype(np.int32)
PAIRS = Batch(rows(TARGET), rows(SOURCE, LENGTHS), Predictions(WRITTEN, WEIGHTS))


@pytest.mark.parametrize("key", [None, KEY], ids=["evaluated", "with dropout"])
def test_views_of_a_translation_against_numpy(params, key):
  """The summed cross-entropy of both; the future one predicts the token after the next one."""
  states, module = read(params), VIEWS.build(CONFIG)
  fresh = jax.jit(module.init)(jax.random.key(1), states, PAIRS)["params"]
  tree = jax.tree.map(lambda p: np.asarray(p) + 0.5 * RNG.normal(size=p.shape).astype("f"), fresh)

  @jax.jit
  def loss(tree, key):
    outputs = module.apply({"params": tree}, states, PAIRS, key)
    masks = dropout(jnp.ones((B, T, S)), 0.5, key and key.fold(2))
    return VIEWS.loss(outputs, states, PAIRS, 60), masks

  found, masks = loss(tree, key)
  exact = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  quiet = {name: np.ones_like(mask) for name, mask in jax.jit(masks_of)(None).items()}
  expected = 0.0
  for row, length in enumerate(LENGTHS):
    ones = {name: mask[row] for name, mask in quiet.items()}
    _, top, memory = transcribed(exact, SOURCE[row, :length], TARGET[row], ones)
    for view, ahead in (("dropped", 0), ("future", 1)):
      scores = np.exp(top @ (memory @ tree[view]["key"]["kernel"]).T)
      shares = scores / scores.sum(-1, keepdims=True)
      if view == "dropped":
        shares = shares * np.asarray(masks)[row, :, :length]
      mixed = np.concatenate([shares @ memory, top], -1) @ tree[view]["mix"]["kernel"]
      table = tree[view]["output"][:60]
      logits = np.tanh(mixed) @ table[:, :-1].T + table[:, -1]
      entropies = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
      for t in range(T - ahead):
        expected += WEIGHTS[row, t + ahead] * entropies[t, WRITTEN[row, t + ahead]]
  assert found.total == pytest.approx(expected, rel=1e-5)
  assert found.weight == WEIGHTS.sum()


@pytest.mark.slow
def test_views_teach_the_lstms_and_not_the_softmax_that_translates():
  model = ModelConfig(CONFIG, (VIEWS,)).build()
  params = jax.jit(model.init)(jax.random.key(0), PAIRS)["params"]
  loss = model_loss(model)
  gradient = jax.jit(jax.grad(lambda params: loss(params, PAIRS, KEY)[0]))(params)
  moved = {"/".join(name): bool(np.any(x)) for name, x in flatten_dict(gradient).items()}
  assert [name for name, moves in moved.items() if not moves] == ["trunk/output"]
  with pytest.raises(InputError, match="translation_views: reads attended, and the trunk t5 gives"):
    ModelConfig(T5Config(60, 32, 1, 8, 2, 4, 8), (VIEWS,))


def test_the_papers_counts():
  """torch has two biases in each LSTM, ours one."""
  trunk = LSTMEncoderDecoderConfig()
  assert trunk.encoder.parameter_count() == 3_609_600 - 4 * 4 * 300
  assert trunk.decoder_parameters() == 6_489_600 - 2 * 4 * 600 + 3 * 600**2
  assert 3 * trunk.width**2 == 1_080_000  # of the attention


def test_depth_follows_the_two_stacks():
  shapes = parameter_shapes(ModelConfig(CONFIG, ()))
  depths = {name.split("/block")[0]: CONFIG.depth(name.removeprefix("trunk/")) for name in shapes}
  last = {"trunk/output": 4, "trunk/decoder/attention/mix/kernel": 4}
  assert {"trunk/tokens": 0, "trunk/encoder": 2, **last}.items() <= depths.items()


def test_the_encoder_alone(params):
  """The states that the decoder attends to, as those of a bidirectional trunk."""
  encoder = dataclasses.replace(CONFIG, decoder=False).build("bidirectional")
  alone = {name: params[name] for name in ("tokens", "encoder")}
  found = jax.jit(encoder.apply)({"params": alone}, rows(SOURCE, LENGTHS))
  assert found.hidden.shape == (B, S, 8) and found.table.shape[1] == 5

  @jax.jit
  def memory(params):
    cache = CONFIG.build().apply(
      {"params": params}, TARGET, TARGET >= 0, rows(SOURCE, LENGTHS), method="read_prompt"
    )[2]
    return cache.memory

  np.testing.assert_array_equal(found.hidden, memory(params).values)
