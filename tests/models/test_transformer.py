"""The decoder against a plain NumPy GPT-1: causality, packing, caching, dropout."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_transformer import NUMPY_ACTIVATIONS, numpy_transformer

from gpt_jax.apps.report.visualize import attention_maps
from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models import layers
from gpt_jax.models.layers import ACTIVATIONS, LayerNorm, Projection, activate
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops import product
from gpt_jax.ops.dropout import dropout, step_key

CONFIG = TransformerConfig(vocab_size=60, context=160, layers=2, width=16, heads=2)
RNG = np.random.default_rng(0)


def perturbed(params, scale=0.3):
  """Every parameter moved: biases and gains matter, and attention is far from uniform."""
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda p: p + scale * rng.standard_normal(p.shape, np.float32), params)


def initial(config):
  text = np.zeros((1, 8), np.int32)
  return jax.jit(config.build().init)(jax.random.key(0), Rows(text, text))["params"]


@pytest.fixture(scope="module")
def trunk():
  """(apply(inputs, positions), params)."""
  compiled, params = jax.jit(CONFIG.build().apply), perturbed(initial(CONFIG))

  def apply(inputs, positions, params=params):
    return compiled({"params": params}, Rows(inputs, positions))

  return apply, params


def tokens(rows, length):
  inputs = RNG.integers(0, 63, (rows, length)).astype(np.int32)
  return inputs, np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)


def test_parameter_count():
  config = TransformerConfig(vocab_size=40_478)
  text = jnp.zeros((1, 8), jnp.int32)
  params = jax.eval_shape(config.build().init, jax.random.key(0), Rows(text, text))["params"]
  assert config.parameter_count() == 116_534_784
  assert params["tokens"].shape == (40_576, 768)  # 40,478 + 3 special ids, up to a multiple of 128
  unused = (40_576 - 40_478) * 768
  assert sum(math.prod(p.shape) for p in jax.tree.leaves(params)) - unused == 116_534_784
  assert len(jax.tree.leaves(params)) == 146


def test_initial_values():
  params = initial(dataclasses.replace(CONFIG, width=64, layers=1))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name.endswith("bias"):
      np.testing.assert_array_equal(leaf, 0)
    elif name.endswith("scale"):
      np.testing.assert_array_equal(leaf, 1)
    else:
      np.testing.assert_allclose(np.std(leaf), 0.02, rtol=0.05, err_msg=name)


def test_pre_norm_begins_with_smaller_sums():
  config = dataclasses.replace(CONFIG, width=64, layers=2, norm="pre")
  params = initial(config)
  block = params["block_1"]
  for part in ("attention", "mlp"):
    np.testing.assert_allclose(
      np.std(block[part]["out"]["kernel"]), 0.02 / 2, rtol=0.05
    )  # √(2 x 2)
  np.testing.assert_allclose(np.std(block["mlp"]["in"]["kernel"]), 0.02, rtol=0.05)
  np.testing.assert_allclose(np.std(block["attention"]["qkv"]["kernel"]), 0.02, rtol=0.05)


def test_heads_must_divide_the_width():
  with pytest.raises(InputError, match="trunk.heads=3: must divide trunk.width=16"):
    dataclasses.replace(CONFIG, heads=3)


# From 128 on attention goes by blocks of queries; the norm is outside of it.
@pytest.mark.parametrize(
  "norm, length, activation",
  [("post", 9, "silu"), ("post", 128, "gelu_tanh"), ("pre", 128, "relu")],
)
def test_equals_numpy(norm, length, activation):
  config = dataclasses.replace(CONFIG, norm=norm, activation=activation)
  module, params = config.build(), perturbed(initial(config))
  inputs, positions = tokens(2, length)
  hidden, table, *_ = jax.jit(module.apply)({"params": params}, Rows(inputs, positions))
  for found, ids in zip(hidden, inputs, strict=True):
    expected = numpy_transformer(config, params, ids, causal=True)
    np.testing.assert_allclose(found, expected, atol=2e-4)
  np.testing.assert_array_equal(table, params["tokens"])


@pytest.mark.parametrize("length", [9, 128])
def test_attention_maps(trunk, length):
  """They are the plain implementation's, and looking at them changes nothing."""
  apply, params = trunk
  inputs, positions = tokens(2, length)
  look = jax.jit(functools.partial(CONFIG.build().apply, mutable="intermediates"))
  (hidden, *_), kept = look({"params": params}, Rows(inputs, positions))
  found = np.asarray(attention_maps(kept["intermediates"]))
  assert found.shape == (CONFIG.layers, 2, CONFIG.heads, length, length)
  np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
  assert (found[..., ~np.tri(length, dtype=bool)] == 0).all()
  for row in range(2):
    expected = []
    numpy_transformer(CONFIG, params, inputs[row], causal=True, maps=expected)
    np.testing.assert_allclose(found[:, row].reshape(-1, length, length), expected, atol=1e-4)
  np.testing.assert_allclose(hidden, apply(inputs, positions)[0], atol=1e-5)


def test_attention_maps_cost_nothing_where_nobody_looks(monkeypatch):
  """The compiled gradient is the same program as that of a decoder which could not keep them."""
  inputs, positions = tokens(2, 128)
  module = CONFIG.build()
  variables = jax.eval_shape(module.init, jax.random.key(0), Rows(inputs, positions))
  assert "intermediates" not in variables

  def program():
    def total(params):
      return module.apply({"params": params}, Rows(inputs, positions), step_key(0, 0))[0].sum()

    return jax.jit(jax.grad(total)).lower(variables["params"]).as_text()

  with_maps, asked = program(), []
  monkeypatch.setattr("flax.linen.Module.sow", lambda self, *_: asked.append(self.path))
  assert program() == with_maps and not asked


@pytest.mark.parametrize("length, changed", [(9, 4), (128, 31), (128, 32), (128, 100)])
def test_causality(trunk, length, changed):
  """Nothing before a changed token moves, and everything after it does."""
  apply, _ = trunk
  inputs, positions = tokens(1, length)
  other = inputs.copy()
  other[0, changed] = (other[0, changed] + 1) % 60
  before, after = apply(inputs, positions)[0], apply(other, positions)[0]
  np.testing.assert_array_equal(before[0, :changed], after[0, :changed])
  assert (np.abs(before - after)[0, changed:].max(-1) > 0).all()


def test_embedding_dropout_is_that_of_the_whole_table(trunk):
  """A token loses the same features wherever it occurs, and in the output table as well."""
  config = dataclasses.replace(
    CONFIG, embedding_dropout=0.25, residual_dropout=0.0, attention_dropout=0.0
  )
  module = config.build()
  apply, params = trunk
  inputs, positions = tokens(2, 9)
  params = {**params, "tokens": np.ones_like(params["tokens"])}
  key = step_key(0, 3)
  hidden, table, *_ = jax.jit(module.apply)({"params": params}, Rows(inputs, positions), key)
  kept = np.asarray(table) != 0
  np.testing.assert_allclose(kept.mean(), 0.75, atol=0.03)
  np.testing.assert_allclose(np.asarray(table)[kept], 1 / 0.75, rtol=1e-6)
  assert len(np.unique(kept, axis=0)) > 100  # rows have masks of their own
  # The dropped table and the dropped positions, given to the model as its parameters, are all that
  # dropout does.
  places = dropout(params["positions"], 0.25, key.fold(config.layers + 1), sharded=False)
  assert (np.asarray(places) == 0).mean() == pytest.approx(0.25, abs=0.03)
  expected, *_ = apply(inputs, positions, params={**params, "tokens": table, "positions": places})
  np.testing.assert_allclose(hidden, expected, atol=1e-5)


def test_without_a_language_head_only_rows_that_are_looked_up_take_a_mask(trunk):
  inputs, positions = tokens(2, 9)
  module = dataclasses.replace(CONFIG, layers=1).build()
  params = {name: x for name, x in trunk[1].items() if name != "block_1"}

  def masks(result):
    def total(params):
      states = module.apply({"params": params}, Rows(inputs, positions), step_key(0, 0))
      return getattr(states, result).sum()

    return re.findall(r"u32\[128,16\]", jax.jit(jax.grad(total)).lower(params).compile().as_text())

  assert masks("table") and not masks("hidden")


@pytest.mark.parametrize("field, uses", [("residual_dropout", 2), ("attention_dropout", 1)])
def test_dropout_rates(trunk, monkeypatch, field, uses):
  """Each use in each layer drops its share, by a mask of its own."""
  shape = {"residual_dropout": (4, 24, 16), "attention_dropout": (4, 2, 24, 24)}[field]
  masks = []

  def spy(x, rate, key, *, sharded=True):
    if x.shape == shape and rate:
      masks.append(dropout(jnp.ones(x.shape), rate, key, sharded=sharded))
    return dropout(x, rate, key, sharded=sharded)

  monkeypatch.setattr("gpt_jax.models.transformer.dropout", spy)
  monkeypatch.setattr("gpt_jax.ops.attention_plain.drop", spy)
  rates = dict.fromkeys(("residual_dropout", "attention_dropout", "embedding_dropout"), 0.0)
  module = dataclasses.replace(CONFIG, **rates | {field: 0.3}).build()
  inputs, positions = tokens(4, 24)
  _, params = trunk

  @jax.jit
  def found(params):
    masks.clear()
    module.apply({"params": params}, Rows(inputs, positions), step_key(0, 0))
    return masks

  dropped = [np.asarray(mask) == 0 for mask in found(params)]
  assert len(dropped) == uses * CONFIG.layers
  for i, mask in enumerate(dropped):
    np.testing.assert_allclose(mask.mean(), 0.3, atol=0.04)
    for other in dropped[:i]:
      np.testing.assert_allclose(
        (mask != other).mean(), 2 * 0.3 * 0.7, atol=0.05
      )  # where they are independent


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_formula_in_value_and_gradient(name):
  formula = NUMPY_ACTIVATIONS[name]
  x = np.concatenate([np.linspace(-6.003, 6, 999), [-90.0, 90.0]])
  np.testing.assert_allclose(activate(np.float32(x), name), formula(x), atol=1e-6, rtol=1e-5)
  slope = (formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5
  found = jax.grad(lambda x: activate(x, name).sum())(jnp.float32(x))
  np.testing.assert_allclose(found, slope, atol=1e-5)
  half = activate(jnp.float16([-200, 200]), name)  # whose cubes float16 does not hold
  assert half.dtype == jnp.float16
  np.testing.assert_allclose(half, formula(np.float64([-200, 200])), atol=1e-6, rtol=1e-3)


def test_a_gpu_adds_a_bias_to_the_float32_sums_of_a_product(monkeypatch):
  """So that it is part of the product; without, what is added to was rounded before."""
  monkeypatch.setattr(product, "platform", lambda: "gpu")
  rng = np.random.default_rng(0)
  x, d_y = (
    jnp.asarray(rng.normal(size=(4, 9, *shape)), jnp.bfloat16) for shape in [(8,), (3, 2, 4)]
  )
  layer = Projection((8,), (3, 2, 4), "bfloat16", bias_in_product=True)
  params = {"kernel": rng.normal(size=(8, 3, 2, 4)), "bias": rng.normal(size=(3, 2, 4))}
  params = jax.tree.map(np.float32, params)
  y, pull = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
  wide, kernel, wide_d = (np.float32(a) for a in (x, jnp.bfloat16(params["kernel"]), d_y))
  expected = np.einsum("btd,dphk->btphk", wide, kernel) + params["bias"]
  # One rounding: at most half a step of bfloat16 (2^-8), and the order of the float32 sum.
  np.testing.assert_allclose(np.float32(y), expected, rtol=2**-8 + 1e-5, atol=1e-5)
  program = jax.jit(pull).lower(d_y).as_text()
  assert "f32" not in "".join(re.findall(r"dot_general.*-> (\S+)", program))
  of_params, d_x = pull(d_y)
  np.testing.assert_allclose(of_params["bias"], wide_d.sum((0, 1)), rtol=1e-5, atol=1e-5)
  for found, equation, factor in [
    (of_params["kernel"], "btd,btphk->dphk", wide),
    (d_x, "dphk,btphk->btd", kernel),
  ]:
    np.testing.assert_allclose(
      np.float32(found), np.einsum(equation, factor, wide_d), rtol=0.02, atol=0.05
    )


def test_the_gradient_of_a_norm_on_a_gpu_is_that_of_its_formula(monkeypatch):
  rng = np.random.default_rng(0)
  x, d_y = 3 * rng.normal(size=(2, 4, 9, 16)).astype(np.float32) + 1
  params = {name: rng.normal(size=16).astype(np.float32) for name in ("scale", "bias")}

  def gradients():
    layer = LayerNorm("float32")
    y, pull = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
    return y, *pull(jnp.asarray(d_y)), len(jax.tree.leaves(pull))

  *expected, _ = gradients()
  monkeypatch.setattr(product, "platform", lambda: "gpu")
  *found, saved = gradients()
  assert saved == 4  # x, scale, and what each row adds up to
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
  jax.tree.map(close, found, expected)


def test_the_gradient_of_gelu_on_a_gpu_is_that_of_its_formula(monkeypatch):
  x = np.linspace(-6, 6, 1001, dtype=np.float32)

  def compiled():  # traced anew, for another platform
    return jax.jit(jax.grad(lambda x: activate(x, "gelu_tanh").sum()))

  expected = compiled()(x)
  monkeypatch.setattr(product, "platform", lambda: "gpu")
  assert "logistic" in str(jax.make_jaxpr(compiled())(x))
  np.testing.assert_allclose(compiled()(x), expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_a_gpu_stores_the_product_of_a_projection_alone(monkeypatch, activation):
  """And rounds its gradient once, before the sum of the bias and the products read it."""
  layer = layers.Projection((4,), (3,), "bfloat16", activation=activation)
  x = np.random.default_rng(0).normal(size=(5, 4)).astype(jnp.bfloat16)
  params = layer.init(jax.random.key(0), x)

  def gradients():  # traced anew, for another platform
    return jax.jit(jax.grad(lambda params: jnp.square(100 * layer.apply(params, x)).sum()))

  expected = gradients()(params)
  assert "reduce_precision" not in str(jax.make_jaxpr(gradients())(params))
  monkeypatch.setattr(product, "platform", lambda: "gpu")
  assert str(jax.make_jaxpr(gradients())(params)).count("exponent_bits=8") == 1
  stored = jax.tree.leaves(jax.vjp(lambda params: layer.apply(params, x), params)[1])
  assert [y.dtype.name for y in stored if y.shape == (5, 3)] == ["bfloat16"]
  found = gradients()(params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02), found, expected)
