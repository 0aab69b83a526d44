"""Cross-view training: the views and their loss against NumPy, and what learns from them."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy_transformer import random_params
from refused import refused

from gpt_jax.batch import Batch, Labels, Rows, Tags
from gpt_jax.config import from_json, to_json
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.heads.views import VIEWS, ViewsHead
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.ops.dropout import step_key
from gpt_jax.training.unlabeled import CrossViewLoss

B, T, K, P = 2, 9, 3, 12
NO_DROPOUT = {"embedding_dropout": 0.0, "output_dropout": 0.0, "recurrent_dropout": 0.0}
SIZES = {"vocab_size": 60, "context": 32, "embedding_width": 12, "units": (12, 12)}
TRUNK = LSTMStackConfig(**SIZES, directions="joined", tied=False, **NO_DROPOUT)
TAGS = ViewsHead(head=TagHead(K, dropout=0.0), units=8, unlabeled_dropout=0.0)
CLASSES = ViewsHead(head=ClassifyHead(K, dropout=0.0), units=8, unlabeled_dropout=0.0)
# Row 0 has two texts and padding, row 1 one text; a word's first piece has a tag.
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [3] * T], np.int32)
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0], range(T)], np.int32)
STARTS = np.array([[0, 1, 0, 1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 1, 1, 1, 0]], np.float32)
TEXTS = [(0, 0, 5), (0, 5, 8), (1, 0, 9)]  # row, first, end
# Of each word that has a next one, that one's first piece.
NEXT = {(0, 1): 3, (1, 1): 2, (1, 2): 5, (1, 5): 6, (1, 6): 7}
RNG = np.random.default_rng(0)


def make_batch():
  ids = RNG.integers(0, 60, (B, T)).astype(np.int32)
  tags = Tags(np.zeros((B, T), np.int32), STARTS)
  anchors = np.array([[row * T + end - 1] for row, _, end in TEXTS], np.int32)
  labels = Labels(anchors, np.zeros((3, K), np.float32), np.ones(3, np.float32))
  return Batch(Rows(ids, POSITIONS, SEGMENTS), labels=labels, tags=tags)


def built(head):
  spec, batch = ModelConfig(TRUNK, (head,), "bidirectional"), make_batch()
  assert from_json(to_json(spec)) == spec
  return spec.build(), random_params(spec), batch


def scores_of(head, name, x):
  x = x @ head[f"{name}_hidden"]["kernel"] + head[f"{name}_hidden"]["bias"]
  x = x if name == "full" else np.maximum(x, 0)
  return x @ head[f"{name}_output"]["kernel"] + head[f"{name}_output"]["bias"]


def log_softmax(x):
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def reads_of_tags(layers):
  """view -> what it reads at each word that it predicts, a word a row."""
  everything, first = np.concatenate(layers[1:], -1), layers[1]
  words = [(row, at) for row, at in np.argwhere(STARTS)]
  reads = {name: {(r, t): everything[r, t] for r, t in words} for name in ("primary", "full")}
  reads["forward"] = {(r, t): first[r, t, :P] for r, t in words}
  reads["backward"] = {(r, t): first[r, t, P:] for r, t in words}
  reads["future"] = {(r, t): first[r, t - 1, :P] for r, t in words}
  reads["past"] = {(r, t): first[r, following, P:] for (r, t), following in NEXT.items()}
  return reads


def reads_of_texts(layers):
  everything, first = np.concatenate(layers[1:], -1), layers[1]
  reads = {name: {} for name in ("primary", *VIEWS)}
  for n, (row, begin, end) in enumerate(TEXTS):
    text = everything[row, begin:end]
    pooled = np.concatenate([text[-1], text.max(0), text.mean(0)])
    reads["primary"][n] = reads["full"][n] = pooled
    reads["forward"][n], reads["backward"][n] = first[row, end - 1, :P], first[row, begin, P:]
    half = begin + (end - begin + 1) // 2  # the first half has the middle one
    reads["future"][n], reads["past"][n] = first[row, half - 1, :P], first[row, half, P:]
  return reads


@pytest.mark.parametrize("config, reads", [(TAGS, reads_of_tags), (CLASSES, reads_of_texts)])
def test_views_and_their_loss_are_numpys(config, reads):
  """The sum over views of the mean cross-entropy with the primary head's probabilities."""
  model, params, batch = built(config)
  states = jax.jit(
    lambda params: model.apply({"params": params}, batch.rows, layers=True, method="states")
  )(params)
  of_views = reads([np.asarray(h, np.float64) for h in states.layers])
  head, expected = params[config.scope], 0.0
  for view in VIEWS:
    places = of_views[view].keys()
    teacher = [
      np.exp(log_softmax(scores_of(head, "primary", of_views["primary"][p]))) for p in places
    ]
    student = [log_softmax(scores_of(head, view, of_views[view][p])) for p in places]
    expected += -(np.array(teacher) * np.array(student)).sum() / len(places)
  # The trunk's dropout is 0 in both passes, so that there is one right value.
  quiet = model.config.with_trunk_dropout(0).build()
  loss = CrossViewLoss(quiet)
  total, metrics = jax.jit(loss)(params, batch, step_key(0, 0))
  assert total == pytest.approx(expected, rel=1e-5)
  assert metrics["loss"].value == pytest.approx(expected, rel=1e-5)


def test_classes_in_another_order():
  model, params, batch = built(CLASSES)
  order = np.roll(np.arange(K), 1)
  other = {**params, "head": CLASSES.with_classes(params["head"], order)}
  scores = jax.jit(lambda params: model.apply({"params": params}, batch).heads[0]["primary"])
  np.testing.assert_allclose(scores(other), scores(params)[:, order], rtol=1e-6)


def test_the_teacher_does_not_learn_and_drops_nothing():
  model, params, batch = built(dataclasses.replace(TAGS, unlabeled_dropout=0.3))
  loss = CrossViewLoss(model)
  gradient = jax.jit(jax.grad(lambda params, key: loss(params, batch, key)[0]))
  for_head = gradient(params, step_key(0, 0))["tags"]
  for name, part in for_head.items():
    size = max(np.abs(x).max() for x in jax.tree.leaves(part))
    assert (size == 0) == name.startswith("primary"), name
  of_trunk = gradient(params, step_key(0, 0))["trunk"]
  assert np.abs(of_trunk["block_0"]["forward"]["recur"]["kernel"]).max() > 0
  assert np.abs(of_trunk["block_1"]["backward"]["recur"]["kernel"]).max() > 0
  # Students drop: another step has another loss.
  total = jax.jit(lambda params, step: loss(params, batch, step_key(0, step))[0])
  assert abs(total(params, 0) - total(params, 1)) > 1e-3


def test_parts_of_a_batch_add_up():
  model, params, batch = built(TAGS)
  loss = CrossViewLoss(model.config.with_trunk_dropout(0).build())
  whole, _ = jax.jit(loss)(params, batch, None)
  rows = batch._replace(labels=None)
  halves = [jax.tree.map(lambda x, n=n: x[n : n + 1], rows) for n in range(B)]
  each = jax.jit(lambda part: loss(params, part, None, loss.denominators(batch)))
  parts = [each(part) for part in halves]
  assert sum(total for total, _ in parts) == pytest.approx(float(whole), rel=1e-5)
  metric = parts[0][1]["loss"] + parts[1][1]["loss"]
  assert metric.value == pytest.approx(float(whole), rel=1e-5)


def test_trunks_and_tasks_without_views_are_refused():
  forward = dataclasses.replace(TRUNK, directions="forward")
  refused("views: reads directions, and the trunk lstm_stack gives", ModelConfig, forward, (TAGS,))
  choices = ViewsHead(head=ClassifyHead(K, pooling="per_choice"))
  refused("not for choices", ModelConfig, TRUNK, (choices,), "bidirectional")
