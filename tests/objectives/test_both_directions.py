"""Both directions: what is read and predicted, the same draws on any host, and causality."""

import jax
import numpy as np
import pytest

from gpt_jax.batch import Rows
from gpt_jax.data.draws import Draw
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.bidirectional_lm import BothDirections

LENGTH = 12


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer):
  return tiny_tokenizer.with_special(*BothDirections().special)


def texts(sizes, vocab_size):
  rows = np.random.default_rng(0).integers(vocab_size, size=(len(sizes), LENGTH + 1))
  return np.where(np.arange(LENGTH + 1) < np.array(sizes)[:, None], rows, -1).astype(np.int32)


def test_every_token_is_predicted_from_those_read_before_it(tokenizer):
  sizes = [LENGTH + 1] * 300 + [5] * 300 + [1, 0]
  rows = texts(sizes, tokenizer.vocab_size)
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


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_draw_the_same_directions(tokenizer, hosts):
  bound = BothDirections().bind(tokenizer, LENGTH)
  rows = texts([LENGTH + 1] * 6 + [4, 0], tokenizer.vocab_size)
  whole = bound(rows, Draw(3, 17, np.arange(8)))
  parts = [bound(rows[n], Draw(3, 17, n)) for n in np.split(np.arange(8), hosts)]
  together = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  jax.tree.map(np.testing.assert_array_equal, together, whole)
  other_step = bound(rows, Draw(3, 18, np.arange(8)))
  assert (other_step.rows.inputs[:, 0] != whole.rows.inputs[:, 0]).any()


def test_a_token_moves_no_prediction_of_itself_or_of_what_is_read_before_it(tokenizer):
  """In forward rows those are the tokens to its left, in reversed rows those to its right."""
  objective = BothDirections()
  bound = objective.bind(tokenizer, LENGTH)
  trunk = TransformerConfig(context=LENGTH, layers=1, width=16, heads=2).with_vocabulary(tokenizer)
  model = ModelConfig(trunk, (), objective.attention).build()
  rows = texts([LENGTH + 1] * 8, tokenizer.vocab_size)
  draw, changed_token = Draw(0, 0, np.arange(8)), 4
  changed = rows.copy()
  changed[:, changed_token] = (rows[:, changed_token] + 1) % tokenizer.vocab_size
  before, after = bound(rows, draw).rows, bound(changed, draw).rows
  params = model.init(jax.random.key(0), Rows(*before), method="states")
  states = [model.apply(params, x, method="states").hidden for x in (before, after)]
  moved = (states[0] != states[1]).any(axis=-1)  # at the position that predicts a token
  is_reversed = before.inputs[:, 0] == tokenizer.special["reversed"]
  assert is_reversed.any() and not is_reversed.all()
  place = np.where(is_reversed, LENGTH - 1 - changed_token, changed_token)
  np.testing.assert_array_equal(moved, np.arange(LENGTH) > place[:, None])
