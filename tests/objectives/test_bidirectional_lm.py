"""Language models of both directions, at once or one at random: what is read and predicted, by
which side, and the loss.
"""

import dataclasses

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.batch import Rows
from gpt_jax.data.draws import Draw
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BackwardLM, BidirectionalLM, BothDirections
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.ops.dropout import step_key

LENGTH = 12
SIZES = [10, 10, 4, 1, 0]
WIDTHS = {"context": 32, "embedding_width": 8, "units": (12, 12), "projection": 8}
CHARACTERS = CharacterConfig(width=4, filters=(4, 4), places=8, highways=1)
ELMO = LSTMStackConfig(
  **WIDTHS, directions="separate", residual=True, characters=CHARACTERS, tied=False
)

DROPOUTS = [field.name for field in dataclasses.fields(ELMO) if field.name.endswith("dropout")]


def texts(vocab_size, seed=0):
  rows = np.random.default_rng(seed).integers(vocab_size, size=(len(SIZES), LENGTH - 2))
  return np.where(np.arange(LENGTH - 2) < np.array(SIZES)[:, None], rows, -1).astype(np.int32)


def bound(tokenizer, rows):
  objective = BidirectionalLM()
  assert objective.text_length(LENGTH) == rows.shape[1]
  return objective.bind(tokenizer, LENGTH)(rows, Draw(0, 0, np.arange(len(rows))))


def spec_of(tokenizer, trunk=ELMO, objective=BidirectionalLM()):  # noqa: B008
  heads = make_heads(objective.heads)
  return ModelConfig(trunk.with_vocabulary(tokenizer), heads, objective.attention)


def test_every_token_is_between_the_ends_of_its_text(tiny_tokenizer):
  rows, special = texts(tiny_tokenizer.vocab_size), tiny_tokenizer.special
  inputs, positions, segments, *_ = (batch := bound(tiny_tokenizer, rows)).rows
  for n, size in enumerate(SIZES):
    text = rows[n, :size].tolist()
    framed = [special.start, *text, special.extract] if size else []
    rest = [0] * (LENGTH - len(framed))
    assert inputs[n].tolist() == framed + rest
    assert segments[n].tolist() == [1] * len(framed) + rest
    assert batch.predictions.weights[n].tolist() == [0] + [1] * size + [0] * (LENGTH - 1 - size)
    assert batch.predictions.targets[n, 1 : size + 1].tolist() == text
  assert (positions == np.arange(LENGTH)).all()


@pytest.fixture(scope="module")
def elmo(tiny_tokenizer):
  """A model, its parameters, and a batch."""
  model = spec_of(tiny_tokenizer).build()
  batch = bound(tiny_tokenizer, texts(tiny_tokenizer.vocab_size))
  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  rng = np.random.default_rng(1)
  params = jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape, np.float32), params)
  return model, params, batch


def test_the_loss_is_half_the_sum_of_both_means(elmo, tiny_tokenizer):
  """Each direction by the state of its own neighbor, against NumPy."""
  model, params, batch = elmo
  total, metrics = jax.jit(model_loss(model))(params, batch, None)
  states = jax.jit(lambda params: model.apply({"params": params}, batch.rows, method="states"))
  hidden, table, *_ = states(params)
  losses = {"forward": [], "backward": []}
  for n, size in enumerate(SIZES):
    for t in range(1, size + 1):
      for name, state in (("forward", hidden[n, t - 1, :8]), ("backward", hidden[n, t + 1, 8:])):
        scores = np.asarray(logits(state, table, tiny_tokenizer.vocab_size), np.float64)
        target = batch.predictions.targets[n, t]
        losses[name].append(np.log(np.exp(scores).sum()) - scores[target])
  for name, values in losses.items():
    assert metrics[f"{name}_loss"].value == pytest.approx(np.mean(values), rel=1e-5)
  expected = (np.mean(losses["forward"]) + np.mean(losses["backward"])) / 2
  assert total == pytest.approx(expected, rel=1e-5)
  assert metrics["loss"].value == pytest.approx(expected, rel=1e-5)


def test_the_backward_half_by_itself(elmo, tiny_tokenizer):
  """A trunk that only reads backward, with the backward weights of one that reads both ways."""
  model, params, batch = elmo
  _, both = jax.jit(model_loss(model))(params, batch, None)
  trunk, objective = dataclasses.replace(ELMO, directions="backward"), BackwardLM(ar=2.0)
  spec = spec_of(tiny_tokenizer, trunk, objective)
  one = {**params["trunk"]}
  for name in ("block_0", "block_1"):
    one[name] = {"backward": one[name]["backward"]}
  loss = jax.jit(model_loss(spec.build()))
  params = {**params, "trunk": one}
  total, metrics = loss(params, batch, None)
  assert metrics["backward_loss"].value == pytest.approx(both["backward_loss"].value, rel=1e-5)
  assert total == metrics["backward_loss"].value and "activation_loss" not in metrics
  total, metrics = loss(params, batch, step_key(0, 0))
  regularized = metrics["backward_loss"].value + 2 * metrics["activation_loss"].value
  assert total == pytest.approx(regularized, rel=1e-5)
  forward = dataclasses.replace(trunk, directions="forward")
  refused("backward_lm needs directions=backward", spec_of, tiny_tokenizer, forward, objective)


def test_a_sample_of_the_vocabulary_in_training_alone(elmo, tiny_tokenizer):
  _, params, batch = elmo
  trunk, losses = dataclasses.replace(ELMO, **dict.fromkeys(DROPOUTS, 0.0)), []
  for samples in (0, 200):
    spec = spec_of(tiny_tokenizer, trunk, BidirectionalLM(samples))
    loss = jax.jit(model_loss(spec.build()))
    losses += [float(loss(params, batch, key)[0]) for key in (None, step_key(0, 0))]
  full, _, evaluated, sampled = losses
  assert evaluated == full
  assert sampled != full and sampled == pytest.approx(full, rel=0.1)
  message = r"objective\.samples=400: not fewer than the 290 tokens"
  refused(message, spec_of, tiny_tokenizer, trunk, BidirectionalLM(400))


def test_no_prediction_has_seen_its_token(elmo, tiny_tokenizer):
  """A loss moves with the tokens on its own side alone, the nearest one among them."""
  model, params, batch = elmo
  loss = model_loss(model)
  rows, T = (len(SIZES), LENGTH), 5
  only = np.zeros(rows, np.float32)
  only[0, T] = 1
  batch = batch._replace(predictions=batch.predictions._replace(weights=only))

  def each(inputs):
    moved = batch._replace(rows=batch.rows._replace(inputs=inputs))
    _, metrics = loss(params, moved, None)
    return metrics["forward_loss"].total, metrics["backward_loss"].total

  each, before = jax.jit(each), batch.rows.inputs
  for t in range(LENGTH):
    changed = before.copy()
    changed[0, t] = (changed[0, t] + 7) % tiny_tokenizer.vocab_size
    forward, backward = (a != b for a, b in zip(each(before), each(changed), strict=True))
    assert forward <= (t < T) and backward <= (t > T), t
    assert forward or t != T - 1
    assert backward or t != T + 1


def test_it_needs_two_directions_that_do_not_see_each_other(tiny_tokenizer):
  joined = LSTMStackConfig(units=(8, 8), embedding_width=8, directions="joined", tied=False)
  refused("reads forward, and .*that do not see each other", spec_of, tiny_tokenizer, joined)
  refused(r"data\.length=3: leaves no text", lambda: BidirectionalLM().bind(tiny_tokenizer, 3))


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
  return tiny_tokenizer.with_special(*BothDirections().special)


def texts_of(sizes, vocab_size):
  rows = np.random.default_rng(0).integers(vocab_size, size=(len(sizes), LENGTH + 1))
  return np.where(np.arange(LENGTH + 1) < np.array(sizes)[:, None], rows, -1).astype(np.int32)


def test_every_token_is_predicted_from_those_read_before_it(tokenizer):
  sizes = [LENGTH + 1] * 300 + [5] * 300 + [1, 0]
  rows = texts_of(sizes, tokenizer.vocab_size)
  batch = BothDirections().bind(tokenizer, LENGTH)(rows, Draw(0, 0, np.arange(len(rows))))
  special, markers = tokenizer.special, batch.rows.inputs[:, 0]
  is_reversed = markers == special["reversed"]
  assert set(markers.tolist()) == {special["start"], special["reversed"]}
  assert 0.4 < is_reversed.mean() < 0.6
  for n, size in enumerate(sizes):
    text = rows[n, : min(size, LENGTH)]
    text = text[::-1] if is_reversed[n] else text
    used = batch.predictions.weights[n] > 0
    assert used.tolist() == [True] * len(text) + [False] * (LENGTH - len(text))
    np.testing.assert_array_equal(batch.predictions.targets[n][used], text)
    np.testing.assert_array_equal(batch.rows.inputs[n, 1 : len(text)], text[:-1])
  assert (batch.rows.positions == np.arange(LENGTH)).all()


def test_a_token_moves_no_prediction_of_itself_or_of_what_is_read_before_it(tokenizer):
  """In forward rows those are the tokens to its left, in reversed rows those to its right."""
  objective = BothDirections()
  bound = objective.bind(tokenizer, LENGTH)
  trunk = TransformerConfig(context=LENGTH, layers=1, width=16, heads=2).with_vocabulary(tokenizer)
  model = ModelConfig(trunk, (), objective.attention).build()
  rows = texts_of([LENGTH + 1] * 8, tokenizer.vocab_size)
  draw, changed_token = Draw(0, 0, np.arange(8)), 4
  changed = rows.copy()
  changed[:, changed_token] = (rows[:, changed_token] + 1) % tokenizer.vocab_size
  before, after = bound(rows, draw).rows, bound(changed, draw).rows
  init = jax.jit(lambda rows: model.init(jax.random.key(0), rows, method="states"))
  apply = jax.jit(lambda params, rows: model.apply(params, rows, method="states").hidden)
  params = init(Rows(*before))
  states = [apply(params, rows) for rows in (before, after)]
  moved = np.any(states[0] != states[1], axis=-1)  # at the position that predicts a token
  is_reversed = before.inputs[:, 0] == tokenizer.special["reversed"]
  assert is_reversed.any() and not is_reversed.all()
  place = np.where(is_reversed, LENGTH - 1 - changed_token, changed_token)
  np.testing.assert_array_equal(moved, np.arange(LENGTH) > place[:, None])
