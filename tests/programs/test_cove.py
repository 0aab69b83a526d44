"""CoVe end to end: a translator's frozen encoder, read by a classifier."""

import dataclasses

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from shared_trainers import one_device  # noqa: F401

from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.models.heads.biattentive import BiattentiveHead
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs import evaluate, finetune
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.word_vectors import WordVectors, read_word_vectors

pytestmark = pytest.mark.e2e


CONFIG = {
  "lm_weight": 0.0,
  "methods": (BiattentiveHead(units=8, dropout=0.1),),
  "optim": OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
  "train": TrainConfig(epochs=6, log_every=8, keep_checkpoints=1),
}


@pytest.fixture(scope="module")
def translator(make_run, tiny_tokenizer, tmp_path_factory):
  """A checkpoint with random weights, and its model."""
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  spec = ModelConfig(LSTMEncoderDecoderConfig(tokenizer.vocab_size, 48, 8, 1, 8, special_tokens=5))
  meta = {"trained_special": ["pad", "sep"], "sequence_format": {"type": "text_to_text"}}
  folder = tmp_path_factory.mktemp("translator") / "run"
  return make_run(folder, spec, tokenizer=tokenizer, **meta), spec


def test_a_classifier_reads_the_encoder_of_a_translator(translator, make_run, finetuned, tmp_path):
  checkpoint, spec = translator
  config = dataclasses.replace(finetuned.config, **CONFIG, train_layers=0)
  (result,) = finetune.run(config, finetuned.data_dir, checkpoint, str(tmp_path / "run"))
  assert result["best"]["dev_accuracy"] > 0.9
  loaded = load_model(f"{tmp_path}/run/best")
  assert not loaded.spec.trunk.decoder and loaded.spec.attention == "bidirectional"
  measured = evaluate.run(loaded.path, finetuned.data_dir)
  assert measured["accuracy"] == result["best"]["dev_accuracy"]
  # What was frozen is what the translator had; a row of a new special token apart.
  theirs, trunk = make_run.params_of(spec, 7)["trunk"], loaded.params["trunk"]
  assert trunk.keys() == {"tokens", "encoder"}
  vocab_size = loaded.spec.trunk.vocab_size
  np.testing.assert_array_equal(trunk["tokens"][:vocab_size], theirs["tokens"][:vocab_size])
  ours, theirs = (flatten_dict(tree["encoder"], sep="/") for tree in (trunk, theirs))
  assert ours.keys() == theirs.keys()
  for name, value in ours.items():
    np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_word_vectors_stay_as_they_are(tiny_tokenizer, finetuned, tmp_path):
  tiny_tokenizer.save(str(tmp_path / "tokenizer"))
  (tmp_path / "glove.txt").write_text("the 1 2 3 4 5 6 7 8\nand 8 7 6 5 4 3 2 1\n")
  trunk = LSTMEncoderDecoderConfig(0, 48, 8, 1, 8, decoder=False)
  config = dataclasses.replace(finetuned.config, **CONFIG, trunk=trunk)
  config = config.with_methods(WordVectors(str(tmp_path / "glove.txt")))
  data, workdir = finetuned.data_dir, str(tmp_path / "run")
  finetune.run(config, data, "none", workdir, tokenizer=str(tmp_path / "tokenizer"))
  loaded = load_model(f"{workdir}/best")
  wanted = read_word_vectors(str(tmp_path / "glove.txt"), loaded.tokenizer, 8)
  np.testing.assert_array_equal(loaded.params["trunk"]["tokens"][: len(wanted)], wanted)
  with pytest.raises(InputError, match="word_vectors: is for checkpoint=none"):
    finetune.run(
      dataclasses.replace(config, trunk=finetuned.config.trunk), data, workdir, f"{workdir}2"
    )
