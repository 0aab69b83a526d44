"""Samples along a run: equal to generate's, on any layout, once a step whatever interrupts."""

import dataclasses

import jax
import pytest
from sampled_texts import sample

from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.masked import Masked
from gpt_jax.parallel.memory import Forecast
from gpt_jax.parallel.mesh import MeshConfig, make_mesh, partition
from gpt_jax.programs import pretrain
from gpt_jax.programs import pretrain_samples as samples
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run import Run
from gpt_jax.training.trainer import Trainer

SIZES = {"context": 32, "layers": 1, "width": 16, "heads": 2}


@pytest.fixture
def held_out(prepared):
  return TokenFile(prepared, "valid")


def config_of(**train):
  trunk, data = TransformerConfig(**SIZES), WindowsConfig(batch_size=8, length=16)
  return pretrain.PretrainConfig(trunk, data=data, train=TrainConfig(log_every=1, **train))


@pytest.mark.parametrize(
  "trunk", [TransformerConfig, pytest.param(LSTMConfig, marks=pytest.mark.slow)]
)
def test_greedy_samples_are_those_of_generate(trunk, make_run, held_out, tiny_tokenizer):
  names = {field.name for field in dataclasses.fields(trunk)}
  sizes = {name: SIZES[name] for name in SIZES if name in names}
  spec = ModelConfig(trunk(tiny_tokenizer.vocab_size, **sizes))
  params, mesh = make_run.params_of(spec, 3), make_mesh(MeshConfig())
  pairs = samples.make_writer(spec.build(), tiny_tokenizer, held_out, mesh, 0.0)(params)
  assert len(pairs) == (1 if tiny_tokenizer.line_id is None else 2)
  prompt, text = pairs[0]
  ids = tiny_tokenizer.encode(prompt).tolist()
  starts = [held_out.read(int(begin), 8).tolist() for begin in held_out.offsets[:-1]]
  assert ids in starts
  (added,) = sample(spec.build(), params, [ids], [0], 32 - len(ids), temperature=0.0)
  assert f"{prompt}{text}" == tiny_tokenizer.decode([*ids, *added])


def test_sharded_parameters_write_the_same(make_run, held_out, tiny_tokenizer):
  spec = ModelConfig(TransformerConfig(tiny_tokenizer.vocab_size, **SIZES))
  params = make_run.params_of(spec, 3)
  mesh = make_mesh(MeshConfig(fsdp=True))
  specs = partition(params, (), mesh, fsdp=True)
  sharded = jax.tree.map(jax.device_put, params, specs)
  assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(sharded))
  write = samples.make_writer(spec.build(), tiny_tokenizer, held_out, mesh)
  assert write(sharded) == write(params)


@pytest.mark.e2e
def test_a_run_samples_at_each_evaluation_once(prepared, tmp_path, monkeypatch):
  monkeypatch.setattr(samples, "MIN_STEPS", 1)
  workdir = str(tmp_path / "run")

  def train(steps):
    config = config_of(steps=steps, evaluate_every=2)
    pretrain.run(config, prepared, workdir, make_recipe=samples.with_samples())

  train(4)
  path = tmp_path / "run" / "samples.jsonl"
  first = path.read_text()
  # As if the run had gone on after its last checkpoint, and been killed while it wrote.
  later = [line.replace('"step": 4', '"step": 5') for line in first.splitlines() if ": 4" in line]
  path.write_text(first + "\n".join([*later, '{"step": 6, "pro']))
  train(6)
  assert path.read_text().startswith(first)
  written = samples.read_samples(workdir)
  prompts = {entry.prompt for entry in written}
  assert [entry.step for entry in written] == sorted([2, 4, 6] * len(prompts))
  assert all(entry.text for entry in written)


def test_short_and_bidirectional_runs_write_none(prepared, tmp_path, monkeypatch):
  class Began(Exception):
    pass

  def fit(*arguments):
    raise Began  # its hooks are made by now

  monkeypatch.setattr(Trainer, "fit", fit)
  # Nothing is compiled.
  monkeypatch.setattr(Run, "plan", lambda *_: Forecast())
  monkeypatch.setattr(Trainer, "restore_or_init", lambda *_: (None, 0))
  made = []
  monkeypatch.setattr(samples, "make_writer", lambda *_: made.append(None))
  masked = dataclasses.replace(config_of(steps=2), objective=Masked())
  for name, config, least, writers in (
    ("short", config_of(steps=2), samples.MIN_STEPS, 0),
    ("masked", masked, 1, 0),
    ("long", config_of(steps=2), 2, 1),
    ("hundred", config_of(steps=100), samples.MIN_STEPS, 2),
  ):
    monkeypatch.setattr(samples, "MIN_STEPS", least)
    with pytest.raises(Began):
      pretrain.run(config, prepared, str(tmp_path / name), make_recipe=samples.with_samples())
    assert len(made) == writers, name
  assert samples.read_samples(str(tmp_path / "short")) == []


def test_lines_that_are_no_sample_are_left_out(tmp_path):
  good = '{"step": 3, "prompt": "a", "text": "b"}'
  bad = ('{"step": 3}', "[]", '{"step": "3", "prompt": "a", "text": "b"}', '{"step": 3, "pro')
  (tmp_path / "samples.jsonl").write_text("\n".join([bad[0], good, *bad[1:]]))
  assert samples.read_samples(str(tmp_path)) == [samples.Sample(3, "a", "b")]
