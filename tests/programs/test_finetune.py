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
from refused import refused
from shared_trainers import one_device_beside_finetuned, stop_in_step  # noqa: F401
from tiny_runs import (
  NO_DROPOUT,
  assert_equal,
  changed,
  entries,
  load_run,
  params_of,
  states,
  write_table,
)

from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified
from gpt_jax.inference.calibration import measure_calibration
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, language_model, parameter_shapes
from gpt_jax.models.predictor import _predict_batch, make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import finetune, replay
from gpt_jax.programs import finetune_evaluations as evaluations
from gpt_jax.programs.config_files import override
from gpt_jax.programs.finetune_evaluations import make_evaluations, read_result, write_summary
from gpt_jax.programs.start import load_start, transfer
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.trainer import Trainer

pytestmark = pytest.mark.e2e


def test_a_task_is_learned_and_reported(finetuned):
  for seed, result in enumerate(finetuned.results):
    folder = f"{finetuned.workdir}/seed_{seed}"
    assert verified(read_json(f"{folder}/result.json")) == result
    assert (result["task"], result["seed"], result["steps"]) == ("table", seed, 48)
    assert result["dev"]["dev_accuracy"] >= 0.9
    measured = [entry for entry in entries(folder) if "dev_accuracy" in entry]
    assert [entry["step"] for entry in measured] == [8, 16, 24, 32, 40, 48]
    # The best is the first of equals; its checkpoint is kept, and the last one.
    best = max(measured, key=lambda entry: entry["dev_accuracy"])
    assert set(os.listdir(f"{folder}/checkpoints")) == {str(best["step"]), "48"}
    assert best.items() >= {name: result["best"][name] for name in ("step", "dev_accuracy")}.items()
    assert load_model(f"{folder}/best").step == best["step"]
  a, b = (params_of(f"{finetuned.workdir}/seed_{seed}")["head"]["kernel"] for seed in (0, 1))
  assert not np.array_equal(a, b)


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
  config = changed(finetuned.config, train=TrainConfig(epochs=2, log_every=8, keep_checkpoints=2))

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
  rows = [("the cat", "meows")] * 50 + [("the dog", "barks")] * 50
  config = changed(finetuned.config, train_examples=32, dev_examples=10)
  data = load_run(config, finetuned.pretrained, write_table(tmp_path, rows)).data
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
  other = whole.replace(f'"dev_accuracy": {accuracy}', '"dev_accuracy": 0.125')
  assert other != whole and read_result(str(tmp_path / "run")) == short.result
  message = r"result\.json: .*; the last checkpoint is evaluated again"
  for damaged in ("", whole[: len(whole) // 2], "[]", other):
    path.write_text(damaged)
    with pytest.warns(UserWarning, match=message):
      assert read_result(str(tmp_path / "run")) is None
  with pytest.warns(UserWarning, match=message):
    assert short.again(tmp_path / "run") == [short.result]
  assert path.read_text() == whole


def test_a_missing_metrics_package_is_reported_before_training(finetuned, monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
  monkeypatch.setitem(sys.modules, "sklearn", None)
  given = finetuned.config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run")
  refused("scikit-learn", finetune.run, *given)
  assert not os.path.exists(tmp_path / "run")


@pytest.mark.parametrize(
  "change, message",
  [
    ("data", "data train: "),
    ("checkpoint", "data pretrained: "),
    ("config", "lm_weight: 0.2 != 0.3"),
  ],
)
def test_another_run_in_the_same_folder_is_refused(finetuned, tmp_path, change, message):
  config, source, data_dir = finetuned.config, finetuned.pretrained, finetuned.data_dir
  if change == "data":
    data_dir = shutil.copytree(data_dir, tmp_path / "data", ignore=lambda _, names: {"run"})
    text = (data_dir / "train.tsv").read_text()
    (data_dir / "train.tsv").write_text(text.replace("cat", "dog", 1))
  if change == "checkpoint":  # of the same sizes, step and vocabulary
    before = load_model(source)
    source = str(tmp_path / "other")
    params = jax.tree.map(lambda x: x + 1, before.params)
    npz.save(source, params, before.meta, before.step, before.tokenizer)
  if change == "config":
    config = changed(config, lm_weight=0.3)
  message = f"holds a run with another config .*{message}"
  given = config, str(data_dir), source, f"{finetuned.workdir}/seed_0"
  refused(message, finetune.run, *given)


def test_a_folder_of_several_seeds_is_not_one_run(finetuned):
  before = sorted(os.listdir(finetuned.workdir))
  given = finetuned.config, finetuned.data_dir, finetuned.pretrained, finetuned.workdir
  refused("holds runs of several seeds; use another folder", finetune.run, *given)
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


def first_trunk(config, checkpoint, data_dir, tokenizer=""):
  """The trunk's parameters in the first state of a run."""
  (state, _), *_ = states(load_run(config, checkpoint, data_dir, tokenizer).recipe, 0)
  return jax.device_get(state.params["trunk"])


@pytest.mark.parametrize("layers", [None, -1])
def test_a_run_begins_with_what_is_transferred(finetuned, layers):
  config = changed(finetuned.config, transfer_layers=layers)
  loaded = load_model(finetuned.pretrained)
  trunk = first_trunk(config, finetuned.pretrained, finetuned.data_dir)
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


def test_runs_that_differ_in_their_start_alone_share_what_is_compiled(finetuned):
  changes: tuple = ({}, {"transfer_layers": -1}, {"optim": {"learning_rate": 0.5}})
  configs = [changed(finetuned.config, **change) for change in changes]
  runs = [load_run(config, finetuned.pretrained, finetuned.data_dir) for config in configs]
  plain, scratch, faster = (make_trainer(run.recipe) for run in runs)
  assert plain is scratch is not faster
  for seed in (0, 1):
    runs[0].recipe.start(plain.init(seed), plain)
  (copy,) = runs[0].start.copies.values()
  assert copy._cache_size() == 1


def test_a_second_fine_tuning_keeps_the_trained_special_rows(finetuned, make_run, tmp_path):
  source = f"{finetuned.workdir}/seed_0"
  loaded = load_model(source)
  assert loaded.meta["trained_special"] == ["start", "delimiter", "extract"]
  used = loaded.tokenizer.vocab_size
  before = loaded.params["trunk"]["tokens"]
  for layers in (None, 0):
    config = changed(finetuned.config, transfer_layers=layers)
    table = first_trunk(config, source, finetuned.data_dir)["tokens"]
    np.testing.assert_array_equal(table[: used + 3], before[: used + 3])
    assert not np.array_equal(table[used + 3 :], before[used + 3 :])
  # A head alone does not mean that they are trained.
  headed = make_run(tmp_path / "headed", loaded.spec)  # its meta has no trained_special
  before = load_model(headed).params["trunk"]["tokens"]
  table = first_trunk(finetuned.config, headed, finetuned.data_dir)["tokens"]
  np.testing.assert_array_equal(table[:used], before[:used])
  assert 0.01 < table[used : used + 3].std() < 0.03 < before[used : used + 3].std()


def test_from_scratch(finetuned, tmp_path):
  trunk = TransformerConfig(context=32, layers=1, width=16, heads=2)
  config = changed(finetuned.config, trunk=trunk)
  refused("--checkpoint=none needs --tokenizer", load_start, config, "none", "")
  tokenizer = f"{finetuned.pretrained}/tokenizer"
  of_run = load_run(config, "none", finetuned.data_dir, tokenizer)
  shapes = parameter_shapes(of_run.recipe.spec)
  assert (shapes["trunk/positions"], shapes["head/kernel"]) == ((32, 16), (16, 2))
  assert of_run.start.tokenizer.hash == load_tokenizer(tokenizer).hash
  # Every special token has a row.
  named = load_tokenizer(tokenizer).with_special(*(f"sentinel_{i}" for i in range(100)))
  named.save(tmp_path / "tokenizer")
  start = load_start(config, "none", str(tmp_path / "tokenizer"))
  tokens = parameter_shapes(ModelConfig(start.trunk))["trunk/tokens"]
  assert tokens[0] >= named.vocab_size + len(named.special)


def test_neither_batch_packing_order_nor_devices_change_an_example(finetuned):
  loaded = load_model(f"{finetuned.workdir}/seed_0")
  task = loaded.task
  examples = task.examples(finetuned.data_dir, "dev")
  longer = examples[3].sequences[0][0] * 6  # makes rows longer
  examples[3] = examples[3]._replace(sequences=((longer,),))
  two, one = (
    make_predictor(loaded.model, make_mesh(MeshConfig(), jax.devices()[:n])) for n in (2, 1)
  )

  def probabilities(examples, size, predict=two):
    return predict(loaded.params, loaded.encode(task, examples), size)

  together = probabilities(examples, 32)
  assert together.shape == (30, 2)
  # Another model of the same config takes the same compiled program.
  alike = make_predictor(loaded.spec.build(), make_mesh(MeshConfig(), jax.devices()[:2]))
  programs = _predict_batch._cache_size()
  np.testing.assert_array_equal(probabilities(examples, 32, alike), together)
  assert _predict_batch._cache_size() == programs
  np.testing.assert_allclose(together.sum(1), 1, rtol=1e-6)
  groups, scores = 4, jax.jit(loaded.model.apply)
  (batch,) = OrderedBatches(loaded.encode(task, examples), 32, groups=groups)
  parts = [jax.tree.map(lambda x, g=g: np.split(x, groups)[g], batch) for g in range(groups)]
  of_parts = [scores({"params": loaded.params}, part).heads[-1] for part in parts]
  for found, expected in (
    (probabilities(examples, 8), together),
    (probabilities(examples[:1], 1), together[:1]),
    (probabilities(examples[3:4], 1), together[3:4]),
    (probabilities(examples[::-1], 32)[::-1], together),
    (probabilities(examples, 32, one), together),
    (np.concatenate(list(map(jax.nn.softmax, of_parts)))[:30], together),
  ):
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_microbatches_and_pmap_and_jit_agree(finetuned, make_run, tmp_path):
  """pmap as a run, with its evaluation; the others are the same steps."""
  trunk = dataclasses.replace(load_model(finetuned.pretrained).spec.trunk, **NO_DROPOUT)
  source = make_run(tmp_path / "pretrained", ModelConfig(trunk))
  train = TrainConfig(steps=4, log_every=1, microbatches=2)
  mesh = MeshConfig(data=8, backend="pmap")
  pmap = changed(finetuned.config, head_dropout=0.0, mesh=mesh, train=train)
  (result,) = finetune.run(pmap, finetuned.data_dir, source, str(tmp_path / "run"))
  expected = [entry["loss"] for entry in entries(tmp_path / "run") if "loss" in entry]
  assert len(expected) == 4 and expected[-1] != expected[0]
  expected.append(result["dev"]["dev_loss"])

  for microbatches, mesh in ((1, MeshConfig()), (2, MeshConfig(data=2, model=2))):
    config = changed(pmap, mesh=mesh, train={"microbatches": microbatches})
    start, config, task, data, recipe = load_run(config, source, finetuned.data_dir)
    _, *steps = states(recipe, 4)
    losses = [float(metrics["loss"].value) for _, metrics in steps]
    np.testing.assert_allclose(losses, expected[:4], atol=1e-4, err_msg=str(mesh))
    if mesh == MeshConfig():
      measure, _ = make_evaluations(recipe, task, data["dev"], finetuned.data_dir, start)
      assert measure(steps[-1][0].params)["dev_loss"] == pytest.approx(expected[4], abs=1e-4)


def test_a_run_chooses_dtype_and_dropout_beside_a_checkpoints_sizes(finetuned):
  runtime = {"dtype": "bfloat16", "attention_dropout": 0.3}
  config = changed(finetuned.config, trunk=TransformerConfig(**runtime))
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
  # Sizes are the checkpoint's own.
  for sizes in (config, changed(finetuned.config, trunk=TransformerConfig(layers=3))):
    refused("config.trunk is for --checkpoint=none", load_start, sizes, finetuned.pretrained, "")


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
    ({"batch_size": 136}, "128 examples: fewer than one batch; batch_size is 136"),
    ({"train": TrainConfig(steps=5, epochs=1)}, "exactly one of them must be above 0"),
    ({"task": TableTask(columns=("txt",))}, r"train.tsv: no column 'txt'; did you mean text\?"),
  ],
)
def test_bad_input_is_refused_before_anything_is_written(finetuned, tmp_path, changes, message):
  config, workdir = changed(finetuned.config, **changes), str(tmp_path / "run")
  refused(message, finetune.run, config, finetuned.data_dir, finetuned.pretrained, workdir)
  assert not os.path.exists(workdir)
