"""Fine-tuning end to end on tiny tasks: transfer, results, resumption, packing, devices."""

import dataclasses
import json
import os
import re
import shutil
import signal
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from shared_trainers import one_device_beside_finetuned, stop_in_step  # noqa: F401

from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified
from gpt_jax.inference.calibration import measure_calibration
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, language_model, parameter_shapes
from gpt_jax.models.predictor import make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.memory import Forecast
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import finetune, replay
from gpt_jax.programs import finetune_evaluations as evaluations
from gpt_jax.programs.config_files import override
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.finetune_evaluations import read_result, write_summary
from gpt_jax.programs.finetune_start import load_start
from gpt_jax.programs.finetune_task import load_task, model_config
from gpt_jax.programs.start import transfer
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.run import Run
from gpt_jax.training.trainer import Trainer

pytestmark = pytest.mark.e2e


def entries(workdir):
  with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def params_of(workdir):
  return restore_params(workdir)[0]


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_task_is_learned_and_reported(finetuned):
  for seed, result in enumerate(finetuned.results):
    folder = f"{finetuned.workdir}/seed_{seed}"
    assert verified(read_json(f"{folder}/result.json")) == result
    assert (result["task"], result["seed"], result["steps"]) == ("table", seed, 48)
    assert result["dev"]["dev_accuracy"] >= 0.9
    evaluated = [entry["step"] for entry in entries(folder) if "dev_accuracy" in entry]
    assert evaluated == [8, 16, 24, 32, 40, 48]
  a, b = (params_of(f"{finetuned.workdir}/seed_{seed}")["head"]["kernel"] for seed in (0, 1))
  assert not np.array_equal(a, b)


def test_the_best_epoch_is_the_first_of_equals_and_its_checkpoint_is_kept(finetuned):
  folder = f"{finetuned.workdir}/seed_0"
  accuracies = {
    entry["step"]: entry["dev_accuracy"] for entry in entries(folder) if "dev_accuracy" in entry
  }
  best = max(accuracies, key=accuracies.get)  # the first of equals
  assert set(os.listdir(f"{folder}/checkpoints")) == {str(best), "48"}  # and the last one
  reported = finetuned.results[0]["best"]
  assert (reported["step"], reported["dev_accuracy"]) == (best, accuracies[best])
  assert load_model(f"{folder}/best").step == best


def test_the_dev_set_of_the_best_checkpoint_is_reported(finetuned):
  folder = f"{finetuned.workdir}/seed_0"
  best = finetuned.results[0]["best"]
  with open(f"{folder}/dev_predictions.jsonl", encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]
  rows = [line.split("\t") for line in open(f"{finetuned.data_dir}/dev.tsv", encoding="utf-8")]
  assert [(line["where"], line["text"], line["label"]) for line in lines] == [
    (f"dev.tsv:{number}", text, label.strip())
    for number, (text, label) in enumerate(rows[1:], start=2)
  ]
  probabilities = np.array([line["probabilities"] for line in lines])
  classes = np.array([["barks", "meows"].index(line["label"]) for line in lines])
  of_truth = probabilities[np.arange(30), classes]
  assert -np.log(of_truth).mean() == pytest.approx(best["dev_loss"], rel=1e-5)
  report = verified(read_json(f"{folder}/dev_report.json"))
  assert (report["labels"], report["n"], report["step"]) == (["barks", "meows"], 30, best["step"])
  assert report["accuracy"] == best["dev_accuracy"]
  assert report["majority"] == max(np.bincount(classes)) / 30
  calibration = report["calibration"]
  assert calibration == measure_calibration(probabilities, classes)


@pytest.fixture(scope="module")
def short(finetuned, tmp_path_factory):
  """A run of two epochs, with a checkpoint of each: config, workdir, result, again(workdir)."""
  train = TrainConfig(epochs=2, log_every=8, keep_checkpoints=2)
  config = dataclasses.replace(finetuned.config, train=train)

  def again(workdir):
    return finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(workdir))

  workdir = str(tmp_path_factory.mktemp("short") / "run")
  (result,) = again(workdir)
  return SimpleNamespace(config=config, workdir=workdir, result=result, again=again)


def test_a_run_without_its_dev_report_is_finished(short, tmp_path, monkeypatch, capsys):
  def refuse(*_):
    raise InputError("needs scikit-learn")

  monkeypatch.setattr(evaluations, "write_dev_report", refuse)
  workdir = tmp_path / "run"
  shutil.copytree(short.workdir, workdir)
  for name in ("result.json", "dev_report.json"):
    os.remove(workdir / name)
  assert short.again(workdir) == [short.result]
  assert "no dev_report.json: needs scikit-learn\n" in capsys.readouterr().err
  assert (workdir / "result.json").exists() and not (workdir / "dev_report.json").exists()


def test_the_same_command_again_repeats_nothing(finetuned, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(Trainer, "fit", None)
  workdir = shutil.copytree(finetuned.workdir, tmp_path / "run")
  again = finetune.run(
    finetuned.config, finetuned.data_dir, finetuned.pretrained, str(workdir), seeds=2
  )
  assert again == finetuned.results
  log = capsys.readouterr().err
  summary = json.loads((workdir / "summary.json").read_text())
  assert (summary["seeds"], summary["degenerate"]) == ([0, 1], [])
  for stage in ("dev", "best"):
    accuracies = [result[stage]["dev_accuracy"] for result in again]
    assert summary[stage]["dev_accuracy"]["values"] == accuracies
    assert (
      f"dev_accuracy: median {np.median(accuracies):.4f}, mean {np.mean(accuracies):.4f}" in log
    )
  assert "degenerate" not in log


def test_degenerate_seeds_are_marked(short, tmp_path, capsys):
  best = {**short.result["best"], "dev_degenerate": 1}
  results = [{**short.result, "seed": 0}, {**short.result, "seed": 1, "best": best}]
  assert write_summary(results, str(tmp_path)) == results
  assert json.loads((tmp_path / "summary.json").read_text())["degenerate"] == [1]
  assert "one prediction for every example: seed 1" in capsys.readouterr().err


def test_evaluations_of_the_first_epoch_double(monkeypatch):
  monkeypatch.setattr(evaluations, "FIRST_EVALUATION", 3)
  due = evaluations.evaluation_due(0, steps_per_epoch=8)
  assert [step for step in range(1, 17) if due(step)] == [3, 6, 8, 16]
  due = evaluations.evaluation_due(5, steps_per_epoch=8)
  assert [step for step in range(1, 17) if due(step)] == [5, 10, 15]


def test_a_part_of_the_examples_is_even(finetuned, tmp_path, capsys):
  rows = [
    f"the {animal}\t{label}"
    for animal, label in (("cat", "meows"), ("dog", "barks"))
    for _ in range(50)
  ]
  for split in ("train", "dev"):
    (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
  config = dataclasses.replace(finetuned.config, train_examples=32, dev_examples=10)
  start = load_start(config, finetuned.pretrained, "")
  _, _, data = load_task(config, str(tmp_path), start)
  assert {split: len(examples) for split, examples in data.items()} == {"train": 32, "dev": 10}
  log = capsys.readouterr().err
  assert "table train: 32 examples" in log and "table dev: 10 examples" in log
  assert log.count("labels: barks 50.0%, meows 50.0%") == 2


def crash():
  raise KeyboardInterrupt


def test_interrupted_and_resumed_equals_never_interrupted(short, monkeypatch, tmp_path):
  """Killed in the second epoch, and asked to end in the last step."""
  workdir = tmp_path / "run"
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    stop_in_step(patch, 12, crash)
    short.again(workdir)
  assert not os.path.exists(workdir / "result.json")
  with monkeypatch.context() as patch, pytest.raises(SystemExit):
    made = stop_in_step(patch, 16, lambda: os.kill(os.getpid(), signal.SIGTERM))
    short.again(workdir)
  assert made == list(range(9, 17))  # from the end of the first epoch
  made = stop_in_step(monkeypatch, 0, None)
  assert short.again(workdir) == [short.result] and not made
  assert_equal(params_of(workdir), params_of(short.workdir))


def test_what_a_run_killed_after_its_last_save_left_is_removed(short, tmp_path):
  """Before its result, and before what that save made superfluous was deleted."""
  workdir = shutil.copytree(short.workdir, tmp_path / "run")
  os.remove(workdir / "result.json")
  shutil.copytree(workdir / "checkpoints" / "8", workdir / "checkpoints" / "4")
  assert short.again(workdir) == [short.result]
  assert sorted(os.listdir(workdir / "checkpoints")) == ["16", "8"]


def test_its_steps_replay(short, finetuned):
  """The last one too, which an evaluation follows."""
  assert replay.saved_steps(short.workdir) == [8, 16]
  assert replay.run(short.workdir, 16, finetuned.data_dir)["equal"]


def test_a_damaged_result_is_computed_again(short, tmp_path):
  shutil.copytree(short.workdir, tmp_path / "run")
  path = tmp_path / "run" / "result.json"
  whole = path.read_text()
  accuracy = re.search(r'"dev_accuracy": (.*?),?\n', whole)[1]
  changed = whole.replace(f'"dev_accuracy": {accuracy}', '"dev_accuracy": 0.125')
  assert changed != whole and read_result(str(tmp_path / "run")) == short.result
  for damaged in ("", whole[: len(whole) // 2], "[]", changed):
    path.write_text(damaged)
    with pytest.warns(
      UserWarning, match=r"result\.json: .*; the last checkpoint is evaluated agai"
    ):
      assert read_result(str(tmp_path / "run")) is None
  with pytest.warns(UserWarning, match=r"result\.json: .*; the last checkpoint is evaluated again"):
    assert short.again(tmp_path / "run") == [short.result]
  assert path.read_text() == whole


def test_a_missing_metrics_package_is_reported_before_training(finetuned, monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
  monkeypatch.setitem(sys.modules, "sklearn", None)
  with pytest.raises(InputError, match="scikit-learn"):
    finetune.run(finetuned.config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))
  assert not os.path.exists(tmp_path / "run")


@pytest.mark.parametrize("change", ["data", "checkpoint", "config"])
def test_another_run_in_the_same_folder_is_refused(finetuned, tmp_path, change):
  config, source, data_dir = finetuned.config, finetuned.pretrained, tmp_path
  for split in ("train", "dev"):
    text = open(f"{finetuned.data_dir}/{split}.tsv", encoding="utf-8").read()
    (tmp_path / f"{split}.tsv").write_text(
      text.replace("cat", "dog", 1) if change == "data" else text
    )
  if change == "checkpoint":  # of the same sizes, step and vocabulary
    before = load_model(source)
    source = str(tmp_path / "other")
    params = jax.tree.map(lambda x: x + 1, before.params)
    npz.save(source, params, before.meta, before.step, before.tokenizer)
  if change == "config":
    config = dataclasses.replace(config, lm_weight=0.3)
  message = {
    "data": "data train: ",
    "checkpoint": "data pretrained: ",
    "config": "lm_weight: 0.2 != 0.3",
  }[change]
  with pytest.raises(InputError, match=f"holds a run with another config .*{message}"):
    finetune.run(config, str(data_dir), source, f"{finetuned.workdir}/seed_0")


def test_a_folder_of_several_seeds_is_not_one_run(finetuned):
  before = sorted(os.listdir(finetuned.workdir))
  with pytest.raises(InputError, match="holds runs of several seeds; use another folder"):
    finetune.run(finetuned.config, finetuned.data_dir, finetuned.pretrained, finetuned.workdir)
  assert sorted(os.listdir(finetuned.workdir)) == before


TRUNKS = {
  "transformer": TransformerConfig(vocab_size=100, context=8, layers=2, width=8, heads=2),
  "pre-norm": TransformerConfig(vocab_size=100, context=8, layers=2, width=8, heads=2, norm="pre"),
  "lstm": LSTMConfig(vocab_size=100, context=8, width=8, units=8),
}


@pytest.fixture(scope="module")
def trunk_params():
  """Two draws of each trunk's parameters, as NumPy arrays without a common element."""
  ids = np.zeros((1, 4), np.int32)
  batch = Batch(Rows(ids, ids))

  def draw(trunk, offset):
    shapes = jax.eval_shape(
      lambda: language_model(trunk).init(jax.random.key(0), batch)["params"]["trunk"]
    )
    return jax.tree.map(
      lambda x: offset + np.arange(x.size, dtype=np.float32).reshape(x.shape), shapes
    )

  return {name: (draw(trunk, 0.25), draw(trunk, 0.5)) for name, trunk in TRUNKS.items()}


@pytest.mark.parametrize(
  "trunk, layers, taken",
  [
    ("transformer", -1, ()),
    ("transformer", 0, ("tokens", "positions")),
    ("transformer", 1, ("tokens", "positions", "block_0")),
    ("transformer", 2, ("tokens", "positions", "block_0", "block_1")),
    ("transformer", None, ("tokens", "positions", "block_0", "block_1")),
    ("pre-norm", 1, ("tokens", "positions", "block_0")),
    ("pre-norm", 2, None),
    ("lstm", -1, ()),
    ("lstm", 0, ("tokens",)),
    ("lstm", 1, None),
    ("lstm", None, None),
  ],
)
def test_what_is_transferred(trunk_params, trunk, layers, taken):
  fresh, loaded = trunk_params[trunk]
  params = transfer(fresh, loaded, layers, TRUNKS[trunk])
  assert jax.tree.structure(params) == jax.tree.structure(fresh)
  for name in fresh:
    wanted = loaded[name] if taken is None or name in taken else fresh[name]
    if name == "tokens":
      assert len(wanted) == 128
      # Start, delimiter, extract and padding.
      np.testing.assert_array_equal(params[name][100:], fresh[name][100:])
      params[name], wanted = params[name][:100], wanted[:100]
    assert_equal(params[name], wanted)


@pytest.mark.parametrize("layers", [None, 0, 2, -1])
def test_trained_special_rows_are_transferred_with_the_embeddings(trunk_params, layers):
  fresh, loaded = trunk_params["transformer"]
  table = np.asarray(transfer(fresh, loaded, layers, TRUNKS["transformer"], [100, 102])["tokens"])
  kept = fresh if layers == -1 else loaded
  np.testing.assert_array_equal(table[[100, 102]], kept["tokens"][[100, 102]])
  np.testing.assert_array_equal(table[101], fresh["tokens"][101])
  np.testing.assert_array_equal(table[103:], fresh["tokens"][103:])


class Stopped(Exception):
  """Raised instead of training, with the first state."""


@pytest.fixture
def first_state(monkeypatch, tmp_path):
  """(arguments of finetune.run but the workdir) -> the first state of the run."""

  def fit(self, state, *_):
    raise Stopped(jax.device_get(state))

  def run(*arguments, **named):
    with monkeypatch.context() as patch, pytest.raises(Stopped) as stopped:
      patch.setattr(Trainer, "fit", fit)
      patch.setattr(Run, "plan", lambda *_: Forecast())  # compiles
      finetune.run(*arguments, str(tmp_path / "run"), **named)
    return stopped.value.args[0]

  return run


@pytest.mark.parametrize("layers", [None, -1])
def test_a_run_begins_with_what_is_transferred(finetuned, first_state, layers):
  config = dataclasses.replace(finetuned.config, transfer_layers=layers)
  loaded = load_model(finetuned.pretrained)
  trunk = first_state(config, finetuned.data_dir, finetuned.pretrained).params["trunk"]
  used = loaded.tokenizer.vocab_size
  before, after = loaded.params["trunk"].pop("tokens"), trunk.pop("tokens")
  assert before[used : used + 3].std() > 0.05
  assert 0.01 < after[used : used + 3].std() < 0.03  # initialized, not the checkpoint's
  if layers is None:
    assert_equal(trunk, loaded.params["trunk"])
    np.testing.assert_array_equal(after[:used], before[:used])
  else:
    assert 0.019 < after.std() < 0.021
    np.testing.assert_array_equal(trunk["block_0"]["mlp"]["in"]["bias"], 0)


@pytest.mark.parametrize("layers", [None, 0])
def test_a_second_fine_tuning_keeps_the_trained_special_rows(finetuned, first_state, layers):
  config = dataclasses.replace(finetuned.config, transfer_layers=layers)
  source = f"{finetuned.workdir}/seed_0"
  loaded = load_model(source)
  assert loaded.meta["trained_special"] == ["start", "delimiter", "extract"]
  table = first_state(config, finetuned.data_dir, source).params["trunk"]["tokens"]
  used = loaded.tokenizer.vocab_size
  before = loaded.params["trunk"]["tokens"]
  np.testing.assert_array_equal(table[: used + 3], before[: used + 3])
  assert not np.array_equal(table[used + 3 :], before[used + 3 :])


def test_a_head_alone_does_not_mean_that_special_rows_are_trained(
  finetuned, first_state, make_run, tmp_path
):
  spec = load_model(f"{finetuned.workdir}/seed_0").spec
  source = make_run(tmp_path / "headed", spec)  # its meta has no trained_special
  loaded = load_model(source)
  table = first_state(finetuned.config, finetuned.data_dir, source).params["trunk"]["tokens"]
  used, before = loaded.tokenizer.vocab_size, loaded.params["trunk"]["tokens"]
  np.testing.assert_array_equal(table[:used], before[:used])
  assert 0.01 < table[used : used + 3].std() < 0.03 < before[used : used + 3].std()


def test_from_scratch(finetuned, first_state, tmp_path):
  trunk = TransformerConfig(context=32, layers=1, width=16, heads=2)
  config = dataclasses.replace(finetuned.config, trunk=trunk)
  with pytest.raises(InputError, match="--checkpoint=none needs --tokenizer"):
    finetune.run(config, finetuned.data_dir, "none", str(tmp_path / "run"))
  tokenizer = f"{finetuned.pretrained}/tokenizer"
  params = first_state(config, finetuned.data_dir, "none", tokenizer=tokenizer).params
  assert (params["trunk"]["positions"].shape, params["head"]["kernel"].shape) == ((32, 16), (16, 2))
  assert load_tokenizer(str(tmp_path / "run" / "tokenizer")).hash == load_tokenizer(tokenizer).hash


def test_from_scratch_every_special_token_has_a_row(finetuned, tmp_path):
  tokenizer = load_tokenizer(f"{finetuned.pretrained}/tokenizer")
  tokenizer = tokenizer.with_special(*(f"sentinel_{i}" for i in range(100)))
  tokenizer.save(tmp_path / "tokenizer")
  trunk = TransformerConfig(context=32, layers=1, width=16, heads=2)
  config = dataclasses.replace(finetuned.config, trunk=trunk)
  start = load_start(config, "none", str(tmp_path / "tokenizer"))
  tokens = parameter_shapes(ModelConfig(start.trunk))["trunk/tokens"]
  assert tokens[0] >= tokenizer.vocab_size + len(tokenizer.special)


def test_neither_batch_packing_order_nor_devices_change_an_example(finetuned):
  loaded = load_model(f"{finetuned.workdir}/seed_0")
  task = finetuned.config.task.build(finetuned.data_dir)
  examples = task.examples(finetuned.data_dir, "dev")
  examples[3] = examples[3]._replace(
    sequences=((examples[3].sequences[0][0] * 6,),)
  )  # makes rows longer
  predict = make_predictor(loaded.model, make_mesh(MeshConfig(), jax.devices()[:2]))

  def probabilities(examples, size):
    return predict(loaded.params, task.encode(examples, loaded.tokenizer, 64), size)

  together = probabilities(examples, 32)
  assert together.shape == (30, 2)
  np.testing.assert_allclose(together.sum(1), 1, rtol=1e-6)
  np.testing.assert_allclose(probabilities(examples, 8), together, atol=1e-5)
  for n in (0, 3):
    np.testing.assert_allclose(
      probabilities(examples[n : n + 1], 1), together[n : n + 1], atol=1e-5
    )
  np.testing.assert_allclose(probabilities(examples[::-1], 32)[::-1], together, atol=1e-5)
  encoded = task.encode(examples, loaded.tokenizer, 64)
  alone = make_predictor(loaded.model, make_mesh(MeshConfig(), jax.devices()[:1]))
  np.testing.assert_allclose(alone(loaded.params, encoded, 32), together, atol=1e-5)

  groups, scores = (
    4,
    jax.jit(lambda params, batch: loaded.model.apply({"params": params}, batch).heads[-1]),
  )
  encoded = task.encode(examples, loaded.tokenizer, 64)
  (batch,) = OrderedBatches(encoded, 32, groups=groups)
  parts = [jax.tree.map(lambda x, g=g: np.split(x, groups)[g], batch) for g in range(groups)]
  apart = np.concatenate([jax.nn.softmax(scores(loaded.params, part)) for part in parts])[:30]
  np.testing.assert_allclose(apart, together, atol=1e-5)


def test_microbatches_and_pmap_and_jit_agree(finetuned, make_run, tmp_path):
  """pmap as a run, with its evaluation; the others are the same steps."""
  trunk = dataclasses.replace(
    load_model(finetuned.pretrained).spec.trunk,
    residual_dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
  )
  source = make_run(tmp_path / "pretrained", ModelConfig(trunk))
  train = TrainConfig(steps=4, log_every=1, microbatches=2)
  mesh = MeshConfig(data=8, backend="pmap")
  pmap = dataclasses.replace(finetuned.config, head_dropout=0.0, mesh=mesh, train=train)
  (result,) = finetune.run(pmap, finetuned.data_dir, source, str(tmp_path / "run"))
  expected = [entry["loss"] for entry in entries(tmp_path / "run") if "loss" in entry]
  assert len(expected) == 4 and expected[-1] != expected[0]
  expected.append(result["dev"]["dev_loss"])

  for microbatches, mesh in ((1, MeshConfig()), (2, MeshConfig(data=2, model=2))):
    config = dataclasses.replace(
      pmap, mesh=mesh, train=dataclasses.replace(train, microbatches=microbatches)
    )
    start = load_start(config, source, "")
    config, task, data = load_task(config, finetuned.data_dir, start)
    spec = model_config(config, task, start)
    recipe = finetune.finetune_recipe(config, task, data["train"], start)
    trainer, batches = make_trainer(recipe), recipe.batches(config.train)
    state, losses = start.apply(trainer.init(0), trainer, heads=False), []
    for step in range(4):
      state, metrics = trainer.step(state, trainer.to_device(batches.at(step)), 0)
      losses.append(float(metrics["loss"].value))
    np.testing.assert_allclose(losses, expected[:4], atol=1e-4, err_msg=str(mesh))
    if mesh == MeshConfig():
      dev_loss = finetune.make_evaluations(
        recipe, spec, task, data["dev"], finetuned.data_dir, start
      )[0](state.params)["dev_loss"]
      assert dev_loss == pytest.approx(expected[4], abs=1e-4)


@pytest.mark.parametrize(
  "transform, columns, outputs",
  [("similarity", ("a", "b"), 2), ("multiple_choice", ("a", "b", "c", "d"), 1)],
)
def test_other_transforms(finetuned, tmp_path, transform, columns, outputs):
  """Their head. They are trained in tests/test_golden.py."""
  labels = ("same", "other") if transform == "similarity" else columns[1:]
  rows = [
    ["the cat", "a dog", "the sea", "a barn"][: len(columns)] + [labels[n % len(labels)]]
    for n in range(18)
  ]
  text = "\n".join(map("\t".join, [[*columns, "label"], *rows])) + "\n"
  for split in ("train", "dev"):
    (tmp_path / f"{split}.tsv").write_text(text)
  task = TableTask(columns=columns, transform=transform)
  config = FinetuneConfig(task=task, batch_size=8, train=TrainConfig(epochs=1))
  start = load_start(config, finetuned.pretrained, "")
  config, task, data = load_task(config, str(tmp_path), start)
  recipe = finetune.finetune_recipe(config, task, data["train"], start)
  assert recipe.total_steps == 2  # the last partial batch is dropped
  spec = model_config(config, task, start)
  assert parameter_shapes(spec)["head/kernel"] == (32, outputs)
  assert (spec.head.num_classes, spec.head.pooling) == (
    len(labels),
    "sum" if transform == "similarity" else "per_choice",
  )


def test_a_checkpoint_brings_its_own_trunk(finetuned, tmp_path):
  config = dataclasses.replace(finetuned.config, trunk=TransformerConfig(layers=3))
  with pytest.raises(InputError, match="config.trunk is for --checkpoint=none"):
    finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))


def test_a_run_chooses_dtype_and_dropout_beside_a_checkpoints_sizes(finetuned):
  runtime = {"dtype": "bfloat16", "attention_dropout": 0.3}
  config = dataclasses.replace(finetuned.config, trunk=TransformerConfig(**runtime))
  theirs = load_start(finetuned.config, finetuned.pretrained, "").trunk
  start = load_start(config, finetuned.pretrained, "")
  assert start.trunk == dataclasses.replace(theirs, **runtime) != theirs


def test_a_run_reads_longer_texts_with_an_lstms_checkpoint(make_run, finetuned, tmp_path):
  """No parameter of it depends on the context; those of a Transformer do."""
  spec = load_model(finetuned.pretrained).spec
  lstm = LSTMStackConfig(spec.trunk.vocab_size, context=8, embedding_width=8, units=(8,))
  lstm = lstm.with_vocabulary(load_tokenizer(os.path.join(finetuned.pretrained, "tokenizer")))
  checkpoint = make_run(tmp_path / "lstm", dataclasses.replace(spec, trunk=lstm))
  config = override(finetuned.config, "trunk.context", "600")
  assert load_start(finetuned.config, checkpoint, "").trunk == lstm
  assert load_start(config, checkpoint, "").trunk == dataclasses.replace(lstm, context=600)
  with pytest.raises(InputError, match="config.trunk is for --checkpoint=none"):
    load_start(config, finetuned.pretrained, "")


def test_a_run_sets_dropout_back_to_the_default(make_run, finetuned, tmp_path):
  """Which differs from that of the checkpoint."""
  spec = load_model(finetuned.pretrained).spec
  trunk = dataclasses.replace(spec.trunk, attention_dropout=0.3, embedding_dropout=0.4)
  checkpoint = make_run(tmp_path / "run", dataclasses.replace(spec, trunk=trunk))
  # A copy, as of a run that chooses its dtype.
  config = dataclasses.replace(override(finetuned.config, "trunk.attention_dropout", "0.1"))
  start = load_start(config, checkpoint, "", ["trunk.attention_dropout"])
  assert (start.trunk.attention_dropout, start.trunk.embedding_dropout) == (0.1, 0.4)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"batch_size": 12, "mesh": MeshConfig(data=8)}, "batch_size=12: must be a multiple of 8"),
    ({"batch_size": 136}, "128 examples are fewer than one batch; batch_size is 136"),
    ({"train": TrainConfig(steps=5, epochs=1)}, "exactly one of them must be above 0"),
    (
      {"task": TableTask(labels=("meows", "moos"))},
      "58 rows cannot be used: label 'barks': should be one of meows, moos \\(line 2, 3",
    ),
    (
      {"task": TableTask(columns=("txt",))},
      r"train.tsv: no column 'txt'; did you mean text\? \(the columns are 'text', 'label'\)",
    ),
  ],
)
def test_bad_input_is_refused_before_anything_is_written(finetuned, tmp_path, changes, message):
  config = dataclasses.replace(finetuned.config, **changes)
  with pytest.raises(InputError, match=message):
    finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))
  assert not os.path.exists(tmp_path / "run")
