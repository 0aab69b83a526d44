"""BERT, RoBERTa and ALBERT as fields of the Transformer: their sizes, and against NumPy; heads that
read a whole text.

tests/apps/interop/test_hf_encoders.py compares with transformers.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bert_trunk import bert_trunk
from numpy_transformer import (
  NUMPY_ACTIVATIONS,
  numpy_dense,
  numpy_norm,
  numpy_transformer,
  random_params,
)
from refused import refused

from gpt_jax.apps.report.visualize import attention_maps
from gpt_jax.batch import Batch, Labels, Predictions, Rows
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.heads.masked import MaskedHead, SentencePairHead
from gpt_jax.models.heads.regress import MultiLabelHead, RegressHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, language_model, parameter_shapes
from gpt_jax.models.partly_shared import PartlySharedConfig
from gpt_jax.models.trunk import Pooler, States
from gpt_jax.ops.dropout import step_key

BERT = bert_trunk(60, special_tokens=0)
ROBERTA = dataclasses.replace(BERT, token_types=0, pooler=False, norm_epsilon=1e-5, init="normal")
ALBERT = dataclasses.replace(BERT, embedding_width=8, shared_layers=True, activation="gelu_tanh")
TRUNKS = {"bert": BERT, "roberta": ROBERTA, "albert": ALBERT}
PAIRS = (MaskedHead(), SentencePairHead())
RNG = np.random.default_rng(0)


def make_batch(rows=4, length=12):
  """Pairs of texts with padding after the second, predictions in both, and a label each."""
  inputs = RNG.integers(60, size=(rows, length)).astype(np.int32)
  columns = np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)
  segments = (columns < length - 2).astype(np.int32)
  at = np.tile(np.array([1, 4, 8], np.int32), (rows, 1))
  weights = np.ones(at.shape, np.float32)
  weights[0, 2] = 0
  return Batch(
    Rows(inputs, columns, segments, types=(columns > 5).astype(np.int32)),
    predictions=Predictions(RNG.integers(60, size=at.shape).astype(np.int32), weights, at),
    labels=Labels(
      np.arange(rows, dtype=np.int32)[:, None] * length,
      np.eye(2, dtype=np.float32)[np.arange(rows) % 2],
      np.array([1] * (rows - 1) + [0], np.float32),
    ),
  )


BATCH = make_batch()


def spec_of(trunk):
  return ModelConfig(trunk, PAIRS if trunk.pooler else PAIRS[:1], "bidirectional")


# ------------------------------------------------------------------------------------------- Sizes


@pytest.mark.parametrize(
  "trunk, rows, with_heads",
  [
    # Rows that transformers has besides: of no position (2), and RoBERTa's one token type.
    ("bert", 30_522, 110_106_428),
    ("roberta", 50_265, 124_697_433 - 3 * 768),
    ("albert", 30_000, None),
  ],
)
def test_the_published_base_sizes_with_their_heads(trunk, rows, with_heads):
  """The counts of all trunks are in tests/test_configs.py."""
  sizes = {"context": 512, "layers": 12, "width": 768, "heads": 12}
  config = dataclasses.replace(TRUNKS[trunk], vocab_size=rows, **sizes)
  shapes = parameter_shapes(spec_of(config))
  unused = config.rows - rows
  counts = {name: math.prod(shape) for name, shape in shapes.items()}
  in_trunk = sum(n for name, n in counts.items() if name.startswith("trunk/"))
  assert config.parameter_count() == in_trunk - unused * config.table_width
  total = sum(counts.values()) - unused * (config.table_width + 1)  # the head's bias has a row too
  assert with_heads in (None, total)


def test_a_shared_block_counts_in_the_operations_as_often_as_it_is_applied():
  shared = dataclasses.replace(ALBERT, embedding_width=0, layers=12)
  apart = dataclasses.replace(shared, shared_layers=False)
  assert shared.flops_per_token(24) == apart.flops_per_token(24)
  assert shared.parameter_count() < 0.2 * apart.parameter_count()


def test_layers_for_transfer():
  assert [BERT.depth(f"{name}/kernel") for name in ("block_0", "block_1", "pooler")] == [1, 2, 2]
  assert {ALBERT.depth(f"{name}/kernel") for name in ("block_0", "pooler")} == {1}
  for name in ("tokens", "positions", "types", "embedding_norm/scale", "embedding_map/kernel"):
    assert BERT.depth(name) == 0


def test_initial_values_are_cut_at_two_deviations():
  trunk = dataclasses.replace(BERT, vocab_size=900, width=64, embedding_width=32)
  spec = ModelConfig(trunk, (*PAIRS, ClassifyHead(transform="dense")), "bidirectional")
  params = jax.jit(spec.build().init)(jax.random.key(0), BATCH)["params"]
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name.endswith(("bias", "scale")):
      np.testing.assert_array_equal(leaf, float(name.endswith("scale")))
    else:
      assert np.abs(leaf).max() <= 0.04, name
      if leaf.size > 2000:
        np.testing.assert_allclose(np.std(leaf), 0.0176, rtol=0.06, err_msg=name)


@pytest.mark.parametrize("name", TRUNKS)
def test_equals_numpy(name):
  """Hidden states, the loss of masked tokens, and that of sentence pairs."""
  spec = spec_of(TRUNKS[name])
  trunk = spec.trunk
  params = random_params(spec)
  batch, length = BATCH, 10  # the last two columns are padding
  model = spec.build()

  @jax.jit
  def compute(params):
    states, outputs = model.apply({"params": params}, batch)
    means = [head.loss(x, states, batch, 60) for head, x in zip(spec.heads, outputs, strict=True)]
    return states, outputs, means, model_loss(model)(params, batch, None)

  states, outputs, means, (total, metrics) = compute(params)
  masked, pairs = [], []
  for n, (ids, types) in enumerate(zip(batch.rows.inputs, batch.rows.types, strict=True)):
    expected = numpy_transformer(trunk, params["trunk"], ids[:length], types[:length])
    np.testing.assert_allclose(states.hidden[n, :length], expected, atol=1e-4)
    head = params["masked"]
    hidden = NUMPY_ACTIVATIONS[trunk.activation](numpy_dense(expected, head["transform"]))
    hidden = numpy_norm(hidden, head["norm"], trunk.norm_epsilon)
    scores = (hidden @ params["trunk"]["tokens"].T + head["bias"])[:, :60]
    log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    masked.append(log_probs[batch.predictions.at[n], batch.predictions.targets[n]])
    if trunk.pooler:
      pooled = np.tanh(numpy_dense(expected[0], params["trunk"]["pooler"]))
      pairs.append(numpy_dense(pooled, params["sentence_pair"]))
  mean = means[0]
  np.testing.assert_allclose(mean.total, -(masked * batch.predictions.weights).sum(), rtol=1e-4)
  assert mean.weight == 11
  if trunk.pooler:
    np.testing.assert_allclose(outputs[1], pairs, atol=1e-4)
    log_probs = pairs - np.log(np.exp(pairs).sum(-1, keepdims=True))
    mean = means[1]
    expected = -(log_probs * batch.labels.distributions).sum(-1)[:3].sum()  # the last has no weight
    np.testing.assert_allclose(mean.total, expected, rtol=1e-4)
    assert mean.weight == 3
    parts = [metrics[name].value for name in ("masked_loss", "sentence_pair_loss")]
    np.testing.assert_allclose(total, sum(parts), rtol=1e-5)
    right = np.argmax(pairs, -1) == batch.labels.distributions.argmax(-1)
    assert metrics["sentence_pair_accuracy"] == (right[:3].sum(), 3)


def test_rows_without_types_are_of_the_first_type():
  """A trunk of one layer: types are added to its input."""
  trunk = dataclasses.replace(BERT, layers=1)
  module, params = trunk.build("bidirectional"), random_params(spec_of(trunk))["trunk"]
  apply = jax.jit(lambda rows: module.apply({"params": params}, rows).hidden)
  rows = BATCH.rows._replace(types=np.zeros_like(BATCH.rows.inputs))
  expected = apply(rows)
  np.testing.assert_array_equal(apply(rows._replace(types=None)), expected)
  assert np.abs(apply(BATCH.rows) - expected).max() > 0.01


@functools.cache
def gradient_of(trunk):
  """params -> loss and gradient, dropout on."""
  loss = model_loss(spec_of(trunk).build())
  return jax.jit(jax.value_and_grad(lambda p: loss(p, BATCH, step_key(0, 1))[0]))


@pytest.mark.slow
def test_a_shared_block_is_equal_blocks_with_the_sum_of_their_gradients():
  apart = dataclasses.replace(ALBERT, shared_layers=False)
  params = random_params(spec_of(ALBERT))
  block = params["trunk"]["block_0"]
  copied = {**params, "trunk": {**params["trunk"], "block_1": block}}
  value, grads = gradient_of(ALBERT)(params)
  expected, of_copies = gradient_of(apart)(copied)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  one, other = (of_copies["trunk"].pop(f"block_{i}") for i in range(2))
  of_copies["trunk"]["block_0"] = jax.tree.map(jnp.add, one, other)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, of_copies)


@pytest.mark.parametrize("shared", ["attention", "mlp"])
@pytest.mark.slow
def test_a_shared_sublayer_is_equal_sublayers_with_the_sum_of_their_gradients(shared):
  apart = dataclasses.replace(ALBERT, shared_layers=False)
  fields = {field.name: getattr(apart, field.name) for field in dataclasses.fields(apart)}
  trunk = PartlySharedConfig(**fields, shared=shared)
  params = random_params(spec_of(trunk))
  copied = {**params, "trunk": dict(params["trunk"])}
  names = {shared: f"shared_{shared}", f"{shared}_norm": f"shared_{shared}_norm"}
  parts = {name: copied["trunk"].pop(of_all) for name, of_all in names.items()}
  for block in ("block_0", "block_1"):
    copied["trunk"][block] = {**params["trunk"][block], **parts}
  value, grads = gradient_of(trunk)(params)
  expected, of_copies = gradient_of(apart)(copied)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  of_trunk = of_copies["trunk"]
  for name, of_all in names.items():
    one, other = (of_trunk[block].pop(name) for block in ("block_0", "block_1"))
    of_trunk[of_all] = jax.tree.map(jnp.add, one, other)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, of_copies)


def test_attention_maps_of_a_shared_block():
  module, params = ALBERT.build("bidirectional"), random_params(spec_of(ALBERT))["trunk"]
  apply = jax.jit(functools.partial(module.apply, mutable="intermediates"))
  _, kept = apply({"params": params}, BATCH.rows)
  maps = attention_maps(kept["intermediates"])
  assert maps.shape == (2, 4, 4, 12, 12)
  np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
  assert np.abs(maps[0] - maps[1]).max() > 1e-3


@pytest.mark.parametrize("name", TRUNKS)
def test_every_position_sees_both_sides_of_its_text_and_nothing_else(name):
  """A changed token moves all of its own segment, and nothing of padding or a packed neighbor."""
  trunk = TRUNKS[name]
  params = random_params(spec_of(trunk))["trunk"]
  apply = jax.jit(lambda rows: trunk.build("bidirectional").apply({"params": params}, rows).hidden)
  segments = np.repeat([[1, 2, 0]], [5, 4, 3], axis=1).repeat(4, axis=0).astype(np.int32)
  rows = BATCH.rows._replace(segments=segments)
  before = apply(rows)
  for changed, inside in ((2, slice(0, 5)), (8, slice(5, 9)), (11, slice(9, 12))):
    inputs = rows.inputs.copy()
    inputs[:, changed] = (inputs[:, changed] + 1) % 60
    moved = np.abs(np.asarray(apply(rows._replace(inputs=inputs)) - before)).max(-1) > 0
    expected = np.zeros(12, bool)
    expected[inside] = True
    assert (moved == expected[None]).all()


def test_dropout_on_the_sum_leaves_the_table_alone():
  trunk = dataclasses.replace(ROBERTA, layers=1, residual_dropout=0.0, attention_dropout=0.0)
  trunk = dataclasses.replace(trunk, embedding_dropout=0.4, width=64)
  module = trunk.build("bidirectional")
  variables = {"params": random_params(spec_of(trunk))["trunk"]}
  ids = np.full((2, 12), 7, np.int32)
  rows = Rows(ids, np.zeros_like(ids))  # the same token at the same position, everywhere
  embed = jax.jit(lambda key: module.apply(variables, ids, rows.positions, key, method="_embed"))
  dropped, table = embed(step_key(0, 0))
  np.testing.assert_array_equal(table, variables["params"]["tokens"])
  gone = np.asarray(dropped) == 0
  assert gone.mean() == pytest.approx(0.4, abs=0.04)
  assert len(np.unique(gone.reshape(24, 64), axis=0)) == 24  # each occurrence has its own mask
  whole, _ = embed(None)
  np.testing.assert_allclose(dropped[~gone], np.asarray(whole)[~gone] / 0.6, rtol=1e-5)
  again, _ = embed(step_key(0, 0))
  np.testing.assert_array_equal(dropped, again)


# ------------------------------------------------------------------------------------------- Heads


def read_texts(head, hidden, anchors, key=None, scale=1.0):
  """A head's outputs for hidden states [B, T, D], its parameters, and the pooler."""
  rng = np.random.default_rng(3)
  width = hidden.shape[-1]
  pooler = Pooler(*(rng.normal(size=shape).astype(np.float32) for shape in ((width, width), width)))
  states = States(hidden, np.zeros((1, width), np.float32), pooler)
  batch = Batch(None, labels=Labels(anchors, None, None))
  module = head.build(dataclasses.replace(BERT, width=width))
  shapes = jax.eval_shape(module.init, jax.random.key(0), states, batch)["params"]
  params = jax.tree.map(lambda x: scale * rng.normal(size=x.shape).astype(np.float32), shapes)
  return np.asarray(module.apply({"params": params}, states, batch, key)), params, pooler


@pytest.mark.parametrize("transform", ["pooler", "dense"])
@pytest.mark.parametrize(
  "head, sequences",
  [
    (ClassifyHead(3), 1),
    (ClassifyHead(2), 2),
    (ClassifyHead(4, "per_choice"), 4),
    (RegressHead(), 1),
    (MultiLabelHead(3), 1),
  ],
)
def test_a_transform_of_each_text(head, sequences, transform):
  head = dataclasses.replace(head, transform=transform)
  hidden = RNG.normal(size=(3, 8, 8)).astype(np.float32)
  anchors = RNG.integers(24, size=(5, sequences)).astype(np.int32)
  found, params, pooler = read_texts(head, hidden, anchors)
  texts = hidden.reshape(-1, 8)[anchors].astype(np.float64)
  dense = pooler._asdict() if transform == "pooler" else params["dense"]
  texts = np.tanh(numpy_dense(texts, dense))
  if head.pooling == "per_choice":
    expected = (texts @ params["kernel"] + params["bias"])[..., 0]
  else:
    expected = texts.sum(1) @ params["kernel"] + params["bias"]
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_choices_of_an_example_have_the_same_mask():
  """Equal options have equal scores, under dropout before and after the map too."""
  for transform in ("pooler", "dense"):
    head = ClassifyHead(3, "per_choice", dropout=0.5, transform=transform)
    hidden = np.ones((2, 3, 8), np.float32)
    anchors = np.arange(6, dtype=np.int32).reshape(2, 3)
    scores, *_ = read_texts(head, hidden, anchors, step_key(0, 0))
    np.testing.assert_array_equal(scores, scores[:, :1].repeat(3, axis=1))
    assert scores[0, 0] != scores[1, 0]
    evaluated, *_ = read_texts(head, hidden, anchors)
    assert evaluated[0, 0] not in scores


# ---------------------------------------------------------------------------------------- Refusals


def test_hidden_states_that_the_table_does_not_take():
  message = "^trunk.embedding_width=8: a language model multiplies hidden states by the table"
  for make in (
    lambda: ModelConfig(ALBERT),
    lambda: ModelConfig(ALBERT, (LanguageHead(0.5), ClassifyHead())),
    lambda: language_model(ALBERT),
  ):
    refused(message, make)
  assert ModelConfig(dataclasses.replace(ALBERT, embedding_width=16)).heads


@pytest.mark.parametrize("head", [SentencePairHead(), ClassifyHead(transform="pooler")])
def test_a_head_without_the_pooler_that_it_reads(head):
  refused("reads pooler, and the trunk transformer gives", ModelConfig, ROBERTA, (head,))


@pytest.mark.parametrize("field", ["activation", "init", "embedding_dropout_on"])
def test_a_value_that_there_is_not(field):
  refused(f"{field}.*swish", dataclasses.replace, BERT, **{field: "swish"})
