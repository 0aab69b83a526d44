"""Cross-view training from a command to tags: two streams, resumed, on any number of devices."""

import dataclasses

import jax
import numpy as np
import pytest
from refused import refused
from shared_trainers import shared_trainers
from tiny_runs import entries, load_run, states

from gpt_jax.apps.report.record import Record
from gpt_jax.models.heads.mix import MixedHead
from gpt_jax.models.heads.views import VIEWS, ViewsHead
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import smallest_batch
from gpt_jax.programs import finetune, predict, replay
from gpt_jax.programs.finetune import FinetuneConfig, finetune_recipe
from gpt_jax.tasks.several import SeveralTasks
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.adversarial import VirtualAdversarial
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.unlabeled import Unlabeled, draw_order

CONFIG = FinetuneConfig(
  task=BuiltinTask("story-tags"),
  lm_weight=0.0,
  methods=(ViewsHead(units=16, dropout=0.2), Unlabeled()),
  train_examples=24,
  dev_examples=32,
  batch_size=8,
  trunk=LSTMStackConfig(
    context=96,
    embedding_width=16,
    units=(16, 16),
    directions="joined",
    tied=False,
    recurrent_dropout=0.0,
  ),
  optim=OptimConfig(learning_rate=0.02, schedule="constant", warmup_steps=2, average=0.9),
  train=TrainConfig(steps=24, log_every=1, evaluate_every=12),
)


@pytest.fixture(scope="module")
def tokenizer(prepared):
  return f"{prepared}/tokenizer"


# Tags of words and a class of a text, which one trunk learns.
SEVERAL = dataclasses.replace(
  CONFIG, task=SeveralTasks((BuiltinTask("story-tags"), BuiltinTask("story-ending")))
)


@shared_trainers(devices=2)
@pytest.mark.slow
def test_from_several_tasks_to_the_model_of_each(tokenizer, tmp_path):
  workdir = str(tmp_path / "run")
  (result,) = finetune.run(SEVERAL, "", "none", workdir, tokenizer=tokenizer)
  streams = ["story-tags_loss", "story-ending_loss", "unlabeled_loss"]
  lines = [line for line in entries(workdir) if "loss" in line]
  seen = [[name in line for name in streams].index(True) for line in lines]
  assert seen == draw_order([24, 24], 24, 0, True).tolist()
  assert Record(workdir).steps_per_epoch == 2 * (2 * 24 // 8)  # as many without labels
  best = result["best"]
  means = [best[f"dev_story-{task}_accuracy"] for task in ("tags", "ending")]
  assert best["dev_mean"] == pytest.approx(np.mean(means))
  assert replay.run(workdir, 24, "")["equal"]
  # A run that ends early and goes on.
  again = str(tmp_path / "again")
  pauses = {"pauses": lambda step: step == 7, "tokenizer": tokenizer}
  finetune.run(SEVERAL, "", "none", again, **pauses)
  assert finetune.run(SEVERAL, "", "none", again, tokenizer=tokenizer) == [result]
  texts, out = str(tmp_path / "texts.txt"), str(tmp_path / "tags.tsv")
  (tmp_path / "texts.txt").write_text("Anna was at the pier.\n")
  (row,) = predict.run(f"{workdir}/tasks/story-tags", texts, out)
  assert len(row["prediction"].split()) == 5
  message = r"a model of the tasks story-tags,story-ending; use that"
  refused(message, predict.run, f"{workdir}/best", texts, str(tmp_path / "none.tsv"))


@pytest.mark.slow
def test_a_head_learns_from_batches_of_its_task_and_from_those_without_labels(tokenizer):
  recipe = load_run(SEVERAL, "none", "", tokenizer).recipe
  model, batches = recipe.spec.build(), recipe.batches(recipe.config.train)
  loss = recipe.loss(model)
  params = jax.jit(model.init)(jax.random.key(0), smallest_batch(recipe.spec))["params"]
  gradient = jax.jit(jax.grad(lambda params, turn: loss(params, turn, None)[0]))
  moved = {}
  for step in range(8):
    turn = batches.at(step)
    of_heads = {}
    for scope, grads in gradient(params, turn).items():
      moving = {path[0].key for path, x in jax.tree.leaves_with_path(grads) if np.any(x)}
      of_heads[scope] = {name.split("_")[0] for name in moving}
    assert of_heads.pop("trunk")
    moved[turn.stream] = of_heads
  assert moved == {
    0: {"story-tags": {"primary"}, "story-ending": set()},
    1: {"story-tags": set(), "story-ending": {"primary"}},
    2: {"story-tags": set(VIEWS), "story-ending": set(VIEWS)},
  }


def test_tasks_that_do_not_go_together_are_refused(tokenizer, tmp_path):
  tags, ending = SEVERAL.task.tasks
  for wrong, message in [
    ({"task": SeveralTasks((tags, tags))}, "two or more, and each once"),
    ({"task": SeveralTasks((tags, BuiltinTask("story-doing")))}, "should read a single text"),
    ({"methods": ()}, "have a head with views each"),
    ({"lm_weight": 0.5}, "are for one task"),
    ({"methods": (ViewsHead(), Unlabeled("texts.tsv"))}, "are for one task"),
  ]:
    config = dataclasses.replace(SEVERAL, **wrong)
    refused(message, finetune.run, config, "", "none", str(tmp_path / "run"), tokenizer=tokenizer)


@pytest.mark.slow
def test_masks_and_batches_are_the_same_on_any_number_of_devices(tokenizer):
  """Steps of every stream with dropout, rows split over 1, 2 and 4 devices as over hosts."""
  start, config, task, data, _ = load_run(SEVERAL, "none", "", tokenizer)
  ends = []
  for devices in (1, 2, 4):
    recipe = finetune_recipe(config, task, data["train"], start, jax.devices()[:devices])
    *_, (state, _) = states(recipe, 7)  # the first of story-tags is the last of these
    ends.append(jax.tree.map(np.asarray, state.params))
  for other in ends[1:]:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), ends[0], other)


def test_views_learn_from_the_texts_of_a_file(tokenizer, tmp_path):
  path = tmp_path / "texts.tsv"
  path.write_text("text\n" + "Anna was at the pier.\n" * 8)
  config = dataclasses.replace(CONFIG, train_examples=0).with_methods(Unlabeled(str(path)))
  _, config, _, data, recipe = load_run(config, "none", "", tokenizer)
  batches = recipe.batches(config.train)
  assert (len(data["train"]), data["train"].unlabeled) == (320 + 8, 8)
  turns = [batches.at(step) for step in range(2)]
  assert [turn.stream for turn in turns] == [0, 1]
  assert turns[1].batch.tags.weights.sum() == 8 * 5  # words, at which views and teacher compare
  read = {*turns[1].batch.rows.inputs.flat} - {0}
  assert read == {*data["train"].sequence(327, 0)} < {*turns[0].batch.rows.inputs.flat}


def test_the_rows_of_an_epoch_that_no_batch_has(tokenizer, tmp_path, capfd):
  path = tmp_path / "texts.tsv"
  path.write_text("day\n" + "Anna was at the pier.\n" * 4)
  config = dataclasses.replace(CONFIG, task=BuiltinTask("story-ending"), train_examples=0)
  left = "4 of 324 training examples are left out of each epoch"
  for method, told in ((VirtualAdversarial(), left), (ViewsHead(units=16), "")):
    methods = method, Unlabeled(str(path))
    load_run(dataclasses.replace(config, methods=methods), "none", "", tokenizer)
    log = capfd.readouterr().err
    assert told in log and ("left out" in log) == bool(told)


def test_unlabeled_examples_that_nothing_learns_from_are_refused(tokenizer, tmp_path):
  for wrong, message in (
    ({"methods": (MixedHead(), Unlabeled())}, "unlabeled: needs train_examples above 0"),
    ({"train_examples": 400}, "unlabeled: all 320 training examples have labels; set a smaller"),
  ):
    config = dataclasses.replace(CONFIG, **wrong)
    refused(message, finetune.run, config, "", "none", str(tmp_path / "run"), tokenizer=tokenizer)
