"""Adapters: only they and the head are trained and saved, and what is loaded is merged."""

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from refused import refused
from shared_trainers import one_device  # noqa: F401
from tiny_runs import NO_DROPOUT

import gpt_jax
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_adapters, load_model
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.checkpoints.saved import keep_base
from gpt_jax.models.adapter import BASE, AdaptedModel, Adapter, low_rank_product, merged
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.dropout import step_key
from gpt_jax.programs import evaluate, export, finetune, predict
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

TRUNK = TransformerConfig(context=48, layers=1, width=32, heads=2, norm="pre", **NO_DROPOUT)
BOTH = Adapter(rank=2, targets="attention.*/kernel$", trained="/bias$")
CONFIG = FinetuneConfig(
  task=TableTask(),
  batch_size=16,
  lm_weight=0.0,
  methods=(BOTH,),
  optim=OptimConfig(learning_rate=0.02, schedule="linear", warmup_steps=4),
  train=TrainConfig(epochs=6, log_every=8),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory, make_run, tiny_tokenizer):
  spec = ModelConfig(TRUNK.with_vocabulary(tiny_tokenizer))
  return make_run(tmp_path_factory.mktemp("base") / "run", spec, steps=(6, 7))


@pytest.fixture(scope="module")
def run(base, animals, tmp_path_factory):
  """The folder of a run and its result; seed_1 beside it is another adapter of the base."""
  workdir = str(tmp_path_factory.mktemp("adapted") / "run")
  result, _ = finetune.run(CONFIG, animals, base, workdir, seeds=2)
  return f"{workdir}/seed_0", result


@pytest.mark.e2e
def test_a_checkpoint_holds_the_adapter_and_is_read_as_a_whole_model(run, base, animals, tmp_path):
  workdir, result = run
  assert result["best"]["dev_accuracy"] > 0.9
  saved, meta, _ = restore_params(f"{workdir}/best")
  # The run of the base may go on: not its newest step.
  assert meta["adapter"]["base"]["checkpoint"] == f"{base}/checkpoints/7"
  assert set(saved) == {"adapter", "head"}
  held = flatten_dict(saved["adapter"], sep="/")
  assert {path for path in held if path.endswith("kernel/a")} and "tokens" in held
  assert not any("mlp" in path and "bias" not in path for path in held)
  assert evaluate.run(f"{workdir}/best", animals)["accuracy"] == result["best"]["dev_accuracy"]
  loaded = load_model(f"{workdir}/best")
  before = flatten_dict(load_model(base).params["trunk"], sep="/")
  after = flatten_dict(loaded.params["trunk"], sep="/")
  same = {path for path, x in before.items() if path != "tokens" and (x == after[path]).all()}
  assert same == {path for path in before if path != "tokens" and path not in held} - {
    path.removesuffix("/a") for path in held
  }
  export.run(f"{workdir}/best", str(tmp_path / "merged"))
  texts = ["sat cat on mat", "dog ran old barn"]
  ours, theirs = (
    gpt_jax.load(path).classify(texts) for path in (f"{workdir}/best", str(tmp_path / "merged"))
  )
  assert ours == theirs
  again = finetune.run(CONFIG, animals, base, workdir)  # resumes, with the base it does not save
  assert again[0]["best"] == result["best"]


@pytest.mark.e2e
def test_another_base_is_refused_in_a_line(run, base, tmp_path):
  workdir = shutil.copytree(run[0], tmp_path / "copy")
  os.symlink(f"{base}/checkpoints/6", workdir / "base")
  refused("an adapter of step 7, .* is step 6", load_model, str(workdir))
  os.remove(workdir / "base")
  os.symlink(tmp_path / "nothing", workdir / "base")
  load_model(str(workdir))  # a link to nothing is none


def test_an_adapter_outlives_the_step_that_it_is_of(base, tmp_path):
  """By links to its files; where there are none, a line says so before the training."""
  step = shutil.copytree(f"{base}/checkpoints/7", tmp_path / "run/checkpoints/7")
  (tmp_path / "adapter").mkdir()
  keep_base(str(tmp_path / "adapter"), str(step))
  shutil.rmtree(tmp_path / "run")
  shutil.copy(f"{base}/config.json", tmp_path / "adapter")
  shutil.copytree(f"{base}/tokenizer", tmp_path / "adapter/tokenizer")
  kept = load_model(str(tmp_path / "adapter/kept_base"))
  assert kept.identity == load_model(f"{base}/checkpoints/7").identity


@pytest.mark.e2e
def test_a_run_resumes_whose_base_has_trained_on(base, animals, tmp_path):
  own = tmp_path / "base"
  shutil.copytree(base, own)
  config = dataclasses.replace(CONFIG, train=TrainConfig(epochs=2, log_every=8))
  workdir = str(tmp_path / "adapter")
  finetune.run(config, animals, str(own), workdir, pauses=lambda step: step == 8)
  shutil.rmtree(own / "checkpoints/7")  # the other is as good as a newer one
  for given in (str(own), f"{own}/checkpoints/7"):
    (result,) = finetune.run(config, animals, given, workdir)
    assert result["steps"] == 16
    _, meta, step = restore_params(workdir)
    assert (meta["adapter"]["base"]["checkpoint"], step) == (f"{own}/checkpoints/7", 16)
  message = "data pretrained: step 7, .* != step 6"
  refused(message, finetune.run, config, animals, f"{own}/checkpoints/6", workdir)


@pytest.mark.e2e
def test_an_adapter_of_an_adapter(run, base, animals, tmp_path):
  """Its base is an adapter, with a base of its own, which both outlive."""
  first, second = shutil.copytree(run[0], tmp_path / "first"), str(tmp_path / "second")
  config = dataclasses.replace(CONFIG, train=TrainConfig(epochs=1))
  (result,) = finetune.run(config, animals, str(first), second)
  shutil.rmtree(first)
  os.rename(base, f"{base}_moved")
  try:
    assert evaluate.run(f"{second}/best", animals)["accuracy"] == result["best"]["dev_accuracy"]
  finally:
    os.rename(f"{base}_moved", base)


def test_a_step_that_cannot_be_kept_is_named(base, tmp_path, monkeypatch, capsys):
  def refuse(*_, **__):
    raise OSError("another file system")

  monkeypatch.setattr(os, "link", refuse)
  keep_base(str(tmp_path), f"{base}/checkpoints/7")
  assert f"the adapter needs {base}/checkpoints/7" in "".join(capsys.readouterr())
  assert not [*tmp_path.iterdir()]


@pytest.mark.e2e
def test_the_base_of_an_adapter_may_be_gone(run, base, animals, tmp_path):
  workdir = shutil.copytree(run[0], tmp_path / "copy")
  os.rename(base, f"{base}_moved")
  try:
    assert evaluate.run(f"{workdir}/best", animals)["accuracy"] == run[1]["best"]["dev_accuracy"]
    shutil.rmtree(workdir / "kept_base")
    os.symlink(workdir, workdir / "base")
    message = "the base of this adapter:"
    assert refused(message, load_model, str(workdir)).count(message) == 1
  finally:
    os.rename(f"{base}_moved", base)


@pytest.mark.e2e
def test_several_adapters_share_their_base(run, base, animals, tmp_path):
  adapters = [f"one={run[0]}/best", f"two={run[0]}/../seed_1"]
  out, dev = str(tmp_path / "out.tsv"), f"{animals}/dev.tsv"
  results = predict.run_adapters(base, adapters, dev, out, keep=["text"], calibrate=False)
  for entry in adapters:
    name, _, path = entry.partition("=")
    alone = predict.run(path, dev, str(tmp_path / "alone.tsv"), calibrate=False, overwrite=True)
    for ours, expected in zip(results[name], alone, strict=True):
      assert ours["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    lines = (tmp_path / f"out.{name}.tsv").read_text().splitlines()
    assert lines[0].startswith("text\tprediction\t") and len(lines) == 31
  assert results["one"] != results["two"]
  other = base, adapters, dev, str(tmp_path / "other.tsv")
  refused("beams=4: is for translations", predict.run_adapters, *other, beams=4)
  refused("--weights: is for one model", predict.run_adapters, *other, weights="int8")
  refused(r"out\.one\.tsv.*exists", predict.run_adapters, base, adapters, dev, out)
  one, two = load_adapters(load_model(base), adapters).values()
  before, after = (flatten_dict(model.params[BASE]) for model in (one, two))
  assert all(isinstance(x, jax.Array) and after[path] is x for path, x in before.items())


@pytest.mark.parametrize(
  ("adapters", "message"),
  [
    (["{run}"], "adapter=.*: must be NAME=DIR"),
    (["../a={run}"], "adapter=../a=.*: must be NAME=DIR, .* which is no path"),
    (["a={run}", "a={run}"], "adapter=a=.*: must be NAME=DIR, with another name for each"),
    (["a={base}"], "a whole model; give the run of an adapter"),
    (["a={run}"], "an adapter of step 7, .* is step 6"),
  ],
)
def test_what_is_no_adapter_of_the_base_is_refused(adapters, message, run, base):
  entries = [entry.format(run=run[0], base=base) for entry in adapters]
  refused(message, lambda: load_adapters(load_model(f"{base}/checkpoints/6"), entries))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"train_layers": 1}, "train_layers=1: has no use with an adapter"),
    ({"methods": (Adapter(targets="nowhere"),)}, "adapter.targets=nowhere: matches no kernel"),
    # Kernels and the rows of special tokens have a change of their own.
    (
      {"methods": (Adapter(targets="kernel", trained="tokens|kernel"),)},
      "adapter.trained=.*: matches no other param",
    ),
  ],
)
def test_options_that_do_not_go_with_an_adapter(changes, message, base, animals, tmp_path):
  config = FinetuneConfig(**{**vars(CONFIG), **changes})
  refused(message, finetune.run, config, animals, base, str(tmp_path / "run"))


@pytest.mark.parametrize("name", ["targets", "trained"])
def test_a_pattern_that_is_none_is_refused(name):
  refused(rf"adapter\.{name}=\(: no regular expression \(missing", Adapter, **{name: "("})


@pytest.mark.e2e
def test_a_run_that_ends_early_has_a_result(base, animals, tmp_path):
  # So small a rate changes no answer.
  config = dataclasses.replace(CONFIG, patience=1, optim=OptimConfig(learning_rate=1e-9))
  (result,) = finetune.run(config, animals, base, str(tmp_path / "run"))
  assert result["steps"] < CONFIG.train.epochs * 8 and result["best"]["step"] < result["steps"]
  report = json.loads((tmp_path / "run" / "dev_report.json").read_text())
  assert report["accuracy"] == pytest.approx(result["best"]["dev_accuracy"])


def test_merged_weights_are_added_up_in_order():
  """Whatever the machine: a digest of them says which base an adapter is of."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(5, 9)).astype("f4"), rng.normal(size=(9, 7)).astype("f4")
  expected = np.zeros((5, 7), np.float32)
  for i, o in np.ndindex(5, 7):
    for r in range(9):
      expected[i, o] += a[i, r] * b[r, o]
  np.testing.assert_array_equal(low_rank_product(a, b), expected)


def test_merged_weights_compute_the_same_and_the_base_has_no_gradient(tiny_tokenizer):
  trunk = TRUNK.with_vocabulary(tiny_tokenizer)
  head = {"type": "classify", "num_classes": 2, "dropout": 0.0}
  spec = ModelConfig(trunk, make_heads([head]))
  ids = np.arange(8, dtype=np.int32)[None]
  labels = Labels(np.array([[7]], np.int32), np.array([[1, 0]], np.float32), np.ones(1, np.float32))
  batch = Batch(Rows(ids, ids), labels=labels)
  model = AdaptedModel(spec.build(), BOTH, new_rows=[trunk.vocab_size])
  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  rng = np.random.default_rng(0)
  noise = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype("f4"), params)
  params = jax.tree.map(np.add, jax.device_get(params), noise)
  loss, plain = model_loss(model), model_loss(spec.build())
  whole = merged(params, BOTH)
  value, gradient = jax.jit(jax.value_and_grad(lambda p: loss(p, batch, None)[0]))(params)
  expected = jax.jit(lambda p: plain(p, batch, None)[0])(whole)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  assert not any(x.any() for x in jax.tree.leaves(gradient[BASE]))

  @jax.jit
  @jax.grad
  def exact(adapter, params):
    return plain(merged({**params, "adapter": adapter}, BOTH), batch, None)[0]

  wanted = jax.tree.leaves(exact(params["adapter"], params))
  for ours, theirs in zip(jax.tree.leaves(gradient["adapter"]), wanted, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
  dropping = AdaptedModel(spec.build(), Adapter(rank=2, dropout=0.5))
  params = jax.device_get(jax.jit(dropping.init)(jax.random.key(0), batch)["params"])
  params = jax.tree.map(lambda x: x + np.float32(0.1), params)
  loss_at = jax.jit(lambda n: model_loss(dropping)(params, batch, step_key(0, n))[0])
  losses = {float(loss_at(n)) for n in (1, 1, 2)}
  assert len(losses) == 2
