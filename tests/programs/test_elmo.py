"""Frozen trunks that a task's head reads: ELMo from text to tags, its layers mixed; CoVe, a
translator's encoder, read by a classifier.
"""

import dataclasses

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from refused import refused
from shared_trainers import one_device_beside_finetuned  # noqa: F401

from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.heads.biattentive import BiattentiveHead
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.programs import evaluate, finetune, predict, pretrain
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.word_vectors import WordVectors, read_word_vectors

SIZES = {"context": 96, "embedding_width": 16, "units": (24, 24), "projection": 16}
CHARACTERS = CharacterConfig(width=4, filters=(4, 4, 8), places=8, highways=1)
TRUNK = LSTMStackConfig(
  **SIZES, directions="separate", residual=True, characters=CHARACTERS, tied=False
)
CONFIG = PretrainConfig(
  trunk=TRUNK,
  objective=BidirectionalLM(),
  data=WindowsConfig(batch_size=8, length=16),
  optim=OptimConfig(learning_rate=0.02, warmup_steps=20, schedule="constant"),
  train=TrainConfig(steps=40, evaluate_every=40, log_every=10),
)
TAGS = FinetuneConfig(
  task=BuiltinTask("story-tags"),
  lm_weight=0.0,
  methods=(MixedHead(dropout=0.0, embedding=16, units=16),),
  train_layers=0,
  train_examples=96,
  dev_examples=32,
  optim=OptimConfig(learning_rate=0.02, schedule="linear", warmup_steps=2),
  train=TrainConfig(epochs=12, log_every=12, evaluate_every=36),
)


@pytest.mark.slow
def test_from_text_to_tags(prepared, tmp_path):
  workdir = str(tmp_path / "elmo")
  measured = pretrain.run(CONFIG, prepared, workdir)
  text = evaluate.run(workdir, prepared, "valid")
  for name in ("loss", "forward_perplexity", "backward_perplexity"):
    assert text[name] == pytest.approx(measured[f"valid_{name}"], rel=1e-4)
  assert text["forward_loss"] + text["backward_loss"] == pytest.approx(2 * text["loss"])
  assert max(text["forward_perplexity"], text["backward_perplexity"]) < 40  # of 290 pieces
  before = load_model(workdir)
  assert len(before.spec.trunk.characters.pieces) == before.tokenizer.vocab_size + 3
  # Text that it goes on with has the pieces of the checkpoint.
  start = from_checkpoint(workdir)
  further = pretrain.run(CONFIG, prepared, str(tmp_path / "further"), make_recipe=start)
  assert further["valid_loss"] < measured["valid_loss"]

  (result,) = finetune.run(TAGS, "", workdir, str(tmp_path / "tags"))
  assert result["dev"]["dev_accuracy"] > 0.5
  best = str(tmp_path / "tags" / "best")
  after = load_model(best)
  trunks = [model.params["trunk"] for model in (before, after)]
  # The new special token has a new row of the output, which nothing predicts.
  outputs = [trunk.pop("output")[: before.tokenizer.vocab_size] for trunk in trunks]
  jax.tree.map(np.testing.assert_array_equal, *trunks)
  np.testing.assert_array_equal(*outputs)
  assert np.abs(after.params["tags"]["mix"]["mixture"]).max() > 0
  (tmp_path / "texts.txt").write_text("Anna was at the pier.\n")
  (row,) = predict.run(best, str(tmp_path / "texts.txt"), str(tmp_path / "tags.tsv"))
  assert len(row["prediction"].split()) == 5


@pytest.mark.parametrize(
  "task, options, message",
  [
    ("story-ending", {"methods": (MixedHead(layer=3),)}, "mix.layer=3: the trunk has .* 0 to 1"),
    ("story-next", {"pooling": "mean"}, "pooling=mean: for tasks that give each text one class"),
    ("story-tags", {"pooling": "mean"}, "pooling=mean: for tasks that give each text one class"),
    ("story-tags", {"head_units": 5}, "head_units=5: for tasks that give each text one class"),
  ],
)
@pytest.mark.slow
def test_settings_that_do_not_fit(finetuned, tmp_path, task, options, message):
  config = FinetuneConfig(task=BuiltinTask(task), **options)
  refused(message, finetune.run, config, "", finetuned.pretrained, str(tmp_path / "run"))


COVE = {
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


@pytest.mark.slow
@pytest.mark.e2e
def test_a_classifier_reads_the_encoder_of_a_translator(translator, make_run, finetuned, tmp_path):
  checkpoint, spec = translator
  config = dataclasses.replace(finetuned.config, **COVE, train_layers=0)
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


@pytest.mark.e2e
def test_word_vectors_stay_as_they_are(tiny_tokenizer, finetuned, tmp_path):
  tiny_tokenizer.save(str(tmp_path / "tokenizer"))
  (tmp_path / "glove.txt").write_text("the 1 2 3 4 5 6 7 8\nand 8 7 6 5 4 3 2 1\n")
  trunk = LSTMEncoderDecoderConfig(0, 48, 8, 1, 8, decoder=False)
  config = dataclasses.replace(finetuned.config, **COVE, trunk=trunk)
  config = config.with_methods(WordVectors(str(tmp_path / "glove.txt")))
  data, workdir = finetuned.data_dir, str(tmp_path / "run")
  finetune.run(config, data, "none", workdir, tokenizer=str(tmp_path / "tokenizer"))
  loaded = load_model(f"{workdir}/best")
  wanted = read_word_vectors(str(tmp_path / "glove.txt"), loaded.tokenizer, 8)
  np.testing.assert_array_equal(loaded.params["trunk"]["tokens"][: len(wanted)], wanted)
  config = dataclasses.replace(config, trunk=finetuned.config.trunk)
  given = config, data, workdir, f"{workdir}2"
  refused("word_vectors: is for checkpoint=none", finetune.run, *given)
