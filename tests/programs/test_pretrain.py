"""Pre-training end to end on a tiny prepared folder: learning, resumption, files, refusals."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from refused import refused
from shared_trainers import two_devices  # noqa: F401
from tiny_runs import PRETRAIN, assert_equal, changed, entries, write_text

from gpt_jax.batch import Mean
from gpt_jax.checkpoints.remote import lock
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.checkpoints.run_folder import claim, claimed_config
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.contrastive import DropoutViews
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_sentences import FullSentences
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import pretrain
from gpt_jax.programs.pretrain_start import LayerwiseConfig, from_checkpoint
from gpt_jax.programs.pretrain_text import load_text, make_measure
from gpt_jax.training import hooks, run
from gpt_jax.training.hooks import Interval, RunContext
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.recipe import Evaluation
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.step import TrainState

pytestmark = pytest.mark.e2e
CONFIG = changed(
  PRETRAIN,
  # Without decay, which is not scaled by the learning rate, the first update changes nothing.
  optim={"weight_decay": 0.0},
  train=TrainConfig(steps=24, log_every=5, evaluate_every=10, checkpoint_every=12),
)


def assert_same_bits(a, b):
  """The newest parameters of two workdirs."""
  (a, _, step_a), (b, _, step_b) = (restore_params(str(workdir)) for workdir in (a, b))
  assert step_a == step_b
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x.view(np.uint32), y.view(np.uint32)), a, b
  )


@pytest.fixture(scope="module")
def uninterrupted(prepared, tmp_path_factory):
  """(workdir, evaluation) of a run without interruption."""
  workdir = str(tmp_path_factory.mktemp("pretrain") / "uninterrupted")
  return workdir, pretrain.run(CONFIG, prepared, workdir)


def test_files_of_a_run(uninterrupted, prepared):
  workdir, evaluation = uninterrupted
  assert {"config.json", "metrics.jsonl", "checkpoints", "tokenizer"} <= set(os.listdir(workdir))
  assert load_tokenizer(f"{workdir}/tokenizer").hash == load_tokenizer(f"{prepared}/tokenizer").hash
  trained = [entry for entry in entries(workdir) if "loss" in entry]
  evaluated = [entry for entry in entries(workdir) if "valid_loss" in entry]
  assert [entry["step"] for entry in trained] == [5, 10, 15, 20, 24]
  assert [entry["step"] for entry in evaluated] == [10, 20, 24]
  assert {"loss", "learning_rate", "gradient_norm", "tokens_per_second"} <= set(trained[0])
  assert {name: evaluated[-1][name] for name in evaluation} == evaluation
  # Saved at 10, 12, 20 and 24; the newest three are kept, and the last one is also the best.
  assert sorted(os.listdir(f"{workdir}/checkpoints")) == ["12", "20", "24"]
  assert restore_params(workdir)[1]["trained_special"] == []


def test_an_evaluation_of_some_batches_has_the_first_rows(uninterrupted, copied, tiny_tokenizer):
  """Of all rows: tests/inference/test_evaluate.py, against a loop over the tokens."""
  params, _, _ = restore_params(uninterrupted[0])
  texts = [f"the {'cat sat' if n < 16 else 'dog ran'} by the sea" for n in range(20)]
  mesh, losses = make_mesh(MeshConfig(), jax.devices()[:1]), []
  for batches, count in ((0, 20), (1, 20), (0, 16)):  # texts are shorter than a row
    write_text(copied, "valid", tiny_tokenizer, texts[:count])
    config = changed(CONFIG, trunk={"vocab_size": 290}, evaluation_batches=batches)
    measure = make_measure(config, load_text(config, str(copied)), mesh)
    losses.append(measure(params)["valid_loss"])
  assert losses[1] == pytest.approx(losses[2], rel=1e-6)
  assert losses[1] != pytest.approx(losses[0], rel=1e-4)


class Stop(Exception):
  pass


def crash():
  raise Stop


def stop_at(monkeypatch, step, act=crash):
  """Calls act() when the progress of a step is reported."""
  progress = Reporter.progress

  def report(self, now, *args):
    progress(self, now, *args)
    if now == step:
      act()

  monkeypatch.setattr(Reporter, "progress", report)


def assert_same_run(workdir, uninterrupted):
  """The same parameters and numbers; returns the metrics of both but for times."""
  assert_same_bits(workdir, uninterrupted[0])
  timeless = ("time", "tokens_per_second", "input_wait")
  return [
    [{k: v for k, v in e.items() if k not in timeless} for e in entries(w)]
    for w in (workdir, uninterrupted[0])
  ]


@pytest.mark.parametrize("place", ["", "gs"])
def test_a_crashed_run_resumes_exactly(
  uninterrupted, prepared, tmp_path, request, monkeypatch, capsys, place
):
  """Before its first checkpoint, and again after the third."""
  workdir = request.getfixturevalue(place) if place else str(tmp_path / "run")
  for step in (5, 20):
    with monkeypatch.context() as patch, pytest.raises(Stop):
      stop_at(patch, step)
      pretrain.run(CONFIG, prepared, workdir)
  assert "resumed" not in capsys.readouterr().err
  assert pretrain.run(CONFIG, prepared, workdir) == uninterrupted[1]
  assert "resumed at step 12" in capsys.readouterr().err
  mine, theirs = assert_same_run(workdir, uninterrupted)
  assert [e["step"] for e in mine] == [e["step"] for e in theirs]
  assert mine[-1] == theirs[-1]


def test_a_run_resumes_with_the_type_it_chose(uninterrupted, prepared, tmp_path, monkeypatch):
  workdir = tmp_path / "run"
  shutil.copytree(uninterrupted[0], workdir)
  for step in ("20", "24"):
    shutil.rmtree(workdir / "checkpoints" / step)
  monkeypatch.setattr("gpt_jax.checkpoints.run_folder.bfloat16_speed", lambda: math.inf)
  config = changed(CONFIG, trunk={"dtype": "auto"}, mesh={"cpu_products": "auto"})
  pretrain.run(config, prepared, str(workdir))
  assert_same_bits(workdir, uninterrupted[0])


def test_a_terminated_run_resumes_exactly(uninterrupted, prepared, tmp_path, monkeypatch, capsys):
  """Between its checkpoints and, where an evaluation is due, after that has been made."""
  workdir, often = str(tmp_path / "run"), changed(CONFIG, train={"log_every": 1})
  stops = (
    # config, step after which the signal comes, signal, step that was made all the same
    (CONFIG, 5, signal.SIGINT, 6),
    (often, 9, signal.SIGTERM, 10),
    (often, 12, signal.SIGTERM, 13),
    (often, 23, signal.SIGTERM, 24),
  )
  resumed_at = 0
  for config, step, number, stopped_at in stops:
    with monkeypatch.context() as patch, pytest.raises((SystemExit, KeyboardInterrupt)) as stopped:
      stop_at(patch, step, lambda number=number: os.kill(os.getpid(), number))
      pretrain.run(config, prepared, workdir)
    if number == signal.SIGINT:
      assert stopped.type is KeyboardInterrupt
    else:
      assert stopped.value.code == 143
    shown = capsys.readouterr().err
    assert f"stopped at step {stopped_at} of 24 and saved" in shown
    assert (f"resumed at step {resumed_at}" in shown) == (resumed_at > 0)
    resumed_at = stopped_at
  assert pretrain.run(CONFIG, prepared, workdir) == uninterrupted[1]
  mine, theirs = assert_same_run(workdir, uninterrupted)
  assert [e for e in mine if "valid_loss" in e] == [e for e in theirs if "valid_loss" in e]


def test_a_finished_run_only_evaluates(uninterrupted, prepared, monkeypatch):
  before = entries(uninterrupted[0])
  monkeypatch.setattr(
    "gpt_jax.data.windows.Windows.__call__", lambda *_: pytest.fail("trained again")
  )
  assert pretrain.run(CONFIG, prepared, uninterrupted[0]) == uninterrupted[1]
  assert entries(uninterrupted[0]) == before


def test_a_run_resumes_with_other_devices_and_another_rhythm(uninterrupted, prepared, tmp_path):
  """To float tolerance: sums in another order round differently."""
  workdir = str(tmp_path / "run")
  shutil.copytree(uninterrupted[0], workdir)
  shutil.rmtree(f"{workdir}/checkpoints/24")
  train = {"log_every": 1, "checkpoint_every": 7, "keep_checkpoints": 9}
  config = changed(CONFIG, train=train, mesh=MeshConfig(data=2, model=2, fsdp=True))
  evaluation = pretrain.run(config, prepared, workdir)
  assert evaluation["valid_loss"] == pytest.approx(uninterrupted[1]["valid_loss"], abs=1e-4)
  assert sorted(os.listdir(f"{workdir}/checkpoints")) == ["12", "20", "21", "24"]


def test_milestones_stay_if_the_command_that_goes_on_does_not_name_them(
  uninterrupted, prepared, tmp_path
):
  workdir = shutil.copytree(uninterrupted[0], tmp_path / "run")
  content = json.loads((workdir / "config.json").read_text())
  content["config"]["train"]["milestone"] = 12
  (workdir / "config.json").write_text(json.dumps(content))
  pretrain.run(changed(CONFIG, train={"keep_checkpoints": 1}), prepared, str(workdir))
  assert {"12", "24"} <= {*os.listdir(workdir / "checkpoints")}


def test_microbatches_that_do_not_divide_on_these_devices_are_chosen_anew(
  tmp_path, tiny_tokenizer, capsys
):
  workdir, count = str(tmp_path / "run"), CONFIG.data.batch_size  # as one device may have had them
  claim(workdir, changed(CONFIG, train={"microbatches": count}), tiny_tokenizer, {})
  (tmp_path / "run" / "checkpoints" / "12").mkdir(parents=True)
  bound = CONFIG.objective.bind(tiny_tokenizer, CONFIG.data.length)
  recipe = pretrain.step_recipe(CONFIG, bound, make_mesh(MeshConfig(data=2), jax.devices()[:2]))
  recipe = dataclasses.replace(recipe, config=CONFIG, tokenizer=tiny_tokenizer, identity={})
  resumed = run.Run(recipe, [workdir])
  assert f"chosen anew, as {count} do not divide" in capsys.readouterr().err
  resumed.claim(CONFIG.train.seed, workdir)
  fixed = dataclasses.replace(recipe, config=changed(CONFIG, train={"microbatches": 1}))
  refused("train.microbatches: .* != 1", run.Run(fixed, [workdir]).claim, 0, workdir)


def test_a_second_start_leaves_the_folder_of_a_run_at_work_as_it_is(tmp_path, tiny_tokenizer):
  workdir, bound = str(tmp_path / "run"), CONFIG.objective.bind(tiny_tokenizer, CONFIG.data.length)

  def start(microbatches):
    config = changed(CONFIG, train={"microbatches": microbatches})
    recipe = pretrain.step_recipe(config, bound, make_mesh(MeshConfig(data=1), jax.devices()[:1]))
    recipe = dataclasses.replace(recipe, config=config, tokenizer=tiny_tokenizer, identity={})
    return run.Run(recipe, [workdir])

  start(2).claim(0, workdir)
  with contextlib.closing(lock(workdir)):
    refused("another run is at work there", start(4).train, 0, workdir)
  assert claimed_config(workdir).train.microbatches == 2
  start(4).claim(0, workdir, may_replace=True)  # before its first checkpoint a run may change it
  assert claimed_config(workdir).train.microbatches == 4


def test_when_a_run_saves_and_what_stays(tmp_path, tiny_tokenizer):
  """Saved at the milestones too, which stay beside the newest two."""
  train = {"evaluate_every": 5, "checkpoint_every": 3, "milestone": 2, "keep_checkpoints": 2}
  config = changed(CONFIG, train=train)
  reporter = SimpleNamespace(start_step=0, steps_planned=24, sync=lambda: None)
  reporter.paused = contextlib.nullcontext
  measured = Evaluation(dict, "valid_loss", "min", hooks.every(5))
  bound = config.objective.bind(tiny_tokenizer, config.data.length)
  recipe = pretrain.step_recipe(config, bound, make_mesh(config.mesh))
  recipe = dataclasses.replace(recipe, evaluation=measured)
  kept = hooks.powers_of_two_times(2)
  with run.Checkpoints(str(tmp_path), "valid_loss", "min", kept, 2) as checkpoints:
    context = RunContext(str(tmp_path), 0, reporter)
    *_, save = run.make_hooks(recipe, context, checkpoints)
    assert [step for step in range(1, 13) if save.due(step)] == [2, 3, 4, 5, 6, 8, 9, 10, 12]
    assert save.is_due(7, 7, False) and save.is_due(7, 24, True)  # at the end, and when stopped
    for step in (2, 3, 4, 5, 6):
      state = TrainState(np.array(step, np.int32), {"w": np.zeros(step, np.float32)}, {})
      save.run(hooks.StepContext(step, 24, False, state, Interval(), {}))
  assert sorted(os.listdir(tmp_path / "checkpoints"), key=int) == ["2", "4", "5", "6"]


def test_a_run_that_is_stuck_is_one_above_the_unigram_entropy_after_warm_up(prepared):
  text = TokenFile(prepared, "train")
  trunk = dataclasses.replace(CONFIG.trunk, vocab_size=text.vocab_size)
  (hook,) = pretrain.warn_when_stuck(CONFIG, ModelConfig(trunk), text, 24)
  assert [step for step in range(1, 25) if hook.due(step)] == [5, 10, 15, 20]

  def at(step, loss):
    interval = Interval()
    interval.add(step, {"finite": True, "loss": Mean(np.float32(loss), np.float32(1))})
    hook.run(hooks.StepContext(step, 24, False, None, interval, {}))

  with warnings.catch_warnings(action="error"):
    at(20, 9.0)  # twice the warm-up
    at(24, text.unigram_entropy - 0.01)
  with pytest.warns(UserWarning, match="not below the unigram entropy"):
    at(24, text.unigram_entropy + 0.01)


# Refusals, before any training time is spent.


@pytest.mark.parametrize(
  "changes, match",
  [
    ({"data": {"batch_size": 12}}, r"data.batch_size=12: must be a multiple of 8 .*; use 8"),
    ({"train": {"microbatches": 4}}, r"data.batch_size=16: must be a multiple of 32"),
    ({"mesh": {"data": 3}}, "mesh.data=3 and mesh.model=1 need 3 devices; there are 8 .cpu"),
    ({"mesh": {"model": 4}}, r"mesh.model=4: does not divide the axis of size 2"),
    (
      {"trunk": {"vocab_size": 1000}},
      "trunk.vocab_size=1000: the tokenizer has 290; leave the field at 0",
    ),
    ({"train": {"epochs": 1}}, "train.steps=24 and train.epochs=1: exactly one of them"),
  ],
)
def test_configs_that_do_not_fit(prepared, tmp_path, monkeypatch, changes, match):
  monkeypatch.setattr(pretrain, "make_mesh", make_mesh)  # all devices
  refused(match, pretrain.run, changed(CONFIG, **changes), prepared, str(tmp_path / "run"))


@pytest.fixture
def copied(prepared, tmp_path):
  """The prepared folder, to be damaged."""
  return shutil.copytree(prepared, tmp_path / "data")


SHORT = "the cat sat on the mat and the dog ran to the sea"


def test_damaged_folders(copied, prepared, tmp_path, tiny_tokenizer):
  def check(match, config=CONFIG, data=copied):
    refused(match, pretrain.run, config, str(data), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()

  write_text(copied, "train", tiny_tokenizer, ["the cat"])
  across = changed(CONFIG, data={"sampling": "across_documents"})
  check("are less than one window of length", across)
  for split in ("train", "valid"):
    shutil.copytree(prepared, copied, dirs_exist_ok=True)
    write_text(copied, split, tiny_tokenizer, [SHORT], hash="0" * 64)
    check(rf"{split}.bin: a token file of another vocabulary, 000000000000, not ")
  check(r"nowhere/train.json: missing; .* made by prepare.run", data=tmp_path / "nowhere")


def test_a_workdir_of_other_data(uninterrupted, copied, tiny_tokenizer):
  text = TokenFile(copied, "train")
  ids = text.read(0, text.n_tokens)
  writer = TokenWriter(copied, "train", text.vocab_size)
  for document in np.split(ids[::-1], text.offsets[1:-1]):  # as many tokens and documents
    writer.add(document, 1, 1)
  writer.close(tokenizer_hash=tiny_tokenizer.hash)
  given = CONFIG, str(copied), uninterrupted[0]
  refused(r"config \(data train_digest: \w+ != \w+\)", pretrain.run, *given)
  write_text(copied, "train", tiny_tokenizer, ["the cat sat on the mat " * 20])
  refused(r"data train_tokens: \d+ != \d+", pretrain.run, *given)


# Longer runs, and runs that start from a checkpoint.


def test_a_finished_run_goes_on_when_its_steps_are_raised(
  uninterrupted, prepared, tmp_path, monkeypatch, capsys
):
  """The remaining steps follow the new schedule, and an interruption changes nothing."""
  longer, workdirs = changed(CONFIG, train={"steps": 32}), []
  for name in ("straight", "interrupted"):
    workdirs.append(str(tmp_path / name))
    shutil.copytree(uninterrupted[0], workdirs[-1])
  make_warning = hooks.warn_when_stuck
  monkeypatch.setattr(hooks, "warn_when_stuck", lambda _, *rest: make_warning(0.1, *rest))
  with pytest.warns(UserWarning, match="not below the unigram entropy") as warned:
    pretrain.run(longer, prepared, workdirs[0])
  assert len([w for w in warned if "unigram" in str(w.message)]) == 1  # of three reports
  monkeypatch.undo()
  shown = capsys.readouterr().err
  assert "from step 24 on 32 steps instead of 24, and the learning rate follows their" in shown
  rates = {e["step"]: e["learning_rate"] for e in entries(workdirs[0]) if "learning_rate" in e}
  schedules = [make_optimizer(CONFIG.optim, steps).schedule for steps in (24, 32)]
  assert rates[24] == pytest.approx(float(schedules[0](23)), rel=1e-5)
  assert rates[30] == pytest.approx(float(schedules[1](29)), rel=1e-5)
  assert [e for e in entries(workdirs[0]) if e["step"] <= 24] == entries(uninterrupted[0])

  with monkeypatch.context() as patch, pytest.raises(Stop):
    stop_at(patch, 32)
    pretrain.run(longer, prepared, workdirs[1])
  capsys.readouterr()
  pretrain.run(longer, prepared, workdirs[1])
  shown = capsys.readouterr().err
  assert "resumed at step 30" in shown and "instead of" not in shown
  assert_same_bits(*workdirs)
  with open(f"{workdirs[1]}/config.json", encoding="utf-8") as file:
    content = json.load(file)
  assert content["config"]["train"]["steps"] == 32
  assert content["changes"] == [{"at_step": 24, "total_steps": [24, 32]}]


def test_a_run_is_not_made_shorter_than_it_is(uninterrupted, prepared):
  before = Path(uninterrupted[0], "config.json").read_text()
  config = changed(CONFIG, train={"steps": 23})
  message = "train.steps=23: the run in .* has made 24 updates already"
  refused(message, pretrain.run, config, prepared, uninterrupted[0])
  assert Path(uninterrupted[0], "config.json").read_text() == before


def test_a_constant_rate_does_not_depend_on_the_length(tmp_path, tiny_tokenizer, capsys):
  """The optimizer alone knows the length; so a run made longer equals one that had it at once."""
  short = changed(CONFIG, optim={"schedule": "constant"}, train={"steps": 4})
  longer, workdir = changed(short, train={"steps": 9}), str(tmp_path / "run")
  claim(workdir, short, tiny_tokenizer, {})
  bound = longer.objective.bind(tiny_tokenizer, longer.data.length)
  recipe = pretrain.step_recipe(longer, bound, make_mesh(longer.mesh))
  run.change_length(dataclasses.replace(recipe, config=longer), workdir, 4)
  assert "9 steps instead of 4, which does not change the learning" in capsys.readouterr().err
  assert claimed_config(workdir).train.steps == 9
  schedules = [make_optimizer(short.optim, steps).schedule for steps in (4, 9)]
  for count in range(9):
    assert schedules[0](count) == schedules[1](count)


def test_a_run_starts_from_a_checkpoint(uninterrupted, prepared, tmp_path, monkeypatch, capsys):
  """The first update has learning rate 0: its parameters are the checkpoint's."""
  # The checkpoint brings its own sizes.
  often = {"checkpoint_every": 1, "log_every": 1}
  config = changed(CONFIG, trunk=TransformerConfig(), train=often)
  workdir, pretrained = str(tmp_path / "run"), uninterrupted[0]
  start = from_checkpoint(pretrained)
  with monkeypatch.context() as patch, pytest.raises(Stop):
    stop_at(patch, 3)
    pretrain.run(config, prepared, workdir, make_recipe=start)
  assert f"start   {pretrained}, step 24: sizes, vocabulary" in capsys.readouterr().err
  first = f"{workdir}/checkpoints/1"
  mine, theirs = (restore_params(folder)[0]["trunk"] for folder in (first, pretrained))
  vocab_size = load_tokenizer(f"{prepared}/tokenizer").vocab_size
  for trunk in (mine, theirs):  # untrained special tokens are drawn anew
    trunk["tokens"] = trunk["tokens"][:vocab_size]
  assert_equal(mine, theirs)

  # The start belongs to the run.
  without = changed(config, trunk=CONFIG.trunk)
  message = "another config .data pretrained: step 24, .* != None"
  refused(message, pretrain.run, without, prepared, workdir)
  config = changed(config, train={"checkpoint_every": 0})
  pretrain.run(config, prepared, workdir, make_recipe=start)
  assert "resumed at step 2" in capsys.readouterr().err
  pretrain.run(config, prepared, str(tmp_path / "straight"), make_recipe=start)
  assert_same_bits(workdir, tmp_path / "straight")


def test_layers_below_the_last_one_go_on_at_lower_rates(uninterrupted, prepared):
  fields = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)}
  config = LayerwiseConfig(**fields | {"trunk": TransformerConfig()}, layer_decay=0.25)
  recipe = from_checkpoint(uninterrupted[0])(config, pretrain.load_text(config, prepared))
  shapes = parameter_shapes(recipe.spec)
  params = unflatten_dict({path: jnp.zeros(shape) for path, shape in shapes.items()}, sep="/")
  optimizer, schedule, _ = recipe.optimizer(24)
  state, ones = optimizer.init(params), jax.tree.map(jnp.ones_like, params)
  updates = None
  for _ in range(2):  # the first one has rate 0
    updates, state = optimizer.update(ones, state, params, norm=jnp.float32(1))
  rates = {path: float(x.ravel()[0]) for path, x in flatten_dict(updates, sep="/").items()}
  last = rates["trunk/block_0/mlp/in/kernel"]
  assert last == pytest.approx(-float(schedule(1)), rel=1e-3)  # Adam's step of equal gradients
  assert rates["trunk/tokens"] == pytest.approx(0.25 * last)
  message = r"layer_decay=0.25: goes with a checkpoint to start from"
  refused(message, from_checkpoint(""), config, pretrain.load_text(config, prepared))


def test_plain_text_goes_on_in_the_checkpoints_format(
  make_run, prepared, tmp_path, tiny_tokenizer, capsys
):
  """As a released BERT does on a user's own text; and the model that comes of it keeps its head."""
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask")
  trunk = TransformerConfig(
    tokenizer.vocab_size, 32, 1, 16, 2, special_tokens=3, token_types=2, pooler=True
  )
  spec = ModelConfig(trunk, (), "bidirectional")
  bert = {"type": "bert_format"}
  start = make_run(tmp_path / "bert", spec, tokenizer=tokenizer, sequence_format=bert)
  two_steps = {"steps": 2, "evaluate_every": 0, "checkpoint_every": 1}
  config = changed(CONFIG, trunk=TransformerConfig(), objective=Masked())
  config = changed(config, train=two_steps, optim={"warmup_steps": 1})
  first, second = str(tmp_path / "first"), str(tmp_path / "second")
  longer = changed(config, train={"steps": 3})
  with pytest.warns(UserWarning, match="the masked head is new; if it stays there, train longer"):
    pretrain.run(longer, prepared, first, make_recipe=from_checkpoint(start))
  assert "weights; the masked head and the optimizer are new\n" in capsys.readouterr().err
  params, meta, _ = restore_params(f"{first}/checkpoints/1")
  assert (meta["sequence_format"], meta["trained_special"]) == (bert, ["mask"])
  for part in ("pooler", "types"):  # kept for fine-tuning; the first update has rate 0
    theirs = make_run.params_of(spec, 7)["trunk"][part]
    assert_equal(params["trunk"][part], theirs)

  pretrain.run(config, prepared, second, make_recipe=from_checkpoint(first))
  assert "weights; the optimizer is new\n" in capsys.readouterr().err
  before, (after, meta, _) = restore_params(first)[0], restore_params(f"{second}/checkpoints/1")
  assert (before["masked"]["bias"] != params["masked"]["bias"]).any()  # it was trained
  assert_equal(before["masked"], after["masked"])
  assert (meta["sequence_format"], meta["trained_special"]) == (bert, ["mask"])
  mask = load_tokenizer(f"{second}/tokenizer").special.mask
  tables = (params["trunk"]["tokens"][mask] for params in (before, after))
  np.testing.assert_array_equal(*tables)

  # Other objectives take the format, too, or refuse it.
  views = dataclasses.replace(config, objective=DropoutViews("cls", attention="bidirectional"))
  recipe = from_checkpoint(start)(views, load_text(views, prepared))
  assert recipe.spec.trunk.pooler and recipe.spec.trunk.token_types
  assert recipe.meta["sequence_format"] == bert
  config = dataclasses.replace(config, objective=FullSentences())
  message = "are of bert_format, those of .* roberta_format; use"
  refused(message, from_checkpoint(start), config, load_text(config, prepared))


def test_a_start_that_does_not_fit(uninterrupted, prepared, copied, tiny_tokenizer):
  start = from_checkpoint(uninterrupted[0])
  dtype = changed(CONFIG, trunk=LSTMConfig(dtype="bfloat16"))
  assert start(dtype, load_text(dtype, prepared)).spec.trunk.dtype == "bfloat16"
  other = SentencePieceTokenizer.train(["a cat and a dog and a car"] * 3, 276)
  other.save(str(copied / "tokenizer"))
  for split in ("train", "valid"):
    write_text(copied, split, other, ["a cat and a dog and a car " * 9])
  lstm = LSTMConfig(context=16, width=16, units=8)
  longer = {"trunk": TransformerConfig(), "data": WindowsConfig(length=32)}
  for changes, data, message in (
    ({"trunk": {"layers": 2}}, prepared, "sizes: trunk.layers=2, the checkpoint's is 1; leave"),
    ({"trunk": lstm}, prepared, "trunk is a LSTMConfig, the checkpoint a TransformerConfig"),
    ({"objective": Masked()}, prepared, "causal attention, the config's objective bidirectional"),
    (longer, prepared, "data.length=32: must not exceed trunk.context=16"),
    ({}, copied, "its vocabulary is not that of the prepared text, .*PrepareConfig.tokenizer="),
  ):
    config = changed(CONFIG, **changes)
    refused(message, start, config, load_text(config, str(data)))
