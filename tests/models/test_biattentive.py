"""The biattentive classification network against a NumPy transcription, of a text and of a pair."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy_lstm import numpy_lstm
from numpy_transformer import random_params

from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.biattentive import CHANNELS, BiattentiveHead
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.ops.dropout import step_key

U, K = 3, 4
TRUNK = LSTMEncoderDecoderConfig(
  60, 32, embedding_width=5, layers=2, units=4, residual_dropout=0.0, decoder=False
)
HEAD = BiattentiveHead(units=U, reduction=2, dropout=0.3, head=ClassifyHead(K))
RNG = np.random.default_rng(0)
# A pair and a text in the first row, a text in the second.
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0, 0], [3, 3, 3, 3, 0, 0, 0, 0, 0, 0]], np.int32)
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0, 0], [0, 1, 2, 3, 0, 0, 0, 0, 0, 0]], np.int32)
TYPES = np.array([[0, 0, 0, 1, 1, 0, 0, 0, 0, 0], [0] * 10], np.int32)
IDS = RNG.integers(0, 60, SEGMENTS.shape).astype(np.int32)
TEXTS = [((0, 0, 3), (0, 3, 5)), ((0, 5, 8),) * 2, ((1, 0, 4),) * 2]
LABELS = Labels(
  np.array([[0], [5], [10]], np.int32), np.eye(K, dtype=np.float32)[:3], np.ones(3, np.float32)
)
BATCH = Batch(Rows(IDS, POSITIONS, SEGMENTS, TYPES), labels=LABELS)


@pytest.fixture(scope="module")
def built():
  spec = ModelConfig(TRUNK, (HEAD,), "bidirectional")
  return spec.build(), random_params(spec)


def softmax(x):
  return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def lstm(params, x):
  """Both directions over a text [T, I]: [T, 2 U]."""
  forward, backward = numpy_lstm(params["forward"], x), numpy_lstm(params["backward"], x[::-1])
  return np.concatenate([forward[0], backward[0][::-1]], -1)


def transcribed(params, x, y):
  """McCann et al. 2017, equations 6 to 11, with layer norm; x and y are [t, E + D]."""
  read = [lstm(params["read"], np.maximum(affine(params["dense"], z), 0)) for z in (x, y)]
  affinity = read[0] @ read[1].T
  contexts = softmax(affinity) @ read[1], softmax(affinity.T) @ read[0]
  pools = []
  for z, context in zip(read, contexts, strict=True):
    z = lstm(params["integrate"], np.concatenate([z, z - context, z * context], -1))
    shares = softmax(affine(params["pool"], z)[:, 0])
    pools += [z.max(0), z.mean(0), z.min(0), shares @ z]
  x = np.concatenate(pools)
  for i in range(3):
    norm = params[f"norm_{i}"]
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * norm["scale"] + norm["bias"]
    x = affine(params[f"maxout_{i}"], x).max(-1)
  return x


def affine(params, x):
  return np.tensordot(x, params["kernel"], 1) + params["bias"]


def test_against_numpy(built):
  model, params = built
  scores, loss = jax.jit(
    lambda p: (model.apply({"params": p}, BATCH).heads[0], model_loss(model)(p, BATCH, None)[0])
  )(params)
  tree = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  head = tree["head"]
  assert [head[f"maxout_{i}"]["kernel"].shape for i in range(3)] == [
    (48, 24, CHANNELS), (24, 12, CHANNELS), (12, K, CHANNELS)
  ]  # fmt: skip

  def features(row, begin, end):
    embedded = h = tree["trunk"]["tokens"][IDS[row, begin:end]]
    for number in range(2):
      h = lstm(tree["trunk"]["encoder"][f"block_{number}"], h)
    return np.concatenate([embedded, h], -1)

  wanted = np.array([transcribed(head, *(features(*text) for text in texts)) for texts in TEXTS])
  np.testing.assert_allclose(scores, wanted, atol=2e-5)
  log_probs = np.log(softmax(wanted))
  assert loss == pytest.approx(-log_probs[np.arange(3), np.arange(3)].mean(), rel=1e-5)


def test_every_parameter_of_the_head_learns_with_dropout(built):
  model, params = built

  @jax.jit
  def gradient(params, key):
    return jax.grad(lambda p: model_loss(model)(p, BATCH, key)[0])(params)["head"]

  gradients = gradient(params, step_key(0, 0))
  for name, part in gradients.items():
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(part)), name
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(part)), name
  other = gradient(params, step_key(0, 1))
  assert not np.array_equal(gradients["dense"]["kernel"], other["dense"]["kernel"])


def test_classes_in_another_order(built):
  model, params = built
  order = np.array([2, 0, 3, 1])
  other = {**params, "head": HEAD.with_classes(params["head"], order)}
  scores = jax.jit(lambda params: model.apply({"params": params}, BATCH).heads[0])
  np.testing.assert_allclose(scores(other), scores(params)[:, order], rtol=1e-6)


def test_settings_that_do_not_fit():
  assert from_json(to_json(HEAD)) == HEAD
  for head in (TagHead(K), ClassifyHead(K, "per_choice")):
    with pytest.raises(InputError, match="mix: BiattentiveHead gives one label per text"):
      ModelConfig(TRUNK, (dataclasses.replace(HEAD, head=head),), "bidirectional")
  with pytest.raises(InputError, match=r"mix\.reduction=99: with mix\.units=3, at most 24"):
    ModelConfig(TRUNK, (dataclasses.replace(HEAD, reduction=99),), "bidirectional")
