"""ELMo from text to tags: pre-trained, continued, its layers mixed by a task's head, predicted."""

import jax
import numpy as np
import pytest

from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.characters import CharacterConfig
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.programs import evaluate, finetune, predict, pretrain
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_start import from_checkpoint
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

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


@pytest.mark.e2e
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
  further = pretrain.run(
    CONFIG, prepared, str(tmp_path / "further"), make_recipe=from_checkpoint(workdir)
  )
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
    (
      "story-ending",
      {"methods": (MixedHead(layer=3),)},
      "mix.layer=3: the trunk has the layers 0 to 1",
    ),
    ("story-next", {"pooling": "mean"}, "pooling=mean: for tasks that give each text one class"),
    ("story-tags", {"pooling": "mean"}, "pooling=mean: for tasks that give each text one class"),
    ("story-tags", {"head_units": 5}, "head_units=5: for tasks that give each text one class"),
  ],
)
def test_settings_that_do_not_fit(finetuned, tmp_path, task, options, message):
  config = FinetuneConfig(task=BuiltinTask(task), **options)
  with pytest.raises(InputError, match=message):
    finetune.run(config, "", finetuned.pretrained, str(tmp_path / "run"))
