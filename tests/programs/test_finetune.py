"""Fine-tuning end to end on tiny tasks: transfer, results, resumption, and that packing and devices
change no number.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import sys

import jax
import numpy as np
import pytest

from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints import store as checkpoint
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified
from gpt_jax.inference.calibration import measure_calibration
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.predictor import make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import finetune
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.finetuning import evaluations
from gpt_jax.tasks.packing import OrderedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.training import trainer
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.transfer import transfer


def entries(workdir):
  with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def params_of(workdir):
  return checkpoint.restore_params(workdir)[0]


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_task_is_learned_and_reported(finetuned):
  for seed, result in enumerate(finetuned.results):
    folder = f"{finetuned.workdir}/seed_{seed}"
    assert verified(read_json(f"{folder}/result.json")) == result
    assert (result["task"], result["seed"], result["steps"]) == ("table", seed, 48)
    assert result["dev"]["dev_accuracy"] >= 0.9
    assert [entry["step"] for entry in entries(folder) if "dev_accuracy" in entry] == [
      8,
      16,
      24,
      32,
      40,
      48,
    ]
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


def test_a_run_without_its_dev_report_is_finished(finetuned, tmp_path, monkeypatch, capsys):
  def refuse(*_):
    raise InputError("needs scikit-learn")

  monkeypatch.setattr(evaluations, "write_dev_report", refuse)
  config = dataclasses.replace(finetuned.config, train=TrainConfig(steps=1))
  workdir = tmp_path / "run"
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(workdir))
  assert "no dev_report.json: needs scikit-learn\n" in capsys.readouterr().err
  assert (workdir / "result.json").exists() and not (workdir / "dev_report.json").exists()


def test_the_same_command_again_repeats_nothing(finetuned, monkeypatch, capsys):
  monkeypatch.setattr(Trainer, "fit", None)
  again = finetune.run(
    finetuned.config, finetuned.data_dir, finetuned.pretrained, finetuned.workdir, seeds=2
  )
  assert again == finetuned.results
  log = capsys.readouterr().err
  summary = json.load(open(f"{finetuned.workdir}/summary.json", encoding="utf-8"))
  assert (summary["seeds"], summary["degenerate"]) == ([0, 1], [])
  for stage in ("dev", "best"):
    accuracies = [result[stage]["dev_accuracy"] for result in again]
    assert summary[stage]["dev_accuracy"]["values"] == accuracies
    assert (
      f"dev_accuracy: median {np.median(accuracies):.4f}, mean {np.mean(accuracies):.4f}" in log
    )
  assert "degenerate" not in log


def test_degenerate_seeds_are_marked(finetuned, tmp_path, capsys):
  for split in ("train", "dev"):  # the same text with both labels
    (tmp_path / f"{split}.tsv").write_text(
      "text\tlabel\n" + "the barn\tmeows\nthe barn\tbarks\n" * 20
    )
  config = dataclasses.replace(finetuned.config, train=TrainConfig(steps=1))
  results = finetune.run(
    config, str(tmp_path), finetuned.pretrained, str(tmp_path / "run"), seeds=2
  )
  summary = json.load(open(tmp_path / "run" / "summary.json", encoding="utf-8"))
  assert summary["degenerate"] == [result["seed"] for result in results] == [0, 1]
  assert "one prediction for every example: seed 0, 1" in capsys.readouterr().err


def test_evaluations_of_the_first_epoch_double(finetuned, tmp_path, monkeypatch):
  monkeypatch.setattr(evaluations, "FIRST_EVALUATION", 3)
  config = dataclasses.replace(finetuned.config, train=TrainConfig(epochs=2, log_every=8))
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))
  assert [entry["step"] for entry in entries(tmp_path / "run") if "dev_accuracy" in entry] == [
    3,
    6,
    8,
    16,
  ]


def test_a_part_of_the_examples_is_even(finetuned, tmp_path, capsys):
  rows = [
    f"the {animal}\t{label}"
    for animal, label in (("cat", "meows"), ("dog", "barks"))
    for _ in range(50)
  ]
  for split in ("train", "dev"):
    (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
  config = dataclasses.replace(
    finetuned.config, train_examples=32, dev_examples=10, train=TrainConfig(steps=1)
  )
  finetune.run(config, str(tmp_path), finetuned.pretrained, str(tmp_path / "run"))
  log = capsys.readouterr().err
  assert "table train: 32 examples" in log and "table dev: 10 examples" in log
  assert log.count("labels: barks 50.0%, meows 50.0%") == 2


def test_interrupted_and_resumed_equals_never_interrupted(finetuned, monkeypatch, tmp_path):
  make_step, calls = trainer.make_step, []

  def interrupted(*arguments, **named):
    step = make_step(*arguments, **named)

    def counted(state, batch, seed):
      calls.append(1)
      if len(calls) == 21:
        raise KeyboardInterrupt
      return step(state, batch, seed)

    return counted

  def run():
    return finetune.run(
      finetuned.config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run")
    )

  monkeypatch.setattr(trainer, "make_step", interrupted)
  with pytest.raises(KeyboardInterrupt):
    run()
  assert not os.path.exists(tmp_path / "run" / "result.json")
  (resumed,) = run()
  assert len(calls) == 21 + (48 - 16)  # from the end of the second epoch
  assert resumed == finetuned.results[0]
  assert_equal(params_of(tmp_path / "run"), params_of(f"{finetuned.workdir}/seed_0"))


@pytest.mark.parametrize("damage", ["empty", "torn", "changed", "a list"])
def test_a_damaged_result_is_computed_again(finetuned, tmp_path, damage):
  shutil.copytree(f"{finetuned.workdir}/seed_0", tmp_path / "run")
  path = tmp_path / "run" / "result.json"
  whole = path.read_text()
  accuracy = re.search(r'"dev_accuracy": (.*?),?\n', whole)[1]
  changed = whole.replace(f'"dev_accuracy": {accuracy}', '"dev_accuracy": 0.125')
  assert changed != whole
  contents = {"empty": "", "torn": whole[: len(whole) // 2], "changed": changed, "a list": "[]"}
  path.write_text(contents[damage])
  with pytest.warns(UserWarning, match=r"result\.json: .*; the last checkpoint is evaluated again"):
    (result,) = finetune.run(
      finetuned.config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run")
    )
  assert result == finetuned.results[0]
  assert path.read_text() == whole


def test_terminated_at_the_last_step_it_has_a_result(finetuned, monkeypatch, tmp_path):
  fit = Trainer.fit

  def killed_at_the_end(self, state, batch_at, total, *arguments):
    def step(state, batch, seed):
      if int(state.step) == total - 1:
        os.kill(os.getpid(), signal.SIGTERM)
      return self.step(state, batch, seed)

    return fit(dataclasses.replace(self, step=step), state, batch_at, total, *arguments)

  def run():
    return finetune.run(
      finetuned.config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run")
    )

  monkeypatch.setattr(Trainer, "fit", killed_at_the_end)
  with pytest.raises(SystemExit):
    run()
  assert run() == finetuned.results[:1]


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
  """Two draws of the parameters of each trunk, as NumPy arrays of which no two have an element
  in common.
  """
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


def test_from_scratch_every_special_token_has_a_row(finetuned, first_state, tmp_path):
  tokenizer = load_tokenizer(f"{finetuned.pretrained}/tokenizer")
  tokenizer = tokenizer.with_special(*(f"sentinel_{i}" for i in range(100)))
  tokenizer.save(tmp_path / "tokenizer")
  trunk = TransformerConfig(context=32, layers=1, width=16, heads=2)
  config = dataclasses.replace(finetuned.config, trunk=trunk)
  folder = str(tmp_path / "tokenizer")
  params = first_state(config, finetuned.data_dir, "none", tokenizer=folder).params
  assert len(params["trunk"]["tokens"]) >= tokenizer.vocab_size + len(tokenizer.special)


def test_neither_batch_packing_order_nor_devices_change_an_example(finetuned):
  loaded = load_model(f"{finetuned.workdir}/seed_0")
  task = finetuned.config.task.build(finetuned.data_dir)
  examples = task.examples(finetuned.data_dir, "dev")
  examples[3] = examples[3]._replace(
    sequences=((examples[3].sequences[0][0] * 6,),)
  )  # makes rows longer
  predict = make_predictor(loaded.model, make_mesh(MeshConfig()))

  def probabilities(examples, size):
    return predict(loaded.params, task.encode(examples, loaded.tokenizer, 64), size)

  together = probabilities(examples, 32)
  assert together.shape == (30, 2)
  np.testing.assert_allclose(together.sum(1), 1, rtol=1e-6)
  np.testing.assert_allclose(probabilities(examples, 8), together, atol=1e-5)
  for n in (0, 3, 29):
    np.testing.assert_allclose(
      probabilities(examples[n : n + 1], 1), together[n : n + 1], atol=1e-5
    )
  np.testing.assert_allclose(probabilities(examples[::-1], 32)[::-1], together, atol=1e-5)
  encoded = task.encode(examples, loaded.tokenizer, 64)
  for devices in (1, 2):
    alone = make_predictor(loaded.model, make_mesh(MeshConfig(), jax.devices()[:devices]))
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
  trunk = dataclasses.replace(
    load_model(finetuned.pretrained).spec.trunk,
    residual_dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
  )
  source = make_run(tmp_path / "pretrained", ModelConfig(trunk))
  config = dataclasses.replace(finetuned.config, head_dropout=0.0)
  curves = {}
  for name, microbatches, mesh in (
    ("jit", 1, MeshConfig()),
    ("microbatches", 2, MeshConfig(data=4, model=2)),
    ("pmap with microbatches", 2, MeshConfig(backend="pmap")),
  ):
    train = TrainConfig(steps=10, log_every=1, microbatches=microbatches)
    on_mesh = dataclasses.replace(config, mesh=mesh, train=train)
    (result,) = finetune.run(on_mesh, finetuned.data_dir, source, str(tmp_path / name))
    losses = [entry["loss"] for entry in entries(tmp_path / name) if "loss" in entry]
    curves[name] = [*losses, result["dev"]["dev_loss"]]
    assert len(losses) == 10
  for name, curve in curves.items():
    np.testing.assert_allclose(curve, curves["jit"], atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
  "transform, columns, outputs",
  [("similarity", ("a", "b"), 2), ("multiple_choice", ("a", "b", "c", "d"), 1)],
)
def test_other_transforms(finetuned, tmp_path, transform, columns, outputs):
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
  (result,) = finetune.run(config, str(tmp_path), finetuned.pretrained, str(tmp_path / "run"))
  assert (result["steps"], result["best"]["step"]) == (2, 2)  # the last partial batch is dropped
  loaded = load_model(str(tmp_path / "run"))
  assert loaded.params["head"]["kernel"].shape == (32, outputs)
  assert (loaded.spec.head.num_classes, loaded.spec.head.pooling) == (
    len(labels),
    "sum" if transform == "similarity" else "per_choice",
  )


def test_a_checkpoint_brings_its_own_trunk(finetuned, tmp_path):
  config = dataclasses.replace(finetuned.config, trunk=TransformerConfig(layers=3))
  with pytest.raises(InputError, match="config.trunk is for --checkpoint=none"):
    finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"batch_size": 12}, "batch_size=12: must be a multiple of 8"),
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
