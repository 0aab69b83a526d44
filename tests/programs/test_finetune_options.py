"""Options of fine-tuning: the default recipe, probes and layers, class weights, early stopping."""

import dataclasses
import json
import os
import random
import types
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused
from shared_trainers import one_device_beside_finetuned, stop_in_step  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from tiny_runs import changed, load_run, params_of, same, states, write_table

import gpt_jax
from gpt_jax.apps.report import visualize
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.windows import Windows
from gpt_jax.models.known_labels import KnownLabels
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.parallel.memory import Forecast
from gpt_jax.programs import evaluate, finetune, predict
from gpt_jax.programs import finetune_evaluations as result_files
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.finetune_evaluations import warn_of_majority
from gpt_jax.programs.finetune_task import (
  balanced_weights,
  check_options,
  encode_training,
  head_of,
  parse_weights,
)
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.formats import GPTFormat, TextToText
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.hooks import is_exhausted
from gpt_jax.training.layerwise import Unfreeze
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.run import Run
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer

pytestmark = pytest.mark.e2e


@pytest.fixture
def run(finetuned, tmp_path):
  """run(workdir="run", checkpoint=…, **changes): a run of finetuned's config with these changes."""

  def finetune_changed(workdir="run", checkpoint=finetuned.pretrained, **changes):
    config = changed(finetuned.config, **changes)
    return finetune.run(config, finetuned.data_dir, checkpoint, str(tmp_path / workdir))

  return finetune_changed


def saved_config(workdir):
  with open(f"{workdir}/config.json", encoding="utf-8") as file:
    return json.load(file)["config"]


# The recipe.


class Stopped(Exception):
  """Raised instead of training."""


def stop(*_):
  raise Stopped


def test_an_open_recipe_is_chosen_told_and_resumed(run, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(Trainer, "fit", stop)
  monkeypatch.setattr(Run, "plan", lambda *_: Forecast())  # compiles
  optim = FinetuneConfig().optim
  options = {"batch_size": 64, "optim": optim, "train": TrainConfig(steps=2, log_every=1)}
  with pytest.raises(Stopped):
    run(**options)
  log = capsys.readouterr().err
  assert "learning rate 0.001 (for a model of 0.0M parameters; optim.learning_rate sets it" in log
  assert "epochs" not in log  # train.steps is set
  saved = saved_config(tmp_path / "run")["optim"]
  assert (saved["learning_rate"], saved["warmup_share"]) == (1e-3, 0.1)
  with pytest.raises(Stopped):  # it goes on
    run(**options)
  other = dataclasses.replace(optim, learning_rate=0.5)
  refused("optim.learning_rate: 0.001 != 0.5", run, **{**options, "optim": other})


def test_a_warm_up_longer_than_the_run_is_told_of(run, monkeypatch, capsys):
  monkeypatch.setattr(finetune, "Run", stop)
  for warmup, is_told in ((2, True), (1, False)):
    optim = OptimConfig(learning_rate=1e-3, schedule="linear", warmup_steps=warmup)
    with pytest.raises(Stopped):
      run(batch_size=64, optim=optim, train=TrainConfig(steps=2))
    log = capsys.readouterr().err
    assert ("warning: the warm-up of 2 updates does not end within the run of 2" in log) == is_told


def test_a_run_that_learns_is_not_suspected_and_others_are_told_what_to_try(finetuned, capsys):
  config, task = finetuned.config, finetuned.config.task.build(finetuned.data_dir)
  loaded = load_model(f"{finetuned.workdir}/seed_0")
  dev = task.encode(task.examples(finetuned.data_dir, "dev"), loaded.tokenizer, 64)
  warn_of_majority(task, dev, finetuned.results[0]["best"], config, False)
  assert "commonest" not in capsys.readouterr().err
  # A loss far above that of the labels' shares is the mark of too high a rate.
  bad = {"dev_accuracy": 0.5, "dev_loss": 9.0}
  warn_of_majority(task, dev, bad, config, False)
  assert "try a lower rate, config.optim.learning_rate=0.003, and" in capsys.readouterr().err
  # That of the labels' shares is the mark of too low a rate.
  bad["dev_loss"] = 0.69
  warn_of_majority(task, dev, bad, config, False)
  log = capsys.readouterr().err
  assert "is not above the share of the commonest label, " in log
  assert "config.optim.learning_rate=0.03, and a longer run, config.train.epochs=12" in log
  still = dataclasses.replace(config, optim=OptimConfig(learning_rate=0.0))
  warn_of_majority(task, dev, bad, still, False)  # of which a line before the run has told
  assert not capsys.readouterr().err
  barks = [x for x in task.examples(finetuned.data_dir, "dev") if x.label[0] == 1]
  one_label = task.encode(barks, loaded.tokenizer, 64)
  warn_of_majority(task, one_label, {"dev_accuracy": 1.0, "dev_loss": 0.01}, config, False)
  assert f"all {len(barks)} dev rows are barks, and cannot say" in capsys.readouterr().err
  # Another rate is no remedy for a run without pre-training, such as a comparison has.
  warn_of_majority(task, dev, bad, config, True)
  log = capsys.readouterr().err
  assert "began from random weights: fine-tune a checkpoint" in log
  assert "rate" not in log


# Layers.


def test_a_probe_equals_logistic_regression(finetuned, run, make_run, tmp_path):
  """The head alone, trained to convergence on labels that no plane separates, against
  scikit-learn's on the same features: the frozen trunk's hidden states at the anchors.
  """
  trunk = TransformerConfig(
    load_model(finetuned.pretrained).spec.trunk.vocab_size, context=32, layers=1, width=4, heads=2
  )
  source = make_run(tmp_path / "pretrained", ModelConfig(trunk))
  run(
    checkpoint=source,
    train_layers=0,
    batch_size=128,
    head_dropout=0.0,
    class_weights=("balanced",),
    optim=OptimConfig(
      learning_rate=0.3, schedule="linear", warmup_steps=0, weight_decay=0.0, clip_norm=0.0
    ),
    train=TrainConfig(steps=300, log_every=300, evaluate_every=300),
  )
  loaded = load_model(str(tmp_path / "run"))
  task = finetuned.config.task.build(finetuned.data_dir)
  encoded = task.encode(task.examples(finetuned.data_dir, "train"), loaded.tokenizer, 32)
  (batch,) = OrderedBatches(encoded, 128)
  outputs = jax.jit(loaded.model.apply)({"params": loaded.params}, batch)
  hidden = np.asarray(outputs.states.hidden).reshape(-1, 4)
  features = hidden[batch.labels.anchors[:, 0]]
  truth = encoded.labels.argmax(axis=1)
  wanted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=5000, class_weight="balanced")
  wanted.fit(features, truth)
  probabilities = wanted.predict_proba(features)
  assert 0.05 < probabilities[:, 1].std() and probabilities.max() < 0.999
  np.testing.assert_allclose(jax.nn.softmax(outputs.heads[-1]), probabilities, atol=1e-3)
  # The trunk is as it was; its dropout was off in this run alone, and no auxiliary loss is left.
  start = load_model(source)
  assert same(start.params["trunk"]["block_0"], loaded.params["trunk"]["block_0"])
  assert start.spec.trunk == loaded.spec.trunk
  assert [head.scope for head in loaded.spec.heads] == ["head"]


BOTH = ["block_0", "positions"]


@pytest.mark.parametrize(
  "epochs, expected",
  [
    (0, {1: [], 2: [], 3: BOTH[:1], 4: BOTH[:1], 5: BOTH, 6: BOTH}),
    # All after one epoch, in a second cycle, whose first update has rate 0, too.
    (1, {1: [], 2: [], 3: [], 4: BOTH, 5: BOTH, 6: BOTH}),
  ],
)
def test_unfreezing_adds_a_layer_per_epoch(finetuned, epochs, expected):
  changes = {"methods": (Unfreeze(epochs),), "train_examples": 32}
  config = changed(finetuned.config, **changes, train=TrainConfig(epochs=3))
  recipe = load_run(config, finetuned.pretrained, finetuned.data_dir).recipe
  # Two updates an epoch; the first has rate 0.
  trunks = [jax.device_get(state.params["trunk"]) for state, _ in states(recipe, 6)]
  moved = {}
  for step, trunk in enumerate(trunks[1:], start=1):
    moved[step] = [name for name in BOTH if not same(trunks[0][name], trunk[name])]
  assert moved == expected


# Class weights and label smoothing.


@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 0.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_scikit_learns_weighted_log_loss(weights, smoothing):
  rng = np.random.default_rng(0)
  truth, scores = rng.integers(3, size=40), rng.normal(size=(40, 3)).astype(np.float32)
  zeros = np.zeros((40, 1), np.int32)
  labels = Labels(zeros, np.eye(3, dtype=np.float32)[truth], (np.arange(40) < 30) * np.float32(1))
  batch = Batch(Rows(zeros, zeros), labels=labels)
  head = ClassifyHead(3, class_weights=weights, label_smoothing=smoothing)
  mean = head.loss(scores, States(None, None), batch, 0)
  probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
  examples = np.array(weights or (1, 1, 1))[truth] * (np.arange(40) < 30)
  wanted = (1 - smoothing) * log_loss(truth, probabilities, sample_weight=examples)
  for k in range(3):  # a smoothed label is every class a little
    everywhere = np.full(40, k)
    wanted += (
      smoothing / 3 * log_loss(everywhere, probabilities, sample_weight=examples, labels=[0, 1, 2])
    )
  np.testing.assert_allclose(mean.value, wanted, rtol=1e-5)
  np.testing.assert_allclose(mean.weight, head.denominator(batch))


def test_balanced_weights_are_scikit_learns():
  truth = np.array([0, 0, 0, 1, 2, 2])
  wanted = compute_class_weight("balanced", classes=np.arange(3), y=truth)
  np.testing.assert_allclose(balanced_weights(np.eye(3)[truth]), wanted)


def test_weights_of_some_labels(finetuned):
  task = finetuned.config.task.build(finetuned.data_dir)
  config = changed(finetuned.config, class_weights=("meows=3",), label_smoothing=0.1)
  start = types.SimpleNamespace(trunk=TransformerConfig(), format=GPTFormat(), teacher=None)
  head = head_of(config, task, start)
  assert (head["class_weights"], head["label_smoothing"]) == ([1.0, 3.0], 0.1)
  message = "give each example one class, not for story-next"
  refused(message, check_options, config, BuiltinTask("story-next").build(""))


def test_wrong_weights_are_refused():
  assert parse_weights(["a=0"], ("a", "b")) == (0.0, 1.0)
  refused("class_weights: all are 0", parse_weights, ["a=0", "b=0"], ("a", "b"))
  for item in ("meow=3", "meows", "meows=-1", "meows=inf", "meows=x"):
    message = "should be LABEL=WEIGHT, with one of .* barks, meows"
    refused(message, parse_weights, [item], ("barks", "meows"))


# Early stopping.


@pytest.mark.parametrize(
  "values, patience, exhausted",
  [
    ([], 1, False),
    ([0.5], 1, False),
    ([0.5, 0.5], 1, True),
    ([0.5, 0.4, 0.6], 2, False),
    ([0.5, 0.4, 0.5], 2, True),
    ([0.5, 0.6, 0.6, 0.6], 3, False),
  ],
)
def test_patience_counts_from_the_first_of_the_best(values, patience, exhausted):
  assert is_exhausted(values, patience) == exhausted


def test_a_run_stops_early_and_resumes_exactly(run, tmp_path, monkeypatch, capsys):
  """With accuracies that are given, in epochs of two steps."""
  accuracies, told = iter([]), []

  def measure(_):
    return {"dev_accuracy": next(accuracies), "dev_loss": 0.5}

  monkeypatch.setattr(finetune, "make_evaluations", lambda *_: (measure, lambda *_: None))
  monkeypatch.setattr(result_files, "warn_of_majority", lambda *given: told.append(given[2:4]))
  train = TrainConfig(epochs=20, log_every=2)
  options = {"patience": 2, "train_examples": 32, "train": train}
  accuracies = iter([0.5, 0.6, 0.6, 0.6])
  (result,) = run("whole", **options)
  assert (result["steps"], result["best"]["step"]) == (8, 4)
  assert result["dev"] == {"dev_accuracy": 0.6, "dev_loss": 0.5}
  assert "no better dev_accuracy in 2 evaluations" in capsys.readouterr().err
  assert load_model(f"{tmp_path}/whole/best").step == 4
  ((best, told_config),) = told  # compared with the majority
  assert (best, told_config.train.epochs) == (result["best"], 20)

  accuracies = iter([0.5, 0.6, 0.6, 0.6, 0.6])
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    stop_in_step(patch, 8, crash)  # within the last epoch
    run("resumed", **options)
  made = stop_in_step(monkeypatch, 0, None)
  assert run("resumed", **options) == [result]
  assert made == [7, 8]
  assert same(params_of(tmp_path / "whole"), params_of(tmp_path / "resumed"))
  # Ended between its last evaluation and its result, it trains no further.
  os.remove(tmp_path / "resumed" / "result.json")
  made.clear()
  assert run("resumed", **options) == [result]
  assert not made


def crash():
  raise KeyboardInterrupt


def test_a_head_that_needs_the_whole_batch(run, monkeypatch):
  """No task has one yet; one that is added is met at the same door as when pre-training."""
  monkeypatch.setattr(ModelConfig, "needs_whole_batch", True)
  refused("train.microbatches=2: the loss compares", run, train={"microbatches": 2})


def test_a_text_to_text_model_reads_a_draw_by_class(tmp_path):
  rows = [f"row {n}\t{'a' if n % 16 else 'b'}" for n in range(48)]
  (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]))
  tokenizer = SentencePieceTokenizer.train(["a b row 0123456789 table: text"] * 9, 280)
  tokenizer = tokenizer.with_special("pad", "sep")
  task = as_text(TableTask().build(str(tmp_path)))
  start = types.SimpleNamespace(reads=(tokenizer, 64, TextToText()))
  config = FinetuneConfig(train_examples=4)
  examples = task.examples(str(tmp_path), "train")
  drawn = encode_training(config, task, str(tmp_path), examples, start)
  assert drawn.labels.sum(axis=0).tolist() == [3, 1]


# Texts longer than the context, in windows or cut.


def write_long_texts(folder, seed):
  """Rows whose animal, which decides the label, is behind the context of 64 tokens."""
  rng = random.Random(seed)
  for split, count in (("train", 128), ("dev", 24)):
    rows = ["text\tlabel"]
    for n in range(count):
      filler = rng.choices("the sat on mat and ran to old barn".split(), k=rng.randint(60, 90))
      animal, label = (("cat", "meows"), ("dog", "barks"))[n % 2]
      rows.append(f"{' '.join([*filler, *[animal] * 20])}\t{label}")
    (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
  return str(folder)


@pytest.mark.parametrize(
  "windows",
  ["mean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("attention", ""))],
)
def test_only_windows_read_the_end_of_a_long_text(finetuned, tmp_path, capsys, recwarn, windows):
  data, workdir = write_long_texts(tmp_path, 0), str(tmp_path / "run")
  config = changed(
    finetuned.config,
    methods=(Windows(windows, 40),) if windows else (),
    pooling="mean" if windows == "mean" else "",
    lm_weight=0.0,
    optim={"learning_rate": 3e-3},
    train={"epochs": 8},
  )
  finetune.run(config, data, f"{finetuned.workdir}/seed_0", workdir)
  told = "rows are longer than the context of 64 tokens"
  capsys.readouterr()
  rows = predict.run(f"{workdir}/best", f"{data}/dev.tsv", str(tmp_path / "out.tsv"))
  measures = evaluate.run(f"{workdir}/best", data, split="dev")
  accuracy = measures["accuracy"]
  warned = [str(warning.message) for warning in recwarn if told in str(warning.message)]
  assert len(warned) == capsys.readouterr().err.count(told) == (0 if windows else 1)
  if not windows:
    assert accuracy < 0.8
    return
  assert accuracy > 0.95
  # The checkpoint knows its windows, and a text is read the same in any company.
  assert load_model(f"{workdir}/best").format.stride == 40
  model = gpt_jax.load(f"{workdir}/best", warm_up=True)
  texts = [line.split("\t")[0] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
  for text, row in zip(texts[:3], rows, strict=False):
    assert model.classify(text) == pytest.approx(row["probabilities"], abs=1e-5)
  assert model.truncated(texts[:3]) == [False] * 3
  page = f"{workdir}/best", str(tmp_path / "page.html"), texts[:1]
  refused("read in windows of 64 tokens, and the page shows one", visualize.run, *page)
  # A further fine-tuning begins with the format of a window.
  again = dataclasses.replace(config, methods=())
  finetune.run(again, data, f"{workdir}/best", str(tmp_path / "again"))
  assert load_model(str(tmp_path / "again")).format == GPTFormat()


def test_tasks_without_one_answer_a_row_are_refused(run):
  message = "windows=mean: for tasks with one answer .* story-tags"
  refused(message, run, task=BuiltinTask("story-tags"), methods=(Windows(),))


def test_a_head_keeps_what_it_knows_of_labels_and_learns_new_ones(finetuned, tmp_path):
  labels, checkpoint = ("sings", "meows", "barks"), f"{finetuned.workdir}/seed_0/best"
  data = write_table(tmp_path, [(f"the {label} {n}", label) for label in labels for n in range(8)])
  config = changed(finetuned.config, task=TableTask(labels=labels), methods=(KnownLabels(),))
  state, _ = next(states(load_run(config, checkpoint, data).recipe, 0))
  before, after = load_model(checkpoint).params, state.params
  for name, array in before["head"].items():  # of barks and meows
    np.testing.assert_array_equal(after["head"][name][..., [2, 1]], array)
  assert same(before["trunk"]["block_0"], after["trunk"]["block_0"])
  fresh = np.asarray(after["head"]["kernel"][:, 0])
  assert fresh.any() and np.std(fresh) < np.std(before["head"]["kernel"])
  wider = load_run(changed(config, pooling="concat"), checkpoint, data).recipe
  refused("known_labels: .* head reads other features", next, states(wider, 0))
  others = changed(config, task=TableTask())
  write_table(tmp_path, [("the cat", "a"), ("the dog", "b")])
  refused("checkpoint has the labels barks, meows, and none", load_run, others, checkpoint, data)


@dataclasses.dataclass
class _Recipe:
  start: Any
  spec: Any = None
  meta: Any = None

  def __post_init__(self):
    self.spec = SimpleNamespace(head=SimpleNamespace(scope="head"))
    self.meta = {"task": {"labels": ["a", "b", "c"]}}


def test_labels_in_another_order_leave_hidden_units_of_as_many_in_theirs():
  rng = np.random.default_rng(0)
  shapes = {"bias": (3,), "hidden": (4, 3), "kernel": (3, 3)}
  loaded = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  fresh = TrainState(jnp.int32(0), {"head": jax.tree.map(jnp.zeros_like, loaded)}, {})
  start = SimpleNamespace(labels=("c", "b", "a"), params={"head": loaded})
  trainer = SimpleNamespace(shardings=SimpleNamespace(params={"head": None}))
  begin = KnownLabels().recipe(_Recipe(lambda *_: fresh), start).start
  head = begin(fresh, trainer).params["head"]
  np.testing.assert_array_equal(head["hidden"], loaded["hidden"])
  for name in ("kernel", "bias"):
    np.testing.assert_array_equal(head[name], loaded[name][..., ::-1])
  start.params["head"] = {"map": loaded["kernel"]}
  fresh = fresh._replace(params={"head": start.params["head"]})
  begin = KnownLabels().recipe(_Recipe(lambda *_: fresh), start).start
  refused("known_labels: is for a linear head", begin, fresh, trainer)
