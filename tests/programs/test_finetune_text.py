"""A span-corruption checkpoint fine-tuned on a task as text: of GPT's trunk, and of T5's."""

import csv
import dataclasses
import random
import string

import numpy as np
import pytest
from refused import refused
from shared_trainers import one_device  # noqa: F401
from tiny_runs import NO_DROPOUT, write_table

import gpt_jax
from gpt_jax.apps.label import label
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.windows import Windows
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.programs import evaluate, finetune, generate, predict, replay
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import load_start
from gpt_jax.tasks.formats import TextToText
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.adversarial import FGM
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = pytest.mark.e2e
CONFIG = FinetuneConfig(
  task=TableTask(),
  batch_size=16,
  optim=OptimConfig(learning_rate=0.01, schedule="linear", warmup_steps=4),
  # Two evaluations, near each other: both have a checkpoint.
  train=TrainConfig(epochs=8, log_every=8, evaluate_every=60, keep_checkpoints=5),
)
ANIMALS = ("cat", "dog")
TRUNKS = {
  "prefix": TransformerConfig(context=48, layers=1, width=32, heads=2, norm="pre", **NO_DROPOUT),
  "encoder_decoder": T5Config(0, 48, 1, 32, 2, 16, 64, version="1.1", residual_dropout=0.0),
}


@pytest.fixture(scope="module", params=TRUNKS)
def pretrained(request, tmp_path_factory, make_run, tiny_tokenizer):
  """As span corruption leaves it, but for what it learned."""
  objective = SpanCorruption(request.param, sentinels=6)
  tokenizer = tiny_tokenizer.with_special(*objective.special)
  trunk = TRUNKS[request.param].with_vocabulary(tokenizer)
  spec = ModelConfig(trunk, make_heads(objective.heads), objective.attention)
  meta = {"sequence_format": objective.format, "trained_special": list(objective.special)}
  folder = tmp_path_factory.mktemp("span") / "run"
  return make_run(folder, spec, tokenizer=tokenizer, **meta)


@pytest.fixture(scope="module")
def run(pretrained, animals, tmp_path_factory):
  """The folder of a fine-tuned run, and its result."""
  workdir = str(tmp_path_factory.mktemp("finetuned_text") / "run")
  (result,) = finetune.run(CONFIG, animals, pretrained, workdir)
  return workdir, result


def test_it_learns_and_answers_in_words(run, animals):
  workdir, result = run
  best = result["best"]
  assert best["dev_accuracy"] > 0.9 and best["dev_valid"] == 1
  again = evaluate.run(f"{workdir}/best", animals)
  assert again["accuracy"] == best["dev_accuracy"] and again["valid"] == 1
  prompts = ["table text: sat cat old mat", "table text: ran on dog barn"]
  assert generate.run(f"{workdir}/best", prompts, max_tokens=6, temperature=0) == ["cat", "dog"]
  assert generate.run(f"{workdir}/best", prompts, max_tokens=6, beams=3) == ["cat", "dog"]
  loaded = load_model(f"{workdir}/best")
  assert loaded.is_text_to_text and loaded.spec.head is None
  assert set(loaded.params) == {"trunk"}  # nothing new
  assert loaded.spec.heads[0].z_loss == 1e-4


def test_it_predicts_a_split_and_a_file(run, animals, tmp_path):
  workdir, result = run
  examples = load_model(f"{workdir}/best").task.examples(animals, "dev")
  truth = [ANIMALS[np.argmax(example.label)] for example in examples]
  out = tmp_path / "predictions.tsv"
  predicted = predict.run(f"{workdir}/best", output=str(out), data=animals, split="dev")
  right = [row["prediction"] == label for row, label in zip(predicted, truth, strict=True)]
  assert np.mean(right) == pytest.approx(result["best"]["dev_accuracy"])
  assert out.read_text().splitlines() == ["prediction", *(row["prediction"] for row in predicted)]
  source = tmp_path / "rows.csv"
  source.write_text("text\nsat cat old mat\n\nran on dog barn\n")
  out = tmp_path / "predictions.csv"
  with pytest.warns(UserWarning, match="1 of 3 rows has no prediction"):
    predict.run(f"{workdir}/best", str(source), str(out), keep=["all"])
  rows = list(csv.DictReader(out.open()))
  assert [row["prediction"] for row in rows] == ["cat", "", "dog"]
  assert [bool(row["problem"]) for row in rows] == [False, True, False]


def test_it_says_what_is_no_label(run):
  task = load_model(f"{run[0]}/best").task
  assert task.result("cat", np.zeros(2)) == {"prediction": "cat", "probabilities": {}}
  for written, words in (("horse", "wrote 'horse', which is no"), (None, "without an end")):
    result = task.result(written, np.zeros(2))
    assert result["prediction"] is None and words in result["problem"]


def test_it_writes_labels_in_any_order_but_in_its_own_case(pretrained, animals, monkeypatch):
  task, loaded = TableTask(columns=("text",), label="label", labels=ANIMALS), load_model(pretrained)
  loaded = dataclasses.replace(loaded, meta={**loaded.meta, "task": to_json(task)})
  monkeypatch.setattr(evaluate, "load_any", lambda _: loaded)
  written = lambda encoded, _: ["cat"] * len(encoded)
  monkeypatch.setattr(evaluate, "task_predictor", lambda *_: written)
  truth = [example.label for example in task.build("").examples(animals, "dev")]

  def measured(*labels):
    other = dataclasses.replace(task, labels=labels).build("")
    monkeypatch.setattr(evaluate, "find", lambda _: other)
    return evaluate.run(pretrained, animals, task="other")

  for labels in (ANIMALS, ANIMALS[::-1]):
    found = measured(*labels)
    assert found["accuracy"] == np.mean(truth, axis=0)[0] != 0.5 and found["valid"] == 1
  message = "--task=other: its labels are Cat, dog; those of table are cat, dog"
  refused(message, measured, "Cat", "dog")
  message = "weights=int8: is for classifiers; .* writes its answers, so leave weights out"
  refused(message, loaded.with_weights, "int8")


@pytest.mark.parametrize("pretrained", ["prefix"], indirect=True)  # T5: as quickly as it learns
def test_it_memorizes_labels_that_follow_no_rule(pretrained, tmp_path):
  """Of 32 texts, a letter each: only an example's own answer can teach it."""
  rng = random.Random(1)
  letters = (string.ascii_lowercase + string.digits)[:32]
  data = write_table(tmp_path, [(letter, rng.choice(ANIMALS)) for letter in letters])
  train = TrainConfig(epochs=120, log_every=40, evaluate_every=120)
  config = dataclasses.replace(CONFIG, batch_size=32, train=train)
  (result,) = finetune.run(config, data, pretrained, str(tmp_path / "run"))
  assert result["dev"] == {"dev_accuracy": 1, "dev_valid": 1}


def test_its_steps_replay(run, animals):
  workdir, _ = run
  first, second = sorted(replay.saved_steps(workdir))[:2]
  assert first < second
  assert replay.run(workdir, second, animals)["equal"]


def tune(run, data, folder, *methods, **changes):
  config = dataclasses.replace(CONFIG, **changes).with_methods(*methods)
  finetune.run(config, data, run, f"{folder}/run")


def tell(run, data, folder, **options):
  predict.run(run, output=f"{folder}/a.tsv", data=data, split="dev", **options)


@pytest.mark.parametrize(
  "call, message",
  [
    (lambda *given: tell(*given, threshold=0.5), r"threshold=0.5: table \(text to text\) has no"),
    (lambda run, *given: tell([run, run], *given), "text to text gives no probabilities to"),
    (lambda *given: tune(*given, train_layers=0), "train_layers=0: a text-to-text model has no"),
    (lambda *given: tune(*given, label_smoothing=0.1), "label_smoothing: for tasks that give each"),
    (lambda *given: tune(*given, FGM()), "adversarial: attacks the loss of a head for labels"),
    (lambda *given: tune(*given, Windows()), "windows=mean: a text-to-text model writes its"),
    (lambda run, data, _: evaluate.run(run, data, attack="fgm", radius=[1]), "--attack: .*writes"),
    (lambda run, data, folder: label.run(f"{data}/train.tsv", run, f"{folder}/run"), "write its"),
    (lambda run, *_: gpt_jax.load(run).log_probs("the cat"), "prefix attention|no prob"),
  ],
)
def test_what_it_does_not_do_is_one_line(run, animals, tmp_path, call, message):
  refused(message, call, f"{run[0]}/best", animals, tmp_path)


def test_an_encoder_decoder_from_scratch_reads_the_format(prepared):
  config = dataclasses.replace(CONFIG, trunk=TRUNKS["encoder_decoder"])
  start = load_start(config, "none", f"{prepared}/tokenizer")
  assert start.format == TextToText() and start.trunk.special_tokens == 5
  assert {"pad", "sep"} <= set(start.tokenizer.special)


def test_answers_outside_the_vocabulary_are_refused(pretrained, tmp_path):
  """The vocabulary has no w and no k."""
  data = write_table(tmp_path, [("the cat", "meows"), ("the dog", "barks")])
  message = "table: its answer 'barks' is no word of the vocab"
  refused(message, finetune.run, CONFIG, data, pretrained, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
