"""Masked language modeling: BERT's rule, and a run with its head."""

import numpy as np
import pytest

from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import from_json, to_json
from gpt_jax.data.draws import Draw
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.programs import evaluate, pretrain
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

ROWS, LENGTH = 64, 128


@pytest.fixture(scope="module")
def bound(tiny_tokenizer):
  """(rows, draw) -> batch, with the id of the mask and the vocabulary's size."""
  tokenizer = tiny_tokenizer.with_special("mask")
  return Masked().bind(tokenizer, LENGTH), tokenizer.special["mask"], tokenizer.vocab_size


def tokens(vocab_size, rows=ROWS):
  return np.random.default_rng(0).integers(vocab_size, size=(rows, LENGTH + 1)).astype(np.int32)


def test_the_shares_of_bert(bound):
  objective, mask_id, vocab_size = bound
  rows = tokens(vocab_size)
  batch = objective(rows, Draw(0, 0, np.arange(ROWS)))
  predictions = batch.predictions
  assert predictions.at.shape == (ROWS, round(0.15 * LENGTH))
  assert (predictions.weights == 1).all()
  assert (np.diff(predictions.at, axis=1) > 0).all()  # each position at most once
  original = np.take_along_axis(rows, predictions.at, axis=1)
  np.testing.assert_array_equal(predictions.targets, original)
  inputs = np.take_along_axis(batch.rows.inputs, predictions.at, axis=1)
  assert np.mean(inputs == mask_id) == pytest.approx(0.8, abs=0.03)
  assert np.mean(inputs == original) == pytest.approx(0.1, abs=0.03)
  changed = batch.rows.inputs != rows[:, :-1]
  assert changed.sum() == (inputs != original).sum()  # nothing else is touched
  other_step = objective(rows, Draw(0, 1, np.arange(ROWS)))
  assert (other_step.predictions.at != predictions.at).mean() > 0.5
  hits = np.bincount(predictions.at.ravel(), minlength=LENGTH)
  assert hits.std() < 2 * np.sqrt(hits.mean())  # all positions are equally likely


def test_short_texts_are_masked_by_their_length(bound):
  objective, _, vocab_size = bound
  rows = tokens(vocab_size, 4)
  rows[1, 20:], rows[2, 2:], rows[3] = -1, -1, -1
  batch = objective(rows, Draw(0, 0, np.arange(4)))
  assert batch.predictions.weights.sum(axis=1).tolist() == [19, 3, 1, 0]
  used = batch.predictions.weights > 0
  assert (batch.predictions.at[1][used[1]] < 20).all() and (
    batch.predictions.at[2][used[2]] < 2
  ).all()
  np.testing.assert_array_equal(batch.rows.segments > 0, rows[:, :-1] >= 0)


@pytest.mark.e2e
def test_a_masked_language_model_is_trained_saved_and_evaluated(prepared, tmp_path):
  config = PretrainConfig(
    trunk=TransformerConfig(context=16, layers=1, width=32, heads=2, norm="pre"),
    objective=Masked(),
    data=WindowsConfig(batch_size=8, length=16),
    optim=OptimConfig(learning_rate=1e-2, warmup_steps=20),
    train=TrainConfig(steps=40, log_every=20),
  )
  assert from_json(to_json(config)) == config
  results = pretrain.run(config, prepared, str(tmp_path / "run"))
  loaded = load_model(str(tmp_path / "run"))
  assert loaded.spec == ModelConfig(loaded.spec.trunk, (MaskedHead(),), "bidirectional")
  assert loaded.spec.trunk.special_tokens == 4 and "mask" in loaded.tokenizer.special
  again = evaluate.run(str(tmp_path / "run"), prepared)
  assert "bits_per_byte" not in again  # it assigns a text no probability
  assert again["loss"] == pytest.approx(results["valid_loss"], rel=1e-5)
  assert again["loss"] < np.log(loaded.tokenizer.vocab_size) - 1
