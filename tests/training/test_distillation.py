"""The loss of a student against NumPy, its shares, and what it begins as."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import BASE
from gpt_jax.ops.dropout import step_key
from gpt_jax.training.distillation import Distillation, DistillationLoss, TaughtModel, taught_layers

NO_DROPOUT = {"residual_dropout": 0, "attention_dropout": 0, "embedding_dropout": 0}
KEY = step_key(0, 0)
CONFIG = Distillation(temperature=3.0, labels=0.3, hidden=0.7)


def model_of(layers, **rates):
  trunk = TransformerConfig(60, context=32, layers=layers, width=16, heads=2, **NO_DROPOUT | rates)
  return ModelConfig(trunk, (ClassifyHead(num_classes=3, dropout=0.0),)).build()


# The teacher's dropout must be off, whatever its config says.
MODEL = TaughtModel(model_of(2), model_of(4, residual_dropout=0.5))
LOSS = DistillationLoss(CONFIG, MODEL)


@pytest.fixture(scope="module")
def batch():
  """Two rows of two examples each, one of them without a label, and padding."""
  rng = np.random.default_rng(0)
  segments = np.array([[1, 1, 1, 2, 2, 0], [3, 3, 4, 4, 4, 4]], np.int32)
  positions = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]], np.int32)
  anchors = np.array([[2], [4], [7], [11]], np.int32)
  weights = np.array([1, 0, 1, 1], np.float32)
  labels = Labels(anchors, np.eye(3, dtype=np.float32)[[0, 0, 1, 2]], weights)
  ids = rng.integers(0, 60, segments.shape).astype(np.int32)
  return Batch(Rows(ids, positions, segments), labels=labels)


@pytest.fixture(scope="module")
def params(batch):
  shapes = jax.eval_shape(MODEL.init, jax.random.key(0), batch)["params"]
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


@jax.jit
def gradient(params, batch, denominators=None):
  loss = functools.partial(LOSS, batch=batch, key=KEY, denominators=denominators)
  return jax.value_and_grad(loss, has_aux=True)(params)


@jax.jit
def outputs(params, batch):
  students = {name: x for name, x in params.items() if name != BASE}
  return [
    model.apply({"params": given}, batch, None, layers=True)
    for model, given in ((MODEL.teacher, params[BASE]), (MODEL.student, students))
  ]


def log_softmax(x):
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def expected(params, batch):
  """The three terms in NumPy, as sums over the batch."""
  (t_states, (t,)), (s_states, (s,)) = jax.tree.map(np.float64, outputs(params, batch))
  labels = batch.labels
  of_labels = -(labels.weights * (labels.distributions * log_softmax(s)).sum(-1)).sum()
  p, q = log_softmax(t / 3), log_softmax(s / 3)
  of_teacher = 9 * (np.exp(p) * (p - q)).sum()
  of_hidden = 0.0
  for layer, taught in ((1, 2), (2, 4)):
    x, y = t_states.layers[taught], s_states.layers[layer]
    cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    of_hidden += (1 - cosine)[batch.rows.segments > 0].sum() / 2
  return of_labels, of_teacher, of_hidden


def test_the_loss_is_that_of_numpy_and_the_teacher_has_no_gradient(params, batch):
  (total, metrics), grads = gradient(params, batch)
  of_labels, of_teacher, of_hidden = expected(params, batch)
  assert metrics["task_loss"] == pytest.approx((of_labels, 3), rel=1e-4)
  assert metrics["teacher_loss"] == pytest.approx((of_teacher, 4), rel=1e-4)
  assert metrics["hidden_loss"] == pytest.approx((of_hidden, 11), rel=1e-4)
  wanted = 0.3 * of_labels / 3 + 0.7 * of_teacher / 4 + 0.7 * of_hidden / 11
  assert total == pytest.approx(wanted, rel=1e-4)
  assert metrics["loss"].value == pytest.approx(total)
  assert not any(x.any() for x in jax.tree.leaves(grads[BASE]))
  assert all(x.any() for x in jax.tree.leaves(grads["head"]))


def test_examples_without_labels_learn_from_the_teacher_alone(params, batch):
  (total, _), _ = gradient(params, batch)
  labels = batch.labels
  other = np.roll(labels.distributions[1], 1)[None]
  changed = np.concatenate([labels.distributions[:1], other, labels.distributions[2:]])
  (same, _), _ = gradient(params, batch._replace(labels=labels._replace(distributions=changed)))
  assert same == total
  none = batch._replace(labels=labels._replace(weights=np.zeros(4, np.float32)))
  (total, metrics), grads = gradient(params, none)
  _, of_teacher, of_hidden = expected(params, batch)
  assert total == pytest.approx(0.7 * of_teacher / 4 + 0.7 * of_hidden / 11, rel=1e-4)
  assert metrics["task_loss"] == (0, 0) and np.abs(grads["head"]["kernel"]).max() > 1e-4


def test_two_parts_of_a_batch_have_the_gradient_of_one(params, batch):
  whole = gradient(params, batch)
  denominators = jax.jit(LOSS.denominators)(batch)
  parts = []
  for row in range(2):
    rows = Rows(*(x[row : row + 1] for x in batch.rows[:3]))
    anchors, distributions, weights = (x[2 * row : 2 * row + 2] for x in batch.labels)
    labels = Labels(anchors - 6 * row, distributions, weights)
    parts.append(gradient(params, Batch(rows, labels=labels), denominators))
  for got, want in zip(
    jax.tree.leaves(jax.tree.map(np.add, *parts)), jax.tree.leaves(whole), strict=True
  ):
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-6)


def test_a_student_begins_as_evenly_spaced_blocks_and_the_last():
  assert [taught_layers(6, 3), taught_layers(12, 5)] == [[2, 4, 6], [2, 4, 7, 9, 12]]
  assert taught_layers(4, 4) == [1, 2, 3, 4]
  params = {"tokens": "t", "pooler": "p", **{f"block_{n}": n for n in range(6)}}
  teacher = TransformerConfig(60, layers=6)
  trunk, student = Distillation().student(teacher, {"trunk": params, "head": "h"})
  blocks = {"block_0": 1, "block_1": 3, "block_2": 5}
  assert student == {"trunk": {"tokens": "t", "pooler": "p", **blocks}, "head": "h"}
  assert trunk == TransformerConfig(60, layers=3)
