"""Distillation from a classifier to a smaller one: its start, its teacher, resuming, refusals."""

import dataclasses

import jax
import numpy as np
import pytest
from refused import refused
from shared_trainers import one_device  # noqa: F401
from tiny_runs import NO_DROPOUT, assert_equal, entries, load_run, params_of

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.config import to_json
from gpt_jax.models.adapter import Adapter
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.regress import RegressHead
from gpt_jax.models.heads.windows import Windows, WindowsHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.programs import evaluate, finetune, predict, replay
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.start import load_start
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.adversarial import FGM
from gpt_jax.training.distillation import Distillation
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.unlabeled import Unlabeled

TRUNK = TransformerConfig(context=48, layers=2, width=32, heads=2, norm="pre", **NO_DROPOUT)
CONFIG = FinetuneConfig(
  task=TableTask(),
  batch_size=16,
  lm_weight=0.0,
  methods=(Distillation(labels=0.0), Unlabeled()),  # the teacher's parameters are random
  train_examples=48,
  optim=OptimConfig(learning_rate=0.02, schedule="linear", warmup_steps=4),
  train=TrainConfig(epochs=3, log_every=1),
)


@pytest.fixture(scope="module")
def teacher_of(tmp_path_factory, make_run, tiny_tokenizer, animals):
  """teacher_of(head, labels, **trunk): the folder of a classifier with random parameters."""

  def make(head=ClassifyHead(2, dropout=0.0), labels=("cat", "dog"), **trunk):  # noqa: B008
    sizes = dataclasses.replace(TRUNK, **trunk).with_vocabulary(tiny_tokenizer)
    task = dataclasses.replace(TableTask().with_labels(animals), labels=labels)
    meta = {
      "task": to_json(task),
      "trained_special": list(tiny_tokenizer.special.names),
      "sequence_format": {"type": "gpt_format" if head else "text_to_text"},
    }
    folder = tmp_path_factory.mktemp("teacher") / "run"
    return make_run(folder, ModelConfig(sizes, (head,) if head else ()), **meta)

  return make


@pytest.fixture(scope="module")
def teacher(teacher_of):
  return teacher_of()


@pytest.fixture(scope="module")
def run(teacher, animals, tmp_path_factory):
  """The folder of a run and its result."""
  workdir = str(tmp_path_factory.mktemp("student") / "run")
  (result,) = finetune.run(CONFIG, animals, teacher, workdir)
  return workdir, result


@pytest.mark.e2e
def test_a_student_comes_closer_to_its_teacher_and_is_a_classifier(run, animals, tmp_path):
  workdir, result = run
  steps = [line for line in entries(workdir) if "teacher_loss" in line]
  assert len(steps) == 24  # rows without labels count as the others do
  for name in ("teacher_loss", "hidden_loss"):
    first, last = ([line[name] for line in part] for part in (steps[:3], steps[-3:]))
    assert np.mean(last) < 0.7 * np.mean(first)
  saved, meta, _ = restore_params(f"{workdir}/best")
  assert set(saved) == {"trunk", "head"} and meta["model"]["trunk"]["layers"] == 1
  assert evaluate.run(f"{workdir}/best", animals)["accuracy"] == result["best"]["dev_accuracy"]
  out = str(tmp_path / "out.tsv")
  rows = predict.run(f"{workdir}/best", f"{animals}/dev.tsv", out, weights="int8")
  assert len(rows) == 30
  refused("has a teacher, which no checkpoint", replay.run, workdir, 24, animals)


@pytest.mark.e2e
def test_a_run_that_ends_early_goes_on_to_the_bit(run, teacher, animals, tmp_path):
  workdir = str(tmp_path / "run")
  finetune.run(CONFIG, animals, teacher, workdir, pauses=lambda step: step == 5)
  (result,) = finetune.run(CONFIG, animals, teacher, workdir)
  assert result["dev"] == run[1]["dev"]
  assert_equal(*(params_of(f"{folder}/checkpoints/24") for folder in (run[0], workdir)))


@pytest.mark.e2e
def test_a_student_begins_as_blocks_of_its_teacher_who_does_not_change(teacher, animals):
  start, _, task, data, recipe = load_run(CONFIG, teacher, animals)
  recipe = finetune.with_evaluation(recipe, task, data, start, animals, None)
  trainer, theirs = make_trainer(recipe), load_model(teacher).params
  state = recipe.start(trainer.init(0), trainer)
  first = jax.device_get(state.params)
  trunk, of_teacher = first["trunk"], theirs["trunk"]
  assert set(trunk) == {"tokens", "positions", "block_0", "last_norm"}
  pairs = [
    (trunk["block_0"], of_teacher["block_1"]),
    (trunk["last_norm"], of_teacher["last_norm"]),
    (trunk["positions"], of_teacher["positions"]),
    (first["head"], theirs["head"]),
    (jax.device_get(state.base), theirs),
  ]
  for got, want in pairs:
    assert_equal(got, want)
  count = len(start.tokenizer.special.names) + start.trunk.vocab_size
  np.testing.assert_array_equal(trunk["tokens"][:count], of_teacher["tokens"][:count])
  batches = recipe.batches(recipe.config.train)
  for step in range(2):  # the first has a rate of 0
    state, _ = trainer.step(state, trainer.to_device(batches.at(step)), 0)
  assert_equal(jax.device_get(state.base), theirs)
  assert np.any(np.asarray(state.params["head"]["kernel"]) != theirs["head"]["kernel"])


def test_further_texts_are_read_from_a_file_without_labels(teacher, animals, tmp_path):
  path = tmp_path / "texts.csv"
  config = CONFIG.with_methods(Unlabeled(str(path)))
  start = load_start(config, teacher, "")
  path.write_text('id,text\n1,the cat sat\n2,"the dog, asleep"\n')
  for labeled, rest in ((48, 80 + 2), (0, 2)):  # of 128 rows; 0: all
    few = dataclasses.replace(config, train_examples=labeled)
    train_set = load_task(few, animals, start)[2]["train"]
    assert (len(train_set), train_set.unlabeled) == (128 + 2, rest)
    assert train_set.locations[-2:] == [f"{path}:2", f"{path}:3"]
    assert train_set.strings[train_set.fields[-1, 0, 0]] == "the dog, asleep"
    assert train_set.labels[:-rest].sum(axis=1).all() and not train_set.labels[-rest:].any()
  for content, message in [
    ("id,words\n1,the cat\n", "texts.csv: no column 'text' .*the columns are 'id', 'words'"),
    ("id,text\n1,the cat\n2,\n", "texts.csv:3: column 'text' is empty"),
    ("text\n", "unlabeled.file=.*texts.csv: no rows; it should have some"),
    ("", "texts.csv: empty; the first line should name the columns"),
  ]:
    path.write_text(content)
    refused(message, load_task, config, animals, start)
  path.unlink()
  refused("texts.csv: No such file", load_task, config, animals, start)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"methods": (Distillation(3),)}, "distill.layers=3: the teacher has 2 blocks"),
    ({"methods": (Distillation(), Adapter())}, "adapter: does not go with distill"),
    ({"methods": (Distillation(), FGM())}, "adversarial: does not go with distill"),
    ({"methods": (Distillation(), Windows())}, "windows: does not go with distill"),
    ({"pooling": "mean"}, "pooling: does not go with distill"),
    ({"lm_weight": 0.5}, "lm_weight=0.5: distill has no auxiliary loss"),
    ({"mesh": MeshConfig(backend="pmap")}, "distill: needs mesh.model=1 and mesh.backend=jit"),
    ({"task": TableTask(folds=2)}, "folds: the teacher has read the rows"),
  ],
)
def test_options_that_do_not_go_with_distillation(changes, message, teacher, animals, tmp_path):
  config = dataclasses.replace(CONFIG, **changes)
  refused(message, finetune.run, config, animals, teacher, str(tmp_path / "run"))


def test_what_cannot_teach_is_refused(teacher_of, make_run, tiny_tokenizer, animals, tmp_path):
  windowed = WindowsHead(ClassifyHead(2))
  language = make_run(tmp_path / "lm", ModelConfig(TRUNK.with_vocabulary(tiny_tokenizer)))
  for checkpoint, message in [
    ("none", "checkpoint=none: distill needs a teacher"),
    (language, "must be fine-tuned to give each example one label; this is a language model"),
    (teacher_of(RegressHead()), "must be fine-tuned .*; this is a model of table"),
    (teacher_of(None), "must be fine-tuned .*; this is a model of table that writes its labels"),
    (teacher_of(windowed), "the teacher reads windows or bare texts, the student would not"),
    (
      teacher_of(shared_layers=True),
      "takes blocks of a transformer, of which each has its parameters",
    ),
    (teacher_of(labels=("cat", "cow")), "the teacher's labels are cat, cow; those of .* cat, dog"),
  ]:
    refused(message, finetune.run, CONFIG, animals, checkpoint, str(tmp_path / "run"))
