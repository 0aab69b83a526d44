"""T5's trunk: sizes, what attends to what, dropout, the cache, and training on any mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_transformer import random_params
from plain_rows import plain_rows

from gpt_jax.batch import Batch, Rows
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import Attention, RelativeBias, T5Config, bucket, row_dropout
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.attention import AttentionMask
from gpt_jax.ops.dropout import step_key

CONFIG = T5Config(60, context=32, layers=2, width=16, heads=4, head_width=6, units=24)
VERSIONS = ("1.0", "1.1")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", params=VERSIONS)
def model(request):
  """(config, parameters), every parameter perturbed."""
  config = dataclasses.replace(CONFIG, version=request.param)
  return config, perturbed(config)


def perturbed(config):
  """Random parameters, norms among them."""
  return random_params(ModelConfig(config, ()), config.width**-0.5)["trunk"]


@functools.cache
def compiled(config):
  return jax.jit(config.build().apply)


def states(model, rows, source, **fields):
  config, params = model
  apply = compiled(dataclasses.replace(config, **fields))
  return apply({"params": params}, rows, None, source)


@pytest.mark.parametrize(
  "version, layers, width, heads, units, count",
  [
    ("1.0", 6, 512, 8, 2048, 60_506_624),
    ("1.0", 12, 768, 12, 3072, 222_903_552),
    ("1.0", 24, 1024, 16, 4096, 737_668_096),
    ("1.1", 8, 512, 6, 1024, 76_961_152),
    ("1.1", 12, 768, 12, 2048, 247_577_856),
    ("1.1", 24, 1024, 16, 2816, 783_150_080),
  ],
)
def test_parameters_of_the_released_sizes(version, layers, width, heads, units, count):
  sizes = {"layers": layers, "width": width, "heads": heads, "units": units}
  trunk = T5Config(32_128, version=version, special_tokens=0, **sizes)
  assert trunk.rows == 32_128
  assert trunk.parameter_count() == count


def test_buckets_of_both_directions():
  """The first distance of each bucket, SYSTEMS.md section 4."""
  back, ahead = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91], [1, 2, 3, 4, 5, 6, 7, 8]
  distances = np.arange(400)
  found = np.asarray(bucket(-jnp.asarray(distances), bidirectional=True))
  assert [int(np.flatnonzero(found == i)[0]) for i in range(16)] == back
  found = np.asarray(bucket(jnp.asarray(distances), bidirectional=True))
  assert [int(np.flatnonzero(found == 16 + i)[0]) for i in range(1, 9)] == ahead
  assert [int(np.flatnonzero(found == 16 + i)[0]) for i in range(9, 16)] == back[9:]
  assert found.max() == 31 and 16 not in found


def test_buckets_of_a_causal_stack():
  edges = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
  found = np.asarray(bucket(-jnp.arange(400), bidirectional=False))
  assert [int(np.flatnonzero(found == i)[0]) for i in range(32)] == edges
  assert not np.asarray(bucket(jnp.arange(1, 9), bidirectional=False)).any()


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_of_a_row_is_that_of_its_positions(bidirectional):
  module = RelativeBias(3, bidirectional)
  table = {"params": {"table": RNG.normal(size=(32, 3)).astype(np.float32)}}
  positions = np.arange(150, dtype=np.int32)[None]
  square = jax.jit(lambda params: module.apply(params, 150, method="square"))(table)
  np.testing.assert_array_equal(square, jax.jit(module.apply)(table, positions, positions))
  assert square.shape == (1, 3, 150, 150)


def test_what_a_position_sees(model):
  """Itself, what is before it, and all of the source."""
  target, source = RNG.integers(60, size=(1, 9)), RNG.integers(60, size=(1, 7))
  before = states(model, plain_rows(target), plain_rows(source)).hidden
  other = target.copy()
  other[0, 4] += 1
  after = states(model, plain_rows(other % 60), plain_rows(source)).hidden
  np.testing.assert_array_equal(before[0, :4], after[0, :4])
  assert (np.abs(before - after)[0, 4:].max(-1) > 0).all()
  for column in range(7):
    other = source.copy()
    other[0, column] += 1
    after = states(model, plain_rows(target), plain_rows(other % 60)).hidden
    assert (np.abs(before - after)[0].max(-1) > 0).all()


def test_packed_rows_equal_rows_alone(model):
  target, source = RNG.integers(60, size=(1, 10)), RNG.integers(60, size=(1, 12))
  rows = Rows(
    target.astype(np.int32),
    np.array([[0, 1, 2, 3, 0, 1, 2, 3, 0, 0]], np.int32),
    np.array([[1, 1, 1, 1, 2, 2, 2, 2, 0, 0]], np.int32),
  )
  # The second sequence first, and padding between them.
  sources = Rows(
    source.astype(np.int32),
    np.array([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 0]], np.int32),
    np.array([[2, 2, 2, 2, 2, 0, 1, 1, 1, 1, 1, 0]], np.int32),
  )
  packed = states(model, rows, sources).hidden
  for t, s in ((slice(0, 4), slice(6, 11)), (slice(4, 8), slice(0, 5))):
    alone = states(model, plain_rows(target[:, t]), plain_rows(source[:, s])).hidden
    np.testing.assert_allclose(packed[:, t], alone, atol=2e-5)


def test_padding_of_the_source_alone(model):
  """Rows without segments are of segment 1."""
  target, source = RNG.integers(60, size=(1, 4)), RNG.integers(60, size=(1, 8))
  segments = (np.arange(8) < 5)[None].astype(np.int32)
  padded = states(model, plain_rows(target), plain_rows(source, segments)).hidden
  alone = states(model, plain_rows(target), plain_rows(source[:, :5])).hidden
  np.testing.assert_allclose(padded, alone, atol=2e-5)


def test_dropout_is_the_same_at_all_positions_of_a_row():
  x = jnp.ones((4, 50, 64))
  dropped = np.asarray(row_dropout(x, 0.25, step_key(0, 0)))
  assert (dropped == dropped[:, :1]).all()
  assert not (dropped[0] == dropped[1]).all()
  np.testing.assert_allclose((dropped == 0).mean(), 0.25, atol=0.08)
  np.testing.assert_allclose(dropped[dropped > 0], 4 / 3, rtol=1e-6)
  np.testing.assert_array_equal(row_dropout(x, 0.25, None), x)


def test_dropped_probabilities_are_those_of_a_key_for_all_queries():
  """Against softmax, mask, sum in NumPy; the mask is read from where values count nothing."""
  config = dataclasses.replace(CONFIG, residual_dropout=0.4)
  layer, key = Attention(config), step_key(0, 3)
  x = RNG.normal(size=(2, 7, 16)).astype(np.float32)
  mask, bias = AttentionMask("causal"), RNG.normal(size=(1, 4, 7, 7)).astype(np.float32)
  params = jax.jit(layer.init)(jax.random.key(0), x, mask, bias, None)

  found, _ = jax.jit(layer.apply)(params, x, mask, bias, key)
  p = {name: np.asarray(kernel["kernel"], np.float64) for name, kernel in params["params"].items()}
  q, k, v = ((x @ p[n]).reshape(2, 7, 4, 6).swapaxes(1, 2) for n in ("query", "key", "value"))
  scores = q @ k.swapaxes(2, 3) + bias  # not divided by sqrt(6)
  scores = np.where(np.tri(7, dtype=bool), scores, -np.inf)
  probabilities = np.exp(scores - scores.max(-1, keepdims=True))
  probabilities /= probabilities.sum(-1, keepdims=True)
  keep = np.asarray(layer.apply(params, jnp.ones((2, 4, 7, 6)), key, method="_drop_keys"))[..., 0]
  assert 0 < (keep == 0).mean() < 1
  out = (probabilities * keep[:, :, None]) @ v
  np.testing.assert_allclose(found, out.swapaxes(1, 2).reshape(2, 7, 24) @ p["out"], atol=1e-5)


def test_depth_follows_the_two_stacks():
  spec = ModelConfig(dataclasses.replace(CONFIG, version="1.1"), ())
  paths = [name.removeprefix("trunk/") for name in parameter_shapes(spec)]
  depths = {path.partition("/attention")[0]: CONFIG.depth(path) for path in paths}
  expected = {"tokens": 0, "encoder/relative/table": 0, "encoder/block_0": 1, "encoder/block_1": 2}
  expected |= {"encoder/last_norm/scale": 2, "decoder/relative/table": 0, "decoder/block_0": 3}
  expected |= {"decoder/block_1": 4, "decoder/last_norm/scale": 4, "output": 4}
  assert expected.items() <= depths.items()


def test_what_a_trunk_cannot_read():
  ids = np.zeros((1, 6), np.int32)
  rows = Batch(plain_rows(ids), source=plain_rows(ids))
  transformer = TransformerConfig(60, context=8, layers=1, width=8, heads=2)
  lstm = LSTMEncoderDecoderConfig(60, 8, embedding_width=5, layers=2, units=4)
  for spec, batch, message in (
    (ModelConfig(CONFIG), rows._replace(source=None), "reads a source .*have no source"),
    (ModelConfig(lstm), rows._replace(source=None), "reads a source .*have no source"),
    (ModelConfig(lstm, (), "prefix"), rows, "has causal attention; prefix needs"),
    (ModelConfig(transformer), rows, "reads no source, and these inputs have one"),
    (ModelConfig(CONFIG, (), "bidirectional"), rows, "has causal attention; bidirectional needs"),
  ):
    with pytest.raises(InputError, match=message):
      jax.eval_shape(spec.build().init, jax.random.key(0), batch)
