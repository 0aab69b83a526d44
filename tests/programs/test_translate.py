"""Translation end to end, by each kind of trunk: trained from nothing, scored, written, refused."""

import dataclasses
import random
import shutil

import pytest
from refused import refused
from shared_trainers import one_device  # noqa: F401
from tiny_runs import DICTIONARY, NO_DROPOUT, changed, entries, write_translations

import gpt_jax
from gpt_jax.apps.label import label
from gpt_jax.checkpoints.load import load_model
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.views import TranslationViews
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import evaluate, finetune, predict
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import load_start
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.tasks.task import BuiltinTask, find
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.unlabeled import Unlabeled

pytestmark = pytest.mark.e2e
pytest.importorskip("sacrebleu")

TRUNKS = {
  "gpt": TransformerConfig(context=48, layers=1, width=32, heads=2, norm="pre", **NO_DROPOUT),
  "t5": T5Config(0, 48, 1, 32, 2, 16, 64, version="1.1", residual_dropout=0.0),
  "lstm": LSTMEncoderDecoderConfig(0, 48, 64, 1, 64, residual_dropout=0.0),
}
CONFIG = FinetuneConfig(
  task=PairsTask(),
  batch_size=16,
  optim=OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
  train=TrainConfig(epochs=32, log_every=64, evaluate_every=256, keep_checkpoints=2),
)
OPTIMIZERS = {
  "gpt": CONFIG.optim,
  "t5": OptimConfig("adafactor", 0.05, "linear", warmup_steps=4, clip_norm=0.0),
  "lstm": CONFIG.optim,
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pairs")
  write_translations(folder, random.Random(0))
  return str(folder)


SYSTEMS = [
  pytest.param(name, marks=pytest.mark.slow) if name == "lstm" else name for name in TRUNKS
]


@pytest.fixture(scope="module", params=SYSTEMS)
def run(request, data_dir, tiny_tokenizer, tmp_path_factory):
  """The folder of a run from nothing, and its result."""
  folder = tmp_path_factory.mktemp(f"translate_{request.param}")
  tiny_tokenizer.save(str(folder / "tokenizer"))
  system = request.param
  config = dataclasses.replace(CONFIG, trunk=TRUNKS[system], optim=OPTIMIZERS[system])
  if system == "lstm":  # learns more slowly where to attend
    config = changed(config, train={"epochs": 56, "evaluate_every": 448})
  workdir, tokenizer = str(folder / "run"), str(folder / "tokenizer")
  (result,) = finetune.run(config, data_dir, "none", workdir, tokenizer=tokenizer)
  return workdir, result


def test_it_learns_to_translate(run, data_dir, tmp_path):
  workdir, result = run
  # Chance is about 10; of so few pairs the LSTMs learn many by heart.
  assert result["best"]["dev_bleu"] > (20 if "lstm" in workdir else 60)
  measured = evaluate.run(f"{workdir}/best", data_dir)
  assert measured["bleu"] == result["best"]["dev_bleu"]
  assert "tok:13a" in measured["bleu_signature"] and measured["examples"] == 24
  searched = evaluate.run(f"{workdir}/best", data_dir, beams=3)
  assert searched["bleu"] > measured["bleu"] - 5
  source, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
  source.write_text("cat dog mat barn\n")
  (row,) = predict.run(f"{workdir}/best", str(source), str(out), beams=3)
  assert set(row["prediction"].split()) <= set(DICTIONARY)
  spec = load_model(f"{workdir}/best").spec
  assert spec.attention == ("causal" if spec.trunk.reads_source else "prefix")


@pytest.mark.parametrize(
  "call, message",
  [
    (lambda run, data, tmp: gpt_jax.load(run).classify(["cat"]), "pairs writes translations"),
    (lambda run, data, tmp: label.run(f"{data}/train.en", run, f"{tmp}/run"), "write"),
    (lambda run, data, _: evaluate.run(run, data, attack="fgm", radius=[1]), "--attack: .*writes"),
    (lambda run, data, tmp: evaluate.run(run, data, beams=0), "beams=0: must be from 1 to 256"),
    (lambda run, data, tmp: evaluate.run(run, data, task="cola"), "those of pairs are texts"),
  ],
  ids=["classify", "label", "attack", "beams", "labels"],
)
def test_what_it_does_not_do_is_one_line(run, data_dir, tmp_path, call, message):
  refused(message, call, f"{run[0]}/best", data_dir, tmp_path)


def test_a_causal_checkpoint_goes_on_with_a_prefix(make_run, tmp_path, tiny_tokenizer):
  spec = ModelConfig(TRUNKS["gpt"].with_vocabulary(tiny_tokenizer))
  start = load_start(CONFIG, make_run(tmp_path / "run", spec), "")
  assert start.attention == "prefix" and {"pad", "sep"} <= set(start.tokenizer.special)


def test_trunks_that_cannot_write_after_a_prefix(make_run, tmp_path, tiny_tokenizer, data_dir):
  spec = ModelConfig(TRUNKS["gpt"].with_vocabulary(tiny_tokenizer), attention="bidirectional")
  checkpoint = make_run(tmp_path / "run", spec)
  message = "has bidirectional attention, and a task that is answered"
  refused(message, load_start, CONFIG, checkpoint, "")
  tiny_tokenizer.save(str(tmp_path / "tokenizer"))
  config = dataclasses.replace(CONFIG, trunk=LSTMConfig(width=32, units=32))
  new = config, data_dir, "none", str(tmp_path / "new")
  message = "an LSTM reads from left to right; prefix needs"
  refused(message, finetune.run, *new, tokenizer=str(tmp_path / "tokenizer"))


def test_beams_are_for_translations(make_run, tmp_path, tiny_tokenizer):
  refused("beams=3: is for translations; cola is a task of", find("cola").with_search, 3, 1.0)
  trunk = TransformerConfig(context=16, layers=1, width=16, heads=2)
  run = make_run(tmp_path / "run", ModelConfig(trunk.with_vocabulary(tiny_tokenizer)))
  refused("beams=3: is for translations; .*run is ", evaluate.run, run, str(tmp_path), beams=3)


@pytest.mark.slow
def test_views_learn_from_a_teachers_translations(data_dir, tiny_tokenizer, tmp_path):
  """Batches of pairs and of taught texts in turns, resumed; the model translates as any other."""
  folder = tmp_path / "data"
  shutil.copytree(data_dir, folder)
  texts = [f"{word} {other}" for word in DICTIONARY for other in DICTIONARY]
  rows = [f"{' '.join(DICTIONARY[word] for word in text.split())}\t{text}\n" for text in texts]
  (folder / "taught.tsv").write_text("de\ten\n" + "".join(rows))
  tiny_tokenizer.save(str(tmp_path / "tokenizer"))
  config = dataclasses.replace(
    CONFIG,
    task=PairsTask(unlabeled="taught.tsv"),
    trunk=TRUNKS["lstm"],
    methods=(TranslationViews(), Unlabeled()),
    train=TrainConfig(steps=6, log_every=1, evaluate_every=6),
  )
  options = {"tokenizer": str(tmp_path / "tokenizer")}
  finetune.run(config, str(folder), "none", str(tmp_path / "run"), **options)
  streams = ["labeled_loss" in line for line in entries(tmp_path / "run") if "loss" in line]
  assert streams == [True, False] * 3
  again = str(tmp_path / "again")
  finetune.run(config, str(folder), "none", again, pauses=lambda step: step == 3, **options)
  finetune.run(config, str(folder), "none", again, **options)
  assert load_model(again).identity == load_model(str(tmp_path / "run")).identity
  assert "bleu" in evaluate.run(f"{again}/best", str(folder))
  new = str(folder), "none", str(tmp_path / "none")
  wrong = dataclasses.replace(config, task=PairsTask())
  refused(r"config\.task\.unlabeled=FILE names one", finetune.run, wrong, *new, **options)
  labels = dataclasses.replace(config, task=BuiltinTask("story-tags"), trunk=TRUNKS["gpt"])
  message = "mix: is read by a translator, and story-tags is a task of"
  refused(message, finetune.run, labels, *new, **options)
