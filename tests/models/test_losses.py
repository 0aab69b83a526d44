"""The losses against plain log-softmax, jax.grad, and a NumPy computation of eq. 1 and eq. 3-5."""

import contextlib
import dataclasses
import functools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Batch, Labels
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.heads.regress import MultiLabelHead, RegressHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops import cross_entropy as cross_entropy_module
from gpt_jax.ops.cross_entropy import _chunk, cross_entropy
from gpt_jax.ops.dropout import step_key
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import OrderedBatches

B, T, D, ROWS, IN_USE = 3, 8, 5, 16, 11
TRUNK = TransformerConfig(vocab_size=60, context=32, layers=1, width=16, heads=2)


def make_inputs(length=T, dtype=np.float32, batch=B):
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(batch, length, D)).astype(dtype)
  table = rng.normal(size=(ROWS, D)).astype(dtype)
  targets = rng.integers(IN_USE, size=(batch, length)).astype(np.int32)
  weights = (rng.random((batch, length)) * (np.arange(length) != 2)).astype(np.float32)
  return hidden, table, targets, weights


@jax.jit
@partial(jax.value_and_grad, argnums=(0, 1))
def plain(hidden, table, targets, weights):
  """The same by log_softmax of the rows in use alone, and its gradients."""
  log_probabilities = jax.nn.log_softmax(jnp.einsum("btd,rd->btr", hidden, table[:IN_USE]))
  return -(jnp.take_along_axis(log_probabilities, targets[..., None], 2)[..., 0] * weights).sum()


@jax.jit
@partial(jax.value_and_grad, argnums=(0, 1))
def ours(hidden, table, targets, weights):
  return cross_entropy(hidden, table, targets, weights, IN_USE)


@pytest.mark.parametrize(
  "length, allowed, chunks, device",
  # 7 has no divisor but itself; a GPU's chunks are 4 times as large.
  [(8, 8, 1, "cpu"), (8, 2, 4, "cpu"), (7, 4, 7, "cpu"), (8, 1, 2, "gpu")],
)
def test_cross_entropy_in_chunks(monkeypatch, length, allowed, chunks, device):
  monkeypatch.setattr(cross_entropy_module, "platform", lambda: device)
  monkeypatch.setattr(cross_entropy_module, "CHUNK_ELEMENTS", B * allowed * ROWS)
  inputs = make_inputs(length)
  made = []

  def chunk(*args):
    made.append(args[0].shape)
    return _chunk(*args)

  monkeypatch.setattr(cross_entropy_module, "_chunk", chunk)

  def scaled(hidden, table):  # a scale tests that the backward pass uses the cotangent
    return 3 * cross_entropy(hidden, table, *inputs[2:], IN_USE)

  loss, gradients = jax.jit(jax.value_and_grad(scaled, (0, 1)))(*inputs[:2])
  expected, expected_gradients = plain(*inputs)
  assert made[0] == (B, length // chunks, D)
  np.testing.assert_allclose(loss, 3 * expected, rtol=1e-6)
  for found, right in zip(gradients, expected_gradients, strict=True):
    np.testing.assert_allclose(found, 3 * right, atol=1e-5)
  # Without a gradient: another code path.
  evaluated = jax.jit(lambda x: cross_entropy(*x, IN_USE))(inputs)
  np.testing.assert_allclose(evaluated, expected, rtol=1e-6)


@pytest.mark.parametrize("data, model, chunks", [(8, 1, 4), (4, 2, 4), (1, 1, 8)])
def test_chunks_on_a_mesh(monkeypatch, data, model, chunks):
  """A chunk's size is one device's; devices exchange the table's gradient once, at the end."""
  mesh = make_mesh(MeshConfig(data=data, model=model), jax.devices()[: data * model])
  elements = 8 * T * ROWS // (data * model) // chunks
  monkeypatch.setattr(cross_entropy_module, "CHUNK_ELEMENTS", elements)
  hidden, table, targets, weights = make_inputs(batch=8)
  rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("model"))
  inputs = [
    jax.device_put(x, where)
    for x, where in ((hidden, rows), (table, whole), (targets, rows), (weights, rows))
  ]
  gradients = jax.value_and_grad(lambda *inputs: cross_entropy(*inputs, IN_USE), (0, 1))
  with jax.set_mesh(mesh):
    lowered = jax.jit(gradients).lower(*inputs)
  assert f"tensor<{chunks}x8x{T // chunks}x{D}xf32>" in lowered.as_text()
  compiled = lowered.compile()
  for computation in compiled.as_text().split("\n\n"):
    reduced = re.findall(r"= (.*?) (?:all-reduce|reduce-scatter)", computation)
    assert "ENTRY" in computation or f"f32[{ROWS // model},{D}]" not in "".join(reduced)
  (loss, found), (expected, right) = compiled(*inputs), plain(hidden, table, targets, weights)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, right)


def errors_in_bfloat16(inputs, z_loss=0.0, mesh=None):
  """(mean |error| of the loss, of the gradients; the gradients), beside float32 and plain."""

  @jax.jit
  @partial(jax.value_and_grad, argnums=(0, 1))
  def loss(hidden, table):
    return cross_entropy(hidden, table, *inputs[2:], IN_USE, z_loss)

  exact, right = loss(*inputs[:2]) if z_loss else plain(*inputs)
  with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
    total, found = loss(jnp.asarray(inputs[0], jnp.bfloat16), inputs[1])
  found = [np.asarray(x.astype(jnp.float32)) for x in found]
  distances = [np.abs(a - b).mean() for a, b in zip(found, right, strict=True)]
  return abs(float(total) - float(exact)), *distances, found


def on_a_gpu(monkeypatch):
  monkeypatch.setattr(cross_entropy_module, "platform", lambda: "gpu")


@pytest.mark.parametrize("allowed, z_loss", [(T, 0.0), (1, 0.0), (1, 0.05)])
def test_logits_in_float16_lose_no_more_than_a_table_in_bfloat16(monkeypatch, allowed, z_loss):
  """Whole and in four chunks; rows that are no token have no gradient."""
  monkeypatch.setattr(cross_entropy_module, "_GPU_CHUNKS", 1)
  monkeypatch.setattr(cross_entropy_module, "CHUNK_ELEMENTS", B * allowed * ROWS)
  inputs = make_inputs()
  inputs[0][:, 0] *= 100  # probabilities of 1, and of 0
  before = errors_in_bfloat16(inputs, z_loss)
  on_a_gpu(monkeypatch)
  after = errors_in_bfloat16(inputs, z_loss)
  assert all(0 < a < 1.05 * b for a, b in zip(after[:3], before[:3], strict=True)), (before, after)
  assert not after[3][1][IN_USE:].any()


def test_logits_in_float16_on_a_mesh(monkeypatch):
  """The table's rows are on two devices, and so the one reading of the logits."""
  inputs = make_inputs(batch=8)
  on_a_gpu(monkeypatch)
  expected = errors_in_bfloat16(inputs)[3]
  found = errors_in_bfloat16(inputs, mesh=make_mesh(MeshConfig(data=4, model=2)))[3]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-2), found, expected)


def test_an_evaluation_has_the_loss_of_training_on_a_gpu(monkeypatch):
  hidden, *rest = make_inputs()

  def loss(hidden):
    return cross_entropy(hidden.astype(jnp.bfloat16), *rest, IN_USE)

  on_a_gpu(monkeypatch)
  assert jax.jit(loss)(hidden) == jax.jit(jax.value_and_grad(loss))(hidden)[0]


@pytest.mark.parametrize(
  "dtype, half", [("bfloat16", True), ("float16", False), ("float32", False)]
)
def test_a_gpu_writes_logits_of_bfloat16_in_16_bits(monkeypatch, dtype, half):
  on_a_gpu(monkeypatch)
  monkeypatch.setattr("gpt_jax.ops.product.platform", lambda: "gpu")
  hidden, *rest = make_inputs()
  gradients = jax.jit(jax.value_and_grad(lambda *x: cross_entropy(*x, *rest[1:], IN_USE), (0, 1)))
  traced = gradients.trace(jnp.asarray(hidden, dtype), rest[0])
  program = traced.lower(lowering_platforms=("cuda",)).as_text()
  (kind,) = re.findall(rf"dot_general .*-> tensor<{B}x{T}x{ROWS}x(\w+)>", program)
  assert kind == ("f16" if half else "f32")


@pytest.mark.parametrize("allowed", [T, 2])
def test_z_loss(monkeypatch, allowed):
  """In NumPy, and its gradients by finite differences in float64; whole, and in chunks."""
  monkeypatch.setattr(cross_entropy_module, "CHUNK_ELEMENTS", B * allowed * ROWS)
  inputs, z = make_inputs(), 0.05
  hidden, table, targets, weights = (np.asarray(x, np.float64) for x in inputs)
  targets = targets.astype(int)

  def direct(hidden, table):
    scores = hidden @ table[:IN_USE].T
    log_z = np.log(np.exp(scores).sum(-1))
    right = np.take_along_axis(scores, targets[..., None], -1)[..., 0]
    return ((log_z - right + z * log_z**2) * weights).sum()

  def loss(hidden, table):
    return cross_entropy(hidden, table, *inputs[2:], IN_USE, z)

  total, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(*inputs[:2])
  np.testing.assert_allclose(total, direct(hidden, table), rtol=1e-6)
  np.testing.assert_allclose(jax.jit(loss)(*inputs[:2]), total, rtol=1e-6)  # another code path
  rng = np.random.default_rng(0)
  for _ in range(3):
    d_hidden, d_table = rng.normal(size=hidden.shape), rng.normal(size=table.shape)
    ahead, behind = (direct(hidden + e * d_hidden, table + e * d_table) for e in (1e-5, -1e-5))
    expected = (ahead - behind) / 2e-5
    found = (gradients[0] * d_hidden).sum() + (gradients[1] * d_table).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_bfloat16_gradients_keep_their_types():
  inputs = make_inputs(dtype=jnp.bfloat16)
  _, gradients = ours(*inputs)
  _, exact = plain(*(x.astype(np.float32) for x in inputs[:2]), *inputs[2:])
  for found, right in zip(gradients, map(np.asarray, exact), strict=True):
    assert found.dtype == jnp.bfloat16
    found = np.asarray(found).astype(np.float32)
    np.testing.assert_allclose(found, right, atol=0.05 * np.abs(right).max())


def numpy_cross_entropies(hidden, table, targets, in_use):
  """-log P of each target, float64, from hidden [t, D] and the table's rows that are tokens."""
  scores = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64)[:in_use].T
  return (
    np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1))
    + scores.max(-1)
    - np.take_along_axis(scores, np.asarray(targets)[:, None], -1)[:, 0]
  )


@functools.cache
def text_params():
  batch = causal_batch(np.zeros((1, 9), np.int32))
  return jax.jit(language_model(TRUNK).init)(jax.random.key(0), batch)["params"]


def test_text_loss():
  model = language_model(TRUNK)
  rows = np.random.default_rng(0).integers(0, 60, (3, 13)).astype(np.int32)
  rows[1, 6:] = -1  # a short text
  rows[2] = -1  # what fills up an evaluation batch
  batch = causal_batch(rows)
  params = text_params()
  total, metrics = jax.jit(model_loss(model))(params, batch, None)
  hidden, table, *_ = jax.jit(model.apply)({"params": params}, batch).states
  each = [
    numpy_cross_entropies(h[: n - 1], table, row[1:n], 60)
    for h, row, n in zip(hidden, rows, (13, 6, 0), strict=True)
    if n
  ]
  np.testing.assert_allclose(metrics["loss"].total, np.concatenate(each).sum(), rtol=1e-5)
  assert metrics["loss"].weight == 12 + 5
  np.testing.assert_allclose(total, np.concatenate(each).mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].value, np.concatenate(each).mean(), rtol=1e-5)


def test_z_loss_is_trained_on_and_not_evaluated():
  """A training step has a dropout key, also where no rate is above 0."""
  rates = dict.fromkeys(("residual_dropout", "attention_dropout", "embedding_dropout"), 0.0)
  trunk = dataclasses.replace(TRUNK, **rates)
  batch = causal_batch(np.random.default_rng(0).integers(0, 60, (3, 13)).astype(np.int32))
  model, with_z = language_model(trunk), ModelConfig(trunk, (LanguageHead(z_loss=0.5),)).build()
  params = text_params()
  losses = {
    (of, training): jax.jit(model_loss(of))(params, batch, step_key(0, 0) if training else None)
    for of in (model, with_z)
    for training in (True, False)
  }
  plain, measured = losses[model, True][0], losses[with_z, False][0]
  assert plain == losses[model, False][0] == measured
  hidden, table, *_ = jax.jit(model.apply)({"params": params}, batch).states
  scores = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64)[:60].T
  penalty = 0.5 * (np.log(np.exp(scores).sum(-1)) ** 2).mean()
  total, metrics = losses[with_z, True]
  np.testing.assert_allclose(total, plain + penalty, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].value, total, rtol=1e-6)


def encoded(n, c, k, seed=0, labels=None):
  """Random examples of c sequences of two fields each."""
  rng = np.random.default_rng(seed)
  texts = [rng.integers(2, 60, rng.integers(1, 9)).astype(np.int32) for _ in range(n * c * 2)]
  fields = np.arange(n * c * 2).reshape(n, c, 2)
  kept = np.array([len(text) for text in texts])[fields]
  labels = rng.dirichlet(np.ones(k), n).astype(np.float32) if labels is None else labels
  special = SpecialTokens(60)
  return Encoded(texts, fields, kept, labels, [f"x:{i}" for i in range(n)], 32, special, 0.0)


@jax.jit
def states_of_one(params, text):
  return language_model(TRUNK).apply({"params": params}, text).states


@pytest.mark.parametrize(
  "pooling, c, k, lm_weight",
  [("sum", 1, 3, 0.5), ("sum", 2, 2, 0.5), ("per_choice", 4, 4, 0.5), ("sum", 1, 3, 0.0)],
)
def test_task_loss(pooling, c, k, lm_weight):
  """Packed and summed with weights, against each sequence alone and equations 3-5."""
  examples = encoded(5, c, k)
  batch = next(iter(OrderedBatches(examples, 6)))  # one example only fills the batch
  batch.labels.distributions[5] = 1 / k  # so that only its weight keeps it out
  heads = (LanguageHead(lm_weight), ClassifyHead(num_classes=k, pooling=pooling))
  model = ModelConfig(TRUNK, heads if lm_weight else heads[1:]).build()
  rng, size = np.random.default_rng(1), k if pooling == "sum" else 1
  head = {"kernel": rng.normal(size=(16, size)) * 0.02, "bias": 0.1 * np.arange(size)}
  params = text_params() | {"head": jax.tree.map(np.float32, head)}
  total, metrics = jax.jit(model_loss(model))(params, batch, None)

  alone = functools.partial(states_of_one, text_params())
  task, text = [], []
  for n in range(5):
    extracts, means = [], []
    for i in range(c):
      ids = examples.sequence(n, i)
      row = np.zeros((1, 33), np.int32)
      row[0, : len(ids)] = ids
      hidden, table, *_ = alone(causal_batch(row))
      extracts.append(np.asarray(hidden[0, len(ids) - 1], np.float64))
      means.append(numpy_cross_entropies(hidden[0, : len(ids) - 1], table, ids[1:], 63).mean())
    kernel, bias = (np.asarray(params["head"][name], np.float64) for name in ("kernel", "bias"))
    if pooling == "sum":
      scores = sum(extracts) @ kernel + bias
    else:
      scores = np.array([(x @ kernel + bias)[0] for x in extracts])
    task.append(-(examples.labels[n] * (scores - np.log(np.exp(scores).sum()))).sum())
    text.append(np.mean(means))

  assert metrics["loss"].weight == 5
  task_loss = metrics["task_loss" if lm_weight else "loss"].value
  np.testing.assert_allclose(task_loss, np.mean(task), rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].value, total, rtol=1e-5)
  np.testing.assert_allclose(total, np.mean(task) + lm_weight * np.mean(text), rtol=1e-5)
  if lm_weight:
    np.testing.assert_allclose(metrics["lm_loss"].value, np.mean(text), rtol=1e-5)


def direct_multi_label(scores, truth, weights):
  """The mean over examples of the summed binary cross-entropies, without a stable formula."""
  p = 1 / (1 + jnp.exp(-scores))
  each = -(truth * jnp.log(p) + (1 - truth) * jnp.log(1 - p)).sum(1)
  return (each * weights).sum() / weights.sum()


def direct_regression(scores, truth, weights):
  return ((scores[:, 0] - truth[:, 0]) ** 2 * weights).sum() / weights.sum()


@pytest.mark.parametrize(
  "head, direct, truth",
  [
    (MultiLabelHead(3), direct_multi_label, [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]),
    (RegressHead(), direct_regression, [[0.5], [-2.0], [1.25], [9.0]]),
  ],
)
def test_answer_heads_against_the_direct_formula(head, direct, truth):
  """Values and gradients; the last example only fills the batch."""
  truth, weights = np.array(truth, np.float32), np.array([1, 1, 1, 0], np.float32)
  batch = Batch(None, labels=Labels(np.zeros((4, 1), np.int32), truth, weights))

  @jax.jit
  @jax.value_and_grad
  def ours(scores):
    mean = head.loss(scores, None, batch, 0)
    return mean.total / mean.weight

  scores = np.random.default_rng(1).normal(size=truth.shape).astype(np.float32)
  value, gradient = ours(scores)
  expected, of_direct = jax.jit(jax.value_and_grad(direct))(scores, truth, weights)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(gradient, of_direct, atol=1e-6)
  assert not np.asarray(gradient[3]).any() and np.asarray(gradient[:3]).all()
  # Scores at which a sigmoid is 0 or 1 in float32.
  value, gradient = ours(300 * scores)
  assert np.isfinite(value) and np.isfinite(gradient).all()
