"""A run's memory: planned at its start, compared at its end, and made to fit."""

import dataclasses
import json
import logging
import re
import types

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
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.training import fitting, trainer
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run import Run
from gpt_jax.training.trainer import Trainer

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


def build(config, **changes):
  """A pre-training that is planned, but not run; `changes`: of its recipe."""
  recipe = pretrain.step_recipe(
    config, lambda rows, draw: causal_batch(rows), make_mesh(config.mesh)
  )
  return Run(dataclasses.replace(recipe, **changes), [])


@pytest.mark.e2e
def test_a_run_prints_the_memory_that_it_needs_and_then_what_it_took(
  prepared, tmp_path, capsys, caplog
):
  config = changed(CONFIG, trunk={"vocab_size": 0})
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    pretrain.run(config, prepared, str(tmp_path / "run"))
  assert compilations(caplog) == 1  # the step that was planned is the one that ran
  lines = capsys.readouterr().err.splitlines()
  (head,) = [line for line in lines if line.startswith("plan ")]
  assert re.fullmatch(r"plan    [\d.]+ GB of [\d.]+ GB", head)
  (end,) = [line for line in lines if line.startswith("planned ")]
  assert re.match(r"planned [\d.]+ GB; was [\d.]+ GB, \d+ s for 60 steps", end)
  assert lines.index(head) < lines.index(end)

  plan = json.loads((tmp_path / "run/plan.json").read_text())
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
  assert "plan" not in capsys.readouterr().err.replace("plan.json", "")


def test_a_step_that_was_planned_does_not_compile_again(caplog):
  """Where parameters are sharded; the runs of this file are data parallel."""
  mesh = MeshConfig(data=4, model=2, fsdp=True)
  # A vocabulary that is compiled by no other test.
  config = changed(CONFIG, trunk={"vocab_size": 126}, mesh=mesh, train={"microbatches": 2})
  trainer = build(config).trainer
  batch = causal_batch(np.zeros((64, 17), np.int32))
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    assert trainer.memory_with(trainer.compile(batch)) > 0
    state = trainer.init(0)
    for _ in range(2):
      state, _ = trainer.step(state, trainer.to_device(batch), 0)
  assert compilations(caplog) == 1


def test_pmap_runs_without_a_plan_of_memory():
  assert build(changed(CONFIG, mesh=MeshConfig(backend="pmap"))).plan() == Forecast()


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
  def peak(microbatches):
    compiled.add(microbatches)
    return state + 64 / microbatches

  compiled, counts = set(), fitting.larger_counts(128, 2, 1)
  assert counts == [1, 2, 4, 8, 16, 32, 64]
  assert fitting.fit_into_memory(peak, counts, limit, "a smaller batch", platform) == count
  assert (f"microbatches {count}, so that" in capsys.readouterr().err) == (count > 1)
  assert len(compiled) <= 7


def test_a_step_too_large_for_any_number():
  needs = "needs up to 0.00 GB of memory, and {} 0.00 GB; use a smaller batch, more"
  for counts in ([1, 2, 4], [1]):  # a number that is set stays
    given = lambda microbatches: 110.0, counts, 100.0, "a smaller batch"
    with pytest.warns(UserWarning, match=needs.format("this machine has")):
      assert fitting.fit_into_memory(*given, "cpu") == 1
    with pytest.raises(InputError, match=needs.format("a device has")):
      fitting.fit_into_memory(*given, "gpu")


@pytest.fixture
def has_memory_for(monkeypatch):
  """has_memory_for(count): the machine has room for steps in at least so many microbatches.

  Returns the numbers with which a step is asked for, in turn. A step that does not fit is not
  compiled.
  """
  asked, compile_step = [], Trainer.compile

  def compile_fitting(trainer, batch):
    asked.append(trainer.microbatches)
    fits = trainer.memory_with(None) <= memory.limit(())
    return compile_step(trainer, batch) if fits else None

  def set_limit(count):
    monkeypatch.setattr(memory, "limit", lambda devices: 1.2e9 / count)
    asked.clear()
    return asked

  monkeypatch.setattr(Trainer, "memory_with", lambda trainer, _: 1e9 / trainer.microbatches)
  monkeypatch.setattr(memory, "in_use", lambda devices: 0.0)  # compiling takes no memory
  monkeypatch.setattr(Trainer, "compile", compile_fitting)
  return set_limit


@pytest.mark.parametrize("programs", [1, 2])
def test_the_plan_of_a_cpu_includes_its_other_programs(monkeypatch, programs):
  in_use = iter([1e9, 1.5e9])  # before the step is compiled, and after
  monkeypatch.setattr(memory, "in_use", lambda devices: next(in_use))
  monkeypatch.setattr(Trainer, "memory_with", lambda *_: 2e9)
  monkeypatch.setattr(Trainer, "compile", lambda *_: None)
  forecast = build(CONFIG, other_programs=programs).plan(limit=9e9)
  assert forecast == Forecast(2e9 + programs * 0.5e9, 9e9)


def test_processes_agree_on_a_number(monkeypatch, has_memory_for):
  """They take the smallest limit of all processes, and the largest need."""
  has_memory_for(1)
  run = build(changed(CONFIG, train={"microbatches": 0}))
  monkeypatch.setattr(fitting, "smallest", lambda own: min(own, 0.6e9))  # of a peer
  assert run.plan().memory == 0.5e9
  assert run.trainer.microbatches == run.recipe.config.train.microbatches == 2
  monkeypatch.undo()
  monkeypatch.setattr(memory, "in_use", lambda devices: 1.0)
  monkeypatch.setattr(memory, "needed", lambda *_: 2.0)
  monkeypatch.setattr(trainer, "largest", lambda own: max(own, 7.0))
  assert run.trainer.memory_with(None) == 7.0


def microbatches_of(workdir):
  """Those in config.json and in the checkpoint."""
  meta = saved_meta(str(workdir), max(saved_steps(str(workdir))))
  saved = claimed_config(str(workdir)), from_json(meta["config"])
  return tuple(config.train.microbatches for config in saved)


@pytest.mark.e2e
def test_a_run_keeps_the_number_that_it_chose(
  prepared, tmp_path, has_memory_for, monkeypatch, capsys, caplog
):
  workdir = tmp_path / "chosen"

  def train(steps, count=0):
    length = {"steps": steps, "microbatches": count}
    config = changed(CONFIG, trunk={"vocab_size": 0}, train=length)
    pretrain.run(config, prepared, str(workdir))

  asked = has_memory_for(4)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    train(2)
  assert asked == [1, 4] and compilations(caplog) == 1  # the step that was planned ran
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


@pytest.mark.e2e
def test_all_seeds_have_one_number(
  make_run, tiny_tokenizer, tmp_path, has_memory_for, capsys, caplog
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
  printed = capsys.readouterr().err
  assert printed.count("so that training needs up to") == 1
  assert len(re.findall(r"^planned [\d.]+ GB; was [\d.]+ GB", printed, re.MULTILINE)) == 2

  has_memory_for(1)
  finetune.run(config, table, source, str(tmp_path / "seeds"), seeds=3)  # one is added
  for seed in range(3):
    assert microbatches_of(tmp_path / "seeds" / f"seed_{seed}") == (4, 4)


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
  assert memory.needed(compiled, [device, device]) == 15
  device.platform = "cpu"  # a checkpoint holds the state again, malloc the temporaries
  assert memory.needed(compiled, [device, device]) == 2 * (15 + 4 + 10)


def test_sizes_are_written_in_few_digits():
  assert (gigabytes(0.2500e9), gigabytes(11.24e9)) == ("0.25 GB", "11.2 GB")
