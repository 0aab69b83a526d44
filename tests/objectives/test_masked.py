"""Masked language modeling: short texts, and a run with its head; test_masking.py has the rules."""

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


def test_shares_of_short_texts_are_of_their_length(tiny_tokenizer):
  rows = np.random.default_rng(0).integers(250, size=(4, 129)).astype(np.int32)
  rows[1, 20:], rows[2, 2:], rows[3] = -1, -1, -1
  bound = Masked().bind(tiny_tokenizer.with_special("mask"), 128)
  batch = bound(rows, Draw(0, 0, np.arange(4)))
  used, at = batch.predictions.weights > 0, batch.predictions.at
  assert used.sum(axis=1).tolist() == [19, 3, 1, 0]
  assert (at[1][used[1]] < 20).all() and (at[2][used[2]] < 2).all()
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
