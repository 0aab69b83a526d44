"""The states of every layer, on request: against those that flax captures, and what each sees; and
rematerialization: what is computed anew, and that nothing else changes.
"""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import numpy as np
import pytest
from numpy_transformer import random_params
from plain_rows import plain_rows

from gpt_jax.batch import Batch
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import POLICIES
from gpt_jax.ops.dropout import step_key

GPT = TransformerConfig(60, context=16, layers=2, width=16, heads=2)
T5 = T5Config(60, 16, layers=2, width=16, heads=2, head_width=8, units=32)
TRUNKS = {
  "post-norm": (GPT, "causal"),
  "pre-norm": (dataclasses.replace(GPT, norm="pre"), "causal"),
  "shared": (dataclasses.replace(GPT, shared_layers=True, layers=3), "causal"),
  "lstm": (LSTMConfig(60, 16, width=16, units=16), "causal"),
  "encoder": (dataclasses.replace(T5, decoder=False), "bidirectional"),
  "encoder-decoder": (T5, "causal"),
}
IDS = np.random.default_rng(0).integers(0, 60, (2, 9)).astype(np.int32)
TEXT = plain_rows(IDS)


def read(name, ids=IDS, **options):
  """What a trunk returns for ids, with parameters moved so that every one of them matters."""
  config, attention = TRUNKS[name]
  trunk, source = config.build(attention), {"source": TEXT} if config.reads_source else {}
  params = random_params(ModelConfig(config, (), attention))["trunk"]
  rows = plain_rows(ids)
  apply = jax.jit(functools.partial(trunk.apply, layers=True, **options))
  return apply({"params": params}, rows, **source), params


@pytest.mark.parametrize("name", TRUNKS)
def test_the_layers_are_those_that_flax_captures(name):
  (states, captured), params = read(name, capture_intermediates=True)
  config, _ = TRUNKS[name]
  modules = captured["intermediates"]
  stack = modules.get("decoder", modules.get("encoder", modules))
  if name == "lstm":
    outputs = list(modules["out"]["__call__"])
  else:
    blocks = sorted(part for part in stack if part.startswith("block_"))
    outputs = [output for block in blocks for output, _ in stack[block]["__call__"]]
  if "last_norm" in stack:
    outputs[-1] = stack["last_norm"]["__call__"][0]
  if config.reads_source:
    outputs[-1] = outputs[-1] * 16**-0.5  # as it meets the table, whose rows have a norm of 4
  embedded = np.asarray(params["tokens"])[IDS]
  if "positions" in params:
    embedded = embedded + np.asarray(params["positions"])[:9]
  assert len(states.layers) == config.layers + 1
  for layer, wanted in zip(states.layers, [embedded, *outputs], strict=True):
    np.testing.assert_allclose(layer, wanted, rtol=1e-6, atol=1e-6)
  np.testing.assert_array_equal(states.layers[-1], states.hidden)


@pytest.mark.parametrize("name", TRUNKS)
def test_a_layer_sees_what_its_attention_lets_it_see(name):
  changed = IDS.copy()
  changed[:, 4] = (changed[:, 4] + 1) % 60
  before, after = read(name)[0].layers, read(name, changed)[0].layers
  causal = TRUNKS[name][1] == "causal"
  for number, (a, b) in enumerate(zip(before, after, strict=True)):
    differs = np.abs(np.asarray(a - b)).max(axis=(0, 2)) > 1e-6
    sees = np.arange(9) == 4 if number == 0 else np.arange(9) >= (4 if causal else 0)
    np.testing.assert_array_equal(differs, sees, err_msg=f"layer {number}")


class Mix(LanguageHead):
  reads = frozenset({"layers"})
  scope = "mix"

  def build(self, trunk):
    class Sum(nn.Module):
      def __call__(self, states, batch, key=None):
        return sum(states.layers)

    return Sum()


@pytest.mark.parametrize("name", ["post-norm", "encoder-decoder"])
def test_a_head_that_reads_layers_gets_them_and_nobody_else(name):
  config, attention = TRUNKS[name]
  batch = Batch(TEXT, source=TEXT if config.reads_source else None)

  def outputs(*heads):
    model = ModelConfig(config, heads, attention).build()
    params = jax.jit(model.init)(jax.random.key(0), batch)
    return jax.jit(model.apply)(params, batch)

  asked = outputs(LanguageHead(), Mix())
  np.testing.assert_array_equal(asked.heads[1], sum(asked.states.layers))
  assert outputs(LanguageHead()).states.layers is None


ROWS = plain_rows(
  np.arange(32).reshape(2, 16), np.repeat([[0, 1]], 8, axis=1).repeat(2, axis=0).astype(np.int32)
)


def gradient(config, remat):
  """params -> value and gradient of a number made of all hidden states, with dropout."""
  trunk, source = config.build("causal", remat), ROWS if config.reads_source else None

  def total(params):
    return (trunk.apply({"params": params}, ROWS, step_key(0, 0), source).hidden ** 3).sum()

  return jax.value_and_grad(total)


@functools.cache
def traced(config, remat):
  """(the traced gradient, parameters): counting reads its operations, comparing compiles it."""
  params = random_params(ModelConfig(config, ()), 0.1)["trunk"]
  return jax.jit(gradient(config, remat)).trace(params), params


@functools.cache
def gradient_of(config, remat):
  program, params = traced(config, remat)
  return program.lower().compile()(params)


@pytest.mark.parametrize(
  "config", [GPT, pytest.param(T5, marks=pytest.mark.slow)], ids=["gpt", "t5"]
)
@pytest.mark.parametrize("remat", [pytest.param("dots", marks=pytest.mark.slow), "full"])
def test_values_and_gradients_stay_the_same(config, remat):
  expected, actual = (gradient_of(config, name) for name in ("none", remat))

  close = 1e-5 if config is GPT else 1e-4

  def check(x, y):
    np.testing.assert_allclose(x, y, rtol=close, atol=close / 10 * np.abs(y).max())

  jax.tree.map(check, actual, expected)


@pytest.mark.parametrize(
  "norm, dtype", [("post", "float32"), ("pre", "float32"), ("pre", "bfloat16")]
)
@pytest.mark.slow
def test_each_policy_computes_more_anew(norm, dtype):
  config = dataclasses.replace(GPT, norm=norm, dtype=dtype)
  texts = {remat: str(traced(config, remat)[0].jaxpr) for remat in POLICIES}

  def count(remat, operation):
    return len(re.findall(rf"= {operation}\b", texts[remat]))

  products = {remat: count(remat, "dot_general") for remat in POLICIES}
  # Of the six products of a block two are between activations; the last one's result is not needed.
  assert products["dots"] - products["none"] == 2 * GPT.layers
  assert products["full"] - products["none"] >= 5 * GPT.layers
  assert count("dots", "tanh") - count("none", "tanh") == GPT.layers


def test_an_lstm_has_none():
  with pytest.raises(InputError, match="train.remat=full: an LSTM has no blocks"):
    LSTMConfig(vocab_size=60).build("causal", "full")
