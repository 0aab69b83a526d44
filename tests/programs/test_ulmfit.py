"""ULMFiT from text to labels (Howard and Ruder 2018, section 3) on the story world: a language
model, tuned on the task's texts, and its classifier, layer by layer; both directions averaged.
"""

import dataclasses

import numpy as np
import pytest
from shared_trainers import one_device  # noqa: F401
from tiny_runs import same

from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.data import storyworld
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.objectives.bidirectional_lm import BackwardLM
from gpt_jax.objectives.causal import Causal
from gpt_jax.programs import evaluate, finetune, predict, prepare, pretrain
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain_start import LayerwiseConfig, from_checkpoint
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.layerwise import Unfreeze
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = [
  pytest.mark.e2e,
  pytest.mark.slow,
  pytest.mark.filterwarnings("ignore:(lm|backward)_loss .* is not below the unigram entropy"),
]
VOCABULARY = 380  # and a width of 16: arrays of the shapes that neighbors have
DROPOUT = dict.fromkeys(("input", "hidden", "output", "recurrent"), 0.1) | {"embedding": 0.02}
DROPOUT = {f"{name}_dropout": rate for name, rate in DROPOUT.items()}
TRUNK = LSTMStackConfig(context=96, embedding_width=16, units=(16, 16, 16), **DROPOUT)
OPTIM = OptimConfig("adamw", 0.05, "slanted_triangle", 0, 0.1, weight_decay=1e-7, b1=0.7, b2=0.99)
OBJECTIVES = {"forward": Causal(ar=2.0, tar=1.0), "backward": BackwardLM(ar=2.0, tar=1.0)}
EPOCHS, UPDATES = 12, 20  # of the classifier, and in each
CLASSIFIER = FinetuneConfig(
  task=TableTask(),
  lm_weight=0.0,
  pooling="concat",
  head_units=16,
  methods=(Unfreeze(2),),
  layer_decay=0.8,
  batch_size=16,
  optim=dataclasses.replace(OPTIM, learning_rate=0.015),
  train=TrainConfig(epochs=EPOCHS, checkpoint_every=UPDATES, keep_checkpoints=EPOCHS),
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
  """A folder of general/ and target/, as prepare writes them, and of a task's tables: whether a day
  of the story world is a woman's or a man's.
  """
  folder = tmp_path_factory.mktemp("texts")
  for split, count in (("train", 16 * UPDATES), ("dev", 64)):
    days = [text for (text,), _ in storyworld.examples(storyworld.ending, split)[:count]]
    rows = "".join(f"{day}\t{'woman' if ' She ' in day else 'man'}\n" for day in days)
    (folder / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    (folder / f"{split}.txt").write_text("\n".join(days))
  (folder / "books.txt").write_text("\n".join(storyworld.documents(size=60_000)))
  config = prepare.PrepareConfig(f"{folder}/books.txt", vocab_size=VOCABULARY, valid_share=0.1)
  prepare.run(config, f"{folder}/general")
  config = prepare.PrepareConfig(
    f"{folder}/train.txt", tokenizer=f"{folder}/general/tokenizer", valid_share=0.1
  )
  prepare.run(config, f"{folder}/target")
  return folder


def test_from_text_to_a_classifier_of_both_directions(texts, tmp_path):
  models = []
  for direction in OBJECTIVES:
    language_model, workdir = tune(texts, direction), str(tmp_path / direction)
    finetune.run(CLASSIFIER, str(texts), language_model, workdir)
    check_epochs(workdir, language_model)
    models.append(f"{workdir}/best")
  forward, backward, both = (
    women(model, texts, f"{tmp_path}/{number}.tsv")
    for number, model in enumerate((*models, models))
  )
  np.testing.assert_allclose(both, (forward + backward) / 2, atol=1e-6)
  rows = (texts / "dev.tsv").read_text().splitlines()[1:]
  truth = np.array([row.endswith("\twoman") for row in rows])
  assert np.mean((both > 0.5) == truth) > 0.7


def tune(texts, direction):
  """The folder of a language model that was trained further on the task's texts."""
  general, target = f"{texts}/lm_{direction}", f"{texts}/target_{direction}"
  config = LayerwiseConfig(
    dataclasses.replace(TRUNK, directions=direction),
    OBJECTIVES[direction],
    WindowsConfig(8, 32),
    OPTIM,
    train=TrainConfig(steps=360, log_every=120),
  )
  pretrain.run(config, f"{texts}/general", general)
  before = evaluate.run(general, f"{texts}/target")["perplexity"]
  config = dataclasses.replace(config, layer_decay=1 / 2.6)
  start = from_checkpoint(general)
  after = pretrain.run(config, f"{texts}/target", target, make_recipe=start)["valid_perplexity"]
  assert after < 0.85 * before
  return target


def check_epochs(workdir, start):
  """The head alone trains in the first epoch, the last layer too in the second, then all."""
  before, moved = parts(start), []
  for epoch in (1, 2, 3):
    after = parts(f"{workdir}/checkpoints/{epoch * UPDATES}")
    moved.append([name for name in before if not same(before[name], after[name])])
  assert moved == [[], ["block_2"], ["block_0", "block_1", "block_2", "tokens"]]


def parts(checkpoint):
  """The layers of a trunk, and its embeddings without those of special tokens."""
  trunk = restore_params(checkpoint)[0]["trunk"]
  layers = {name: trunk[name] for name in ("block_0", "block_1", "block_2")}
  return {**layers, "tokens": trunk["tokens"][:VOCABULARY]}


def women(checkpoint, texts, output):
  """The probability of a woman for each dev row, by one model or several."""
  rows = predict.run(checkpoint, output=output, data=str(texts), split="dev", calibrate=False)
  return np.array([row["probabilities"]["woman"] for row in rows])
