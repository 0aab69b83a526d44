"""The head's two poolings, its shared mask, and parameters that a language model hands on."""

import dataclasses
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_transformer import numpy_dense, numpy_norm

from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.models import trunk
from gpt_jax.models.heads.classify import ClassifyHead, represent
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, language_model, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.ops.dropout import step_key

TRUNK = TransformerConfig(vocab_size=60, context=16, layers=1, width=16, heads=2)
TEXT = causal_batch(np.arange(27, dtype=np.int32).reshape(3, 9))
LABELS = Labels(
  np.array([[3, 7], [12, 20]], np.int32), np.eye(2, dtype=np.float32), np.ones(2, np.float32)
)
BATCH = TEXT._replace(labels=LABELS)


@pytest.fixture(scope="module")
def extracts():
  return np.random.default_rng(0).standard_normal((5, 3, 8), np.float32)  # [N, C, D]


def apply(pooling, extracts, key=None, num_classes=2):
  rng = np.random.default_rng(1)
  width = num_classes if pooling == "sum" else 1
  params = {
    "kernel": rng.standard_normal((8, width), np.float32),
    "bias": rng.standard_normal(width, np.float32),
  }
  head = ClassifyHead(num_classes=num_classes, pooling=pooling, dropout=0.5).build(TRUNK)
  states, batch = anchored(extracts)
  shapes = jax.eval_shape(head.init, jax.random.key(0), states, batch, None)["params"]
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  return np.asarray(jax.jit(head.apply)({"params": params}, states, batch, key)), params


def anchored(extracts):
  """States and a batch whose anchors are at these representations [N, C, D]."""
  N, C, D = extracts.shape
  anchors = np.arange(N * C, dtype=np.int32).reshape(N, C)
  states = States(extracts.reshape(1, N * C, D), np.zeros((1, D), np.float32))
  return states, Batch(None, labels=Labels(anchors, None, None))


def test_scores_of_each_pooling(extracts):
  scores, p = apply("sum", extracts)
  np.testing.assert_allclose(scores, extracts.sum(1) @ p["kernel"] + p["bias"], rtol=1e-5)
  reordered, _ = apply("sum", extracts[:, ::-1])
  np.testing.assert_allclose(reordered, scores, rtol=1e-5)
  scores, p = apply("per_choice", extracts, num_classes=3)
  np.testing.assert_allclose(scores, extracts @ p["kernel"][:, 0] + p["bias"], rtol=1e-5)


def test_concat_is_the_anchor_the_maximum_and_the_mean_of_a_text():
  hidden = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
  segments = np.array([[1, 1, 2, 2, 0], [3, 3, 3, 3, 3]], np.int32)
  labels = Labels(np.array([[1], [3], [9]], np.int32), None, None)
  found = jax.jit(represent, static_argnums=2)(
    hidden, Batch(Rows(segments, segments, segments), labels=labels), "concat"
  )
  texts = [hidden[0, :2], hidden[0, 2:4], hidden[1]]
  wanted = [np.concatenate([text[-1], text.max(0), text.mean(0)]) for text in texts]
  np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-6)
  spec = ModelConfig(TRUNK, (ClassifyHead(2, "concat"),))
  assert parameter_shapes(spec)["head/kernel"] == (3 * TRUNK.width, 2)


def test_a_trunk_that_reads_backward_ends_at_the_first_token():
  trunk = LSTMStackConfig(9, units=(3,), embedding_width=3, directions="backward")
  hidden = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float32)
  rows = np.array([[1, 1, 2, 2, 2]]), np.array([[0, 1, 0, 1, 2]])
  batch = Batch(
    Rows(rows[0], rows[1], rows[0]), labels=Labels(np.array([[1], [4]], np.int32), None, None)
  )
  params = {"kernel": np.eye(3, dtype=np.float32), "bias": np.zeros(3, np.float32)}
  states = States(hidden, np.zeros((1, 3), np.float32))
  scores = ClassifyHead(3).build(trunk).apply({"params": params}, states, batch, None)
  np.testing.assert_array_equal(scores, hidden[0, [0, 2]])


def test_ulmfits_hidden_layer(extracts):
  """Against NumPy; the parameters are random, the norms' too."""
  head = ClassifyHead(3, units=5).build(TRUNK)
  states, batch = anchored(extracts)
  shapes = jax.eval_shape(head.init, jax.random.key(0), states, batch, None)["params"]
  rng = np.random.default_rng(2)
  p = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(np.float32), shapes)

  x = numpy_dense(numpy_norm(extracts.sum(1), p["norm_in"]), p["hidden"])
  expected = numpy_dense(numpy_norm(np.maximum(x, 0), p["norm_hidden"]), p)
  scores = jax.jit(head.apply)({"params": p}, states, batch, None)
  np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["sum", "per_choice"])
def test_dropout_is_one_mask_an_example(pooling):
  """Found from the scores of single features, with a head that reads one at a time."""
  N, C, D = 6, 3, 64
  scores = []
  head = ClassifyHead(num_classes=2, pooling=pooling, dropout=0.5).build(TRUNK)
  states, batch = anchored(np.ones((N, C, D), np.float32))
  read = jax.jit(
    lambda kernel, key: head.apply(
      {"params": {"kernel": kernel, "bias": kernel[0] * 0}}, states, batch, key
    )
  )
  for feature in range(D):
    kernel = np.zeros((D, 2 if pooling == "sum" else 1), np.float32)
    kernel[feature] = 1
    scores.append(np.asarray(read(kernel, step_key(0, 0))))
  scores = np.stack(scores, -1)  # [N, K or C, D]
  kept = scores != 0
  np.testing.assert_allclose(scores[kept], 2 * (C if pooling == "sum" else 1))
  assert (kept == kept[:, :1]).all()  # all outcomes, or all candidates, see the same features
  assert 0.4 < kept.mean() < 0.6
  assert len(np.unique(kept[:, 0], axis=0)) == N  # examples have masks of their own


def test_the_head_reads_the_extract_tokens():
  """Changing what stands after an extract token, or in another row, does not change the scores."""
  model = ModelConfig(TRUNK, (LanguageHead(), ClassifyHead(num_classes=2))).build()
  params = jax.jit(model.init)(jax.random.key(0), BATCH)["params"]
  scores = jax.jit(
    lambda inputs: model.apply(
      {"params": params}, BATCH._replace(rows=TEXT.rows._replace(inputs=inputs))
    ).heads[1]
  )
  # Example 0 reads places 3 and 7 of row 0; example 1 reads place 4 of row 1 and place 4 of row 2.
  base = scores(TEXT.rows.inputs)
  for row, column, changed in [
    (0, 7, [True, False]),
    (1, 4, [False, True]),
    (1, 5, [False] * 2),
    (2, 4, [False, True]),
  ]:
    inputs = TEXT.rows.inputs.copy()
    inputs[row, column] += 1
    np.testing.assert_array_equal((scores(inputs) != base).any(-1), changed)


def test_logits_mask_rows_that_are_no_token():
  hidden, table = np.ones((2, 3, 4), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
  scores = logits(hidden, table, 6)
  np.testing.assert_allclose(scores[..., :6], hidden @ table[:6].T)
  np.testing.assert_array_equal(scores[..., 6:], -1e9)
  np.testing.assert_allclose(logits(hidden, table, 8), hidden @ table.T)
  assert logits(hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16), 6).dtype == jnp.float32


def test_special_tokens_count_in_fine_tuning_only():
  assert language_model(TRUNK).num_tokens == 60
  assert ModelConfig(TRUNK, (LanguageHead(), ClassifyHead())).build().num_tokens == 63


SPEC = ModelConfig(
  TransformerConfig(vocab_size=60, context=8, layers=1, width=16, heads=2, dtype="bfloat16")
)


@pytest.fixture
def devices(monkeypatch):
  """devices(capability, …): what the model takes for the devices of this machine."""

  def pretend(*capabilities):
    there = [
      types.SimpleNamespace(compute_capability=name, device_kind="Tesla T4")
      for name in capabilities
    ]
    trunk._warn_of_dtype.cache_clear()
    monkeypatch.setattr(jax, "devices", lambda: there)

  yield pretend
  trunk._warn_of_dtype.cache_clear()


def dtype_of(spec):
  """Of the hidden states of a model that is traced."""
  ids = np.zeros((1, 4), np.int32)

  def hidden():
    model = spec.build()
    params = model.init(jax.random.key(0), Batch(Rows(ids, ids)))
    return model.apply(params, Rows(ids, ids), method="states").hidden

  return str(jax.eval_shape(hidden).dtype)


def test_a_gpu_without_bfloat16_computes_in_float32(devices):
  devices("8.0", "7.5")
  with pytest.warns(UserWarning, match=r"bfloat16: Tesla T4 has none .*7\.5.*float32.*float16"):
    assert dtype_of(SPEC) == "float32"
  with warnings.catch_warnings(action="error"):
    assert dtype_of(SPEC) == "float32"  # warned once


@pytest.mark.parametrize(
  "capability, dtype",
  [*((name, "bfloat16") for name in ("8.0", "9.0", "12.0", "gfx90a", None)), ("7.0", "float16")],
)
def test_what_a_device_has_stays(devices, capability, dtype):
  devices(capability)
  trunk = dataclasses.replace(SPEC.trunk, dtype=dtype)
  assert dtype_of(dataclasses.replace(SPEC, trunk=trunk)) == dtype
