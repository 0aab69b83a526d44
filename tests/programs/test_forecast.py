"""What a run is expected to take: said at its head, compared at its end, and made to fit."""

import dataclasses
import functools
import json
import logging
import os
import re
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from refused import refused
from tiny_runs import changed, write_table

from gpt_jax.apps.report import report
from gpt_jax.checkpoints.restore import saved_meta, saved_steps
from gpt_jax.checkpoints.run_folder import claimed_config
from gpt_jax.config import from_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.parallel import memory
from gpt_jax.parallel.memory import Forecast, gigabytes
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs import finetune, pretrain, replay
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_samples import with_samples
from gpt_jax.programs.pretrain_text import load_text
from gpt_jax.tasks.table import TableTask
from gpt_jax.training import fitting
from gpt_jax.training import trainer as trainers
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run import Run
from gpt_jax.training.trainer import Trainer

pytestmark = pytest.mark.e2e
TRUNK = TransformerConfig(vocab_size=125, context=16, layers=1, width=16, heads=2)
CONFIG = PretrainConfig(
  trunk=TRUNK,
  data=WindowsConfig(batch_size=64, length=16),
  train=TrainConfig(steps=60, log_every=20, checkpoint_every=0),
)


def compilations(caplog):
  """How often the training step was compiled."""
  lines = [record.getMessage() for record in caplog.records]
  return len([line for line in lines if re.match(r"Finished XLA compilation of jit\(step\)", line)])


def plan_of(workdir):
  return json.loads((workdir / "plan.json").read_text())


def build(config, **changes):
  """A pre-training that is planned, but not run; `changes`: of its recipe."""
  recipe = pretrain.step_recipe(config, causal_batch_of, make_mesh(config.mesh))
  return Run(dataclasses.replace(recipe, **changes), [])


def causal_batch_of(rows, draw):
  return causal_batch(rows)


def forecast_of(config, limit=0.0):
  return plan_within(limit, build(config))


def plan_within(limit, run):
  """The plan where there are so many bytes of memory; 0: those of this machine."""
  with pytest.MonkeyPatch.context() as patch:
    if limit:
      patch.setattr(memory, "limit", lambda _: limit)
    return run.plan()


def test_a_run_says_what_it_needs_and_then_what_it_took(prepared, tmp_path, capsys, caplog):
  config = changed(CONFIG, trunk={"vocab_size": 0})
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    pretrain.run(config, prepared, str(tmp_path / "run"))
  assert compilations(caplog) == 1  # the compiled step that was asked is the one that ran
  lines = capsys.readouterr().err.splitlines()
  (head,) = [line for line in lines if line.startswith("plan ")]
  assert re.fullmatch(r"plan    [\d.]+ GB of [\d.]+ GB", head)
  (end,) = [line for line in lines if line.startswith("planned ")]
  assert re.match(r"planned [\d.]+ GB; was [\d.]+ GB, \d+ s for 60 steps", end)
  assert lines.index(head) < lines.index(end)

  plan = plan_of(tmp_path / "run")
  assert plan["forecast"]["memory"] > 0
  assert plan["outcome"]["steps"] == 60
  assert plan["outcome"]["memory"] == pytest.approx(memory.peak(jax.devices()), rel=0.1)
  page = open(report.run([str(tmp_path / "run")]), encoding="utf-8").read()
  assert " GB planned" in page

  # Nothing is left to do: nothing is compiled, and nothing is planned.
  caplog.clear()
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    pretrain.run(config, prepared, str(tmp_path / "run"))
  assert compilations(caplog) == 0
  again = plan_of(tmp_path / "run")
  assert again | {"starts": plan["starts"]} == plan  # what the run took
  assert "plan" not in capsys.readouterr().err.replace("plan.json", "")


def test_a_step_that_was_asked_does_not_compile_again(caplog):
  """Where parameters are sharded; the runs of this file are data parallel."""
  mesh = MeshConfig(data=4, model=2, fsdp=True)
  # A vocabulary that is compiled by no other test.
  config = changed(CONFIG, trunk={"vocab_size": 126}, mesh=mesh, train={"microbatches": 2})
  trainer = build(config).trainer
  batch = causal_batch(np.zeros((64, 17), np.int32))
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    assert trainer.memory_with(trainer.compile(batch)).most > 0
    state = trainer.init(0)
    for _ in range(2):
      state, _ = trainer.step(state, trainer.to_device(batch), 0)
  assert compilations(caplog) == 1


def test_pmap_runs_without_a_plan_of_memory():
  assert forecast_of(dataclasses.replace(CONFIG, mesh=MeshConfig(backend="pmap"))) == Forecast()


def advised(message):
  """(NAME, VALUE) of each config.NAME=VALUE in a line."""
  return re.findall(r"config\.([\w.]+)=([^\s,;]+)", message)


LARGE = changed(CONFIG, data=WindowsConfig(batch_size=4096, length=16), train={"microbatches": 1})


@pytest.fixture(scope="module")
def compiled_once():
  """The programs of LARGE's step by their number of microbatches."""
  return {}


@pytest.fixture
def compiled_alone(monkeypatch, compiled_once):
  """Only the step as compiled counts, for compiling takes memory of the process, too.

  No number of microbatches of LARGE is compiled twice.
  """
  compile_step = Trainer.compile

  def compile_once(trainer, batch):
    assert len(batch.rows.inputs) == LARGE.data.batch_size
    if trainer.microbatches not in compiled_once:
      compiled_once[trainer.microbatches] = compile_step(trainer, batch)
    return compiled_once[trainer.microbatches]

  monkeypatch.setattr(memory, "in_use", lambda devices: 0.0)
  monkeypatch.setattr(Trainer, "compile", compile_once)


@pytest.fixture
def limit(compiled_alone):
  """Bytes that LARGE needs more than, and its step in 16 microbatches less than."""
  whole = forecast_of(LARGE)
  assert whole.limit > whole.memory > 0
  split = forecast_of(changed(LARGE, train={"microbatches": 16}))
  assert split.memory < whole.memory / 2
  return (whole.memory / 2 + split.memory) / 2


@pytest.mark.parametrize("steps, programs", [(60, 1), (1000, 2)])  # which has samples, too
def test_the_plan_of_a_cpu_has_what_other_programs_take(
  compiled_alone, prepared, monkeypatch, steps, programs
):
  config = changed(CONFIG, trunk={"vocab_size": 0}, train=TrainConfig(steps=steps))
  whole = with_samples()(config, load_text(config, prepared))
  assert whole.other_programs == programs
  alone = forecast_of(LARGE)
  in_use = iter([1e9, 1.5e9, 1.5e9])  # before the step is compiled, and after
  monkeypatch.setattr(memory, "in_use", lambda devices: next(in_use))
  forecast = build(LARGE, other_programs=programs).plan()
  assert forecast.memory == pytest.approx(1.5e9 + alone.memory + programs * 0.5e9)


def test_more_of_freed_memory_is_kept_where_there_is_room(compiled_alone):
  keeps = forecast_of(LARGE)
  returns = forecast_of(LARGE, limit=keeps.memory)
  block = (keeps.memory - returns.memory) / 2
  assert block > 0 and (returns.room, keeps.room) == pytest.approx((1.5 * block, 2.5 * block))
  assert returns.waits and not keeps.waits


def test_the_advice_makes_a_pre_training_fit(limit):
  with pytest.warns(
    UserWarning, match=r"needs up to [\d.]+ GB of memory, and this machine has"
  ) as said:
    forecast_of(LARGE, limit)
  changes = advised(str(said[0].message))
  assert [name for name, _ in changes] == ["train.microbatches"]
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert forecast_of(override_all(LARGE, changes), limit).memory <= limit


@pytest.mark.parametrize(
  "state, each_row, advice",
  [
    (10.0, 1.0, {"train.microbatches": "2"}),  # 42 bytes or fewer fit
    (40.0, 1.0, {"train.microbatches": "32"}),
    (41.5, 1.0, {"train.microbatches": "64", "train.remat": "dots"}),
    (45.0, 1.0, None),
  ],
)
def test_the_advice_for_an_accelerator(state, each_row, advice):
  compiled = []

  @functools.cache
  def peak(microbatches, remat):
    compiled.append((microbatches, remat))
    kept = {"none": 1.0, "dots": 0.5, "full": 0.25}[remat]
    return state + kept * 64 * each_row / microbatches

  counts = fitting.larger_counts(128, 2, 1)
  assert counts == [1, 2, 4, 8, 16, 32, 64]
  with pytest.raises(InputError, match="and a device has") as error:
    fitting.fit_into_memory(peak, counts, "none", 42.0, "a smaller batch", platform="gpu")
  changes = dict(advised(str(error.value)))
  assert changes == (advice or {})
  if advice:
    count, remat = int(changes["train.microbatches"]), changes.get("train.remat", "none")
    assert peak(count, remat) <= 42.0 and len(compiled) <= 15
  else:
    assert "use a smaller batch, more microbatches or devices" in str(error.value)


@pytest.mark.parametrize(
  "platform, state, limit, count",
  [
    ("cpu", 0.0, 64.0, 2),  # nine tenths of it are for the step
    ("gpu", 0.0, 64.0, 1),
    ("cpu", 40.0, 52.0, 16),
    ("cpu", 40.0, 41.0, 64),  # nothing leaves a tenth
    ("cpu", 0.0, 0.0, 1),  # unknown
  ],
)
def test_the_number_of_microbatches_is_chosen(platform, state, limit, count, capsys):
  def peak(microbatches, remat):
    assert remat == "none"
    return state + 64 / microbatches

  arguments = peak, fitting.larger_counts(64, 1, 1), "none", limit, "a smaller batch"
  assert fitting.fit_into_memory(*arguments, chooses=True, platform=platform) == count
  assert (f"microbatches {count}, so that" in capsys.readouterr().err) == (count > 1)
  if limit and peak(1, "none") > limit:  # a number that is set stays
    with pytest.warns(UserWarning, match="it fits with config.train.microbatches="):
      assert fitting.fit_into_memory(*arguments) == 1


def test_a_step_too_large_for_any_number_is_said():
  def peak(microbatches, remat):
    return 110.0 if remat == "none" else 90.0

  given = peak, [1, 2, 4], "none", 100.0, "a smaller batch"
  for platform, outcome in (
    ("cpu", pytest.warns(UserWarning, match="use a smaller batch, more")),
    ("gpu", pytest.raises(InputError, match="it fits with config.train.remat=dots,")),
  ):
    with outcome:
      fitting.fit_into_memory(*given, chooses=True, platform=platform)


def test_the_chosen_number_fits(limit):
  open_config = changed(LARGE, train={"microbatches": 0})
  run = build(open_config)
  forecast = plan_within(limit, run)
  assert run.trainer.microbatches == run.recipe.config.train.microbatches > 1
  assert 0 < forecast.memory <= limit
  run = build(open_config)
  trainer = run.trainer
  assert plan_within(10 * limit, run).memory and run.trainer is trainer


def test_processes_agree_on_a_number(monkeypatch, capsys):
  """Of the least that one of them has, and the most that one of them needs.

  Threads are the processes here: they wait for each other wherever processes do.
  """
  barrier, given, own = threading.Barrier(2, timeout=30), {}, threading.local()

  def of_both(reduce):
    def agreed(value):
      given[own.number] = value
      barrier.wait()
      result = reduce(given.values())
      barrier.wait()
      return result

    return agreed

  for module in (fitting, trainers):
    monkeypatch.setattr(module, "largest", of_both(max))
  monkeypatch.setattr(fitting, "smallest", of_both(min))
  monkeypatch.setattr(memory, "limit", lambda _: own.limit)
  monkeypatch.setattr(memory, "in_use", lambda _: 0.0)
  monkeypatch.setattr(memory, "needed", lambda parts, _: memory.Needed(own.needed / parts))
  monkeypatch.setattr(Trainer, "compile", lambda trainer, _: trainer.microbatches)

  def plan(run, number, limit, needed):
    own.number, own.limit, own.needed = number, limit, needed
    run.plan()
    return run.recipe.config.train.microbatches

  runs = [build(changed(LARGE, train={"microbatches": 0})) for _ in range(2)]
  with ThreadPoolExecutor(2) as pool:
    counts = pool.map(plan, runs, range(2), (1.2e9, 0.6e9), (0.5e9, 1e9))
    assert list(counts) == [2, 2]
  line = "microbatches 2, so that training needs up to 0.50 GB, not 1.00 GB; there are 0.60 GB"
  assert line in capsys.readouterr().err


@pytest.fixture
def has_memory_for(monkeypatch):
  """has_memory_for(count): the machine has room for steps in at least so many microbatches.

  Returns the numbers with which a step is asked for, in turn. A step that does not fit is not
  compiled.
  """
  asked, compile_step = [], Trainer.compile

  def compile_fitting(trainer, batch):
    asked.append(trainer.microbatches)
    fits = trainer.memory_with(None).most <= memory.limit(())
    return compile_step(trainer, batch) if fits else None

  def set_limit(count):
    monkeypatch.setattr(memory, "limit", lambda devices: 1.2e9 / count)
    asked.clear()
    return asked

  def memory_with(trainer, _):
    size = 1e9 / trainer.microbatches
    return memory.Needed(size, temporaries=0.1 * size)

  monkeypatch.setattr(Trainer, "memory_with", memory_with)
  monkeypatch.setattr(memory, "in_use", lambda devices: 0.0)  # compiling takes no memory
  monkeypatch.setattr(Trainer, "compile", compile_fitting)
  return set_limit


def microbatches_of(workdir):
  """Those in config.json and in the checkpoint."""
  meta = saved_meta(str(workdir), max(saved_steps(str(workdir))))
  saved = claimed_config(str(workdir)), from_json(meta["config"])
  return tuple(config.train.microbatches for config in saved)


@pytest.fixture
def freed(monkeypatch):
  """The room that runs had for freed memory, in bytes, and whether their steps waited."""
  given, freed_memory = [], memory.FreedMemory

  def record(room, waits):
    given.append((room, waits))
    return freed_memory(room, waits)

  monkeypatch.setattr(memory, "FreedMemory", record)
  return given


def test_a_run_keeps_the_number_that_it_chose(
  prepared, tmp_path, has_memory_for, freed, monkeypatch, capsys, caplog
):
  workdir = tmp_path / "chosen"

  def train(steps, count=0):
    length = {"steps": steps, "microbatches": count}
    config = changed(CONFIG, trunk={"vocab_size": 0}, train=length)
    pretrain.run(config, prepared, str(workdir))

  asked = has_memory_for(4)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    train(2)
  assert asked == [1, 4] and compilations(caplog) == 1  # what was asked is what ran
  assert freed == [(1.5 * 0.025e9, True)]
  assert "microbatches 4, so that training needs up to 0.25 GB, not 1.00 GB; there are 0.30 GB" in (
    capsys.readouterr().err
  )
  assert microbatches_of(workdir) == (4, 4)
  refused("train.microbatches: 4 != 2", train, 4, count=2)

  has_memory_for(1)
  train(4)
  assert microbatches_of(workdir) == (4, 4)
  assert "microbatches" not in capsys.readouterr().err
  assert replay.run(str(workdir), 4, prepared)["equal"]  # as one in which the number was set

  # Also where it no longer fits.
  class Planned(Exception):
    pass

  def first_state(trainer, *_):
    assert trainer.microbatches == 4
    raise Planned

  monkeypatch.setattr(Trainer, "restore_or_init", first_state)
  asked = has_memory_for(16)
  with (
    pytest.warns(UserWarning, match="needs up to 0.25 GB of memory, and this machine has 0.07 GB"),
    pytest.raises(Planned),
  ):
    train(5)
  assert asked[0] == 4
  assert microbatches_of(workdir) == (4, 4)


def test_all_seeds_and_folds_have_one_number(
  make_run, tiny_tokenizer, tmp_path, has_memory_for, freed, monkeypatch, capsys, caplog
):
  trunk = dataclasses.replace(TRUNK, context=64, vocab_size=tiny_tokenizer.vocab_size)
  source = make_run(tmp_path / "source", ModelConfig(trunk))
  (tmp_path / "table").mkdir()
  rows = [(f"{('dog', 'cat')[n % 2]} number {n}", str(n % 2)) for n in range(96)]
  table = write_table(tmp_path / "table", rows)
  config = finetune.FinetuneConfig(
    task=TableTask(), batch_size=32, mesh=MeshConfig(data=4, model=2), train=TrainConfig(steps=2)
  )
  asked = has_memory_for(4)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    finetune.run(config, table, source, str(tmp_path / "seeds"), seeds=2)
  assert asked == [1, 4] and compilations(caplog) == 1  # for both seeds
  assert freed == 2 * [(1.5 * 0.025e9, True)]
  said = capsys.readouterr().err
  assert said.count("so that training needs up to") == 1
  assert len(re.findall(r"^planned [\d.]+ GB; was [\d.]+ GB", said, re.MULTILINE)) == 2
  for seed in range(2):
    assert microbatches_of(tmp_path / "seeds" / f"seed_{seed}") == (4, 4)

  made = []

  def train(run, seed, folder, **_):
    """Trains nothing, and leaves what looks like a checkpoint."""
    if run.recipe.config.train.microbatches == 1:  # open
      run.plan()
      run.claim(seed, folder, may_replace=True)
    os.makedirs(f"{folder}/checkpoints/2", exist_ok=True)
    of_folder = claimed_config(folder).train.microbatches
    made.append((run.recipe.config.train.microbatches, run.trainer.microbatches, of_folder))
    metrics = {"dev_accuracy": 0.5}
    return {"task": "table", "seed": 0, "dev": metrics, "best": {"step": 1, **metrics}}

  monkeypatch.setattr(Run, "train", train)
  for seed in range(2):
    os.remove(tmp_path / "seeds" / f"seed_{seed}" / "result.json")
  has_memory_for(1)
  finetune.run(config, table, source, str(tmp_path / "seeds"), seeds=3)
  assert made == [(4, 4, 4)] * 3  # the seed that is added, too
  made.clear()
  asked = has_memory_for(8)
  monkeypatch.setattr(Trainer, "compile", lambda trainer, _: asked.append(trainer.microbatches))
  finetune.run(config, table, source, str(tmp_path / "folds"), folds=2)
  assert asked == [1, 8] and made == [(8, 8, 8)] * 2
  assert capsys.readouterr().err.count("so that training needs up to") == 1


def test_memory_in_use_follows_an_allocation():
  before = memory.in_use(jax.devices())
  held = np.ones(64 << 20, np.uint8)
  assert memory.in_use(jax.devices()) - before > 0.9 * held.nbytes
  assert memory.peak(jax.devices()) >= memory.in_use(jax.devices())
  assert 0 < memory.limit(jax.devices()) <= 8 * memory.capacity(jax.devices())


def test_an_accelerator_needs_its_step_alone():
  sizes = {"argument": 4, "output": 4, "alias": 3, "temp": 10}
  analysis = types.SimpleNamespace(**{f"{name}_size_in_bytes": n for name, n in sizes.items()})
  compiled = types.SimpleNamespace(memory_analysis=lambda: analysis)
  device = types.SimpleNamespace(platform="gpu")
  assert memory.needed(compiled, [device, device]) == (15, 0)
  device.platform = "cpu"  # a checkpoint holds the state again, malloc the temporaries
  assert memory.needed(compiled, [device, device]) == (2 * (15 + 4 + 10), 20)


def test_sizes_are_written_in_few_digits():
  assert (gigabytes(0.2500e9), gigabytes(11.24e9)) == ("0.25 GB", "11.2 GB")
