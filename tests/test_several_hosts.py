"""Runs of two, three and four processes: equal to one, stopped, killed, and taken on by fewer."""

import json
import os
import platform
import re
import shutil
import signal
import warnings

import jax
import numpy as np
import pytest
from hosts import ROOT, start_distributed, trained
from shared_trainers import shared_trainers
from tiny_runs import write_config, write_text

from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.processes import list_differences
from gpt_jax.programs import evaluate, finetune, pretrain
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytestmark = pytest.mark.e2e
# A batch that divides over the devices of one to four processes; a rate that does not depend on the
# run's length.
CONFIG = PretrainConfig(
  trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=24, length=16),
  optim=OptimConfig(learning_rate=1e-2, schedule="constant", warmup_steps=2),
  train=TrainConfig(steps=100000, log_every=1, checkpoint_every=10),
)
SHARDED = {"mesh.fsdp": "true", "mesh.model": "2"}  # over two devices of each process
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def flags(prepared, tmp_path_factory):
  """Those of all runs."""
  config = write_config(tmp_path_factory.mktemp("config") / "config.py", CONFIG)
  return [config, f"--data={prepared}", "--tracker="]


@pytest.fixture(scope="module")
def pretrain_here(prepared):
  """pretrain_here(workdir, fields): a run, or the rest of one, in this process of eight devices."""

  def run(workdir, fields):
    config = override_all(CONFIG, [(name, str(value)) for name, value in fields.items()])
    with warnings.catch_warnings():  # a run this short has learned nothing
      warnings.filterwarnings("ignore", "loss .* is not below the unigram entropy")
      pretrain.run(config, prepared, str(workdir))
    return trained(workdir)

  return run


def newest(workdir):
  return max(int(name) for name in os.listdir(workdir / "checkpoints") if name.isdecimal())


class Stage:
  """Processes that begin a run, or take up a copy of its folder; a context manager that ends them.

  Each has two devices, which share a model's heads; the parameters are sharded over all of them.
  """

  def __init__(self, flags, folder, processes, earlier=None):
    self.workdir = folder / f"run_{processes}"
    self.resumed_at = newest(earlier) if earlier else 0
    if earlier:
      shutil.copytree(earlier, self.workdir)
    fields = [f"--config.{name}={value}" for name, value in SHARDED.items()]
    log = f"{folder}/of_{processes}"
    every = *flags, *fields, f"--workdir={self.workdir}"
    self.programs = start_distributed("pretrain", log, *every, processes=processes, devices=2)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for program in self.programs:
      program.__exit__()

  def wait_for_step(self, step):
    self.programs[0].wait_for(rf"step {step:,}/")

  def end(self, *codes):
    for program, code in zip(self.programs, codes, strict=True):
      program.ends(code, 120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def of_four(flags, folder):
  """Four processes, of which one is killed after the first checkpoint."""
  with Stage(flags, folder, 4) as stage:
    stage.wait_for_step(12)
    stage.programs[2].process.kill()
    stage.end(1, 1, -signal.SIGKILL, 1)
  return stage


@pytest.fixture(scope="module")
def of_three(flags, folder, of_four):
  """Three that take up the run, of which one gets Slurm's warning; all save, as at SIGTERM."""
  with Stage(flags, folder, 3, of_four.workdir) as stage:
    stage.wait_for_step(stage.resumed_at + 2)
    stage.programs[1].process.send_signal(signal.SIGUSR1)
    stage.end(143, 143, 143)
  return stage


@pytest.fixture(scope="module")
def of_two(flags, folder, of_three):
  """Two that take it up, of which process 0 is killed."""
  with Stage(flags, folder, 2, of_three.workdir) as stage:
    stage.wait_for_step(stage.resumed_at + 2)
    stage.programs[0].process.kill()
    stage.end(-signal.SIGKILL, 1)
  return stage


ADVICE = "start all of them again with the same command, which resumes the run"


@pytest.mark.slow
def test_processes_end_with_those_that_are_lost_or_stopped_and_fewer_go_on(
  of_four, of_three, of_two
):
  for number in (0, 1, 3):
    survivor = of_four.programs[number]
    assert survivor.errors() == [f"error: process 2 of 4 is lost; {ADVICE}"], survivor.log_text()
  assert of_three.resumed_at >= 10
  log = of_three.programs[0].log_text()
  assert f"resumed at step {of_three.resumed_at:,}" in log
  stopped = re.search(r"stopped at step ([\d,]+) of 100,?000 and saved", log)[1]
  assert newest(of_three.workdir) == int(stopped.replace(",", "")) > of_three.resumed_at
  assert f"resumed at step {stopped}" in of_two.programs[0].log_text()
  (error,) = of_two.programs[1].errors()
  assert error.startswith("error: process 0 of 2 is lost; ")
  for stage in (of_four, of_three, of_two):  # only process 0 logs, and XLA does not warn
    first, *others = (program.log_text() for program in stage.programs)
    assert "rematerialization" not in first
    for log in others:
      assert "rematerialization" not in log and "step " not in log


@pytest.mark.slow
def test_when_one_of_four_is_killed_three_two_and_one_go_on_as_one_without_interruption(
  of_two, pretrain_here, tmp_path
):
  workdir, steps = shutil.copytree(of_two.workdir, tmp_path / "run"), of_two.resumed_at + 4
  losses = pretrain_here(workdir, {**SHARDED, "train.steps": steps})
  expected = pretrain_here(tmp_path / "alone", {"train.steps": steps, "train.checkpoint_every": 0})
  check_equal(workdir, tmp_path / "alone")
  assert len(losses) == len(expected) == steps


def check_equal(workdir, expected):
  """Losses after all steps, and parameters."""
  losses = [list(trained(of_one).values()) for of_one in (workdir, expected)]
  np.testing.assert_allclose(*losses, **TOLERANCE)
  params = [restore_params(str(of_one))[0] for of_one in (workdir, expected)]
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), *params)


@pytest.mark.slow
def test_two_processes_with_pmap_equal_one(flags, pretrain_here, tmp_path):
  more = ["--config.mesh.backend=pmap", "--config.train.steps=4", f"--workdir={tmp_path}/run"]
  first, second = start_distributed("pretrain", f"{tmp_path}/two", *flags, *more, devices=2)
  with first, second:
    first.ends()
    second.ends()
  assert not second.log_text()  # only process 0 logs
  pretrain_here(tmp_path / "alone", {"train.steps": 4})
  check_equal(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_two_processes_learn_to_translate_as_one(prepared, tmp_path):
  """LSTMs with dropout, and pairs of which each process takes its rows."""
  pytest.importorskip("sacrebleu")
  for split in ("train", "val"):
    for language, words in (("en", "cat mat dog barn sat ran"), ("de", "sea old red the on and")):
      lines = "".join(f"{a} {b}\n" for a in words.split() for b in words.split())
      (tmp_path / f"{split}.{language}").write_text(lines)
  config = FinetuneConfig(
    PairsTask(),
    trunk=LSTMEncoderDecoderConfig(0, 48, 64, 1, 64),
    batch_size=8,
    optim=OptimConfig(learning_rate=1e-2, schedule="constant", warmup_steps=2),
    train=TrainConfig(steps=4, log_every=1),
  )
  vocabulary = f"{prepared}/tokenizer"
  flags = [write_config(tmp_path / "config.py", config), "--checkpoint=none", "--tracker="]
  flags += [f"--data={tmp_path}", f"--tokenizer={vocabulary}", f"--workdir={tmp_path}/run"]
  for program in start_distributed("finetune", f"{tmp_path}/two", *flags):
    with program:
      program.ends()
  alone = tmp_path / "alone"
  with shared_trainers():
    finetune.run(config, str(tmp_path), "none", str(alone), tokenizer=vocabulary)
  check_equal(tmp_path / "run", alone)


@pytest.mark.slow
def test_two_processes_finetune_all_seeds_as_one(finetuned, tmp_path):
  config = override_all(finetuned.config, [("train.epochs", "1")])
  flags = [write_config(tmp_path / "config.py", config), f"--data={finetuned.data_dir}"]
  flags += [f"--checkpoint={finetuned.pretrained}", f"--workdir={tmp_path}/run"]
  two = f"{tmp_path}/two"
  programs = start_distributed("finetune", two, *flags, "--seeds=2", "--tracker=")
  for program in programs:
    with program:
      program.ends()
  assert not programs[1].log_text()  # only process 0 logs
  alone = str(tmp_path / "alone")
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, alone, seeds=2)
  for name in ("seed_0", "seed_1"):
    results = []
    for workdir in ("run", "alone"):
      result = json.loads((tmp_path / workdir / name / "result.json").read_text())
      results.append((result["steps"], result["best"]["step"], result["dev"]))
    assert results[0][:2] == results[1][:2]
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-3)
  assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
  "kind, processes", [("text", 2), pytest.param("task", 3, marks=pytest.mark.slow)]
)
def test_processes_evaluate_as_one(kind, processes, prepared, finetuned, tmp_path):
  checkpoint, data = finetuned.pretrained, prepared
  if kind == "task":
    checkpoint, data = f"{finetuned.workdir}/seed_0", finetuned.data_dir
  programs = start_distributed(
    "evaluate",
    f"{tmp_path}/log",
    f"--checkpoint={checkpoint}",
    f"--data={data}",
    processes=processes,
  )
  for program in programs:
    with program:
      program.ends()
  printed, *others = (program.output_text() for program in programs)
  assert not any(others)  # only process 0 prints
  lines = printed.split("\n\n")[0].splitlines()  # before the table of classes
  values = {name: float(value.replace(",", "")) for name, value in map(str.split, lines)}
  alone = evaluate.run(checkpoint, data)
  alone.pop("classes", None)
  assert values == pytest.approx(alone, rel=1e-3, abs=1e-4)


@pytest.fixture
def other_clone(tmp_path):
  """A copy of this package with a comment more."""
  ignore = shutil.ignore_patterns("__pycache__")
  for name in ("gpt_jax", "launch"):
    shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=ignore)
  with open(tmp_path / "clone" / "gpt_jax" / "batch.py", "a") as file:
    file.write("# more\n")
  return tmp_path / "clone"


@pytest.fixture
def other_data(prepared, tiny_tokenizer, tmp_path):
  """A copy of `prepared` with another held-out text."""
  folder = shutil.copytree(prepared, tmp_path / "data")
  for file in folder.glob("valid*"):
    file.unlink()
  text = "the dog sat on the sea and the cat ran to the mat"
  write_text(folder, "valid", tiny_tokenizer, [text])
  return folder


def test_processes_with_other_code_config_and_data_are_refused(
  flags, other_clone, other_data, tmp_path
):
  more = [f"--workdir={tmp_path}/run"]
  last = [flags[0], f"--data={other_data}", *more, "--config.train.seed=3"]
  programs = start_distributed(
    "pretrain", f"{tmp_path}/two", *flags, *more, flags=last, root=other_clone
  )
  for program in programs:
    with program:
      program.ends(2)
  host = re.escape(platform.node())
  of_0, of_1 = f"on process 0 \\({host}\\)", f"on process 1 \\({host}\\)"
  (error,) = programs[0].errors()
  assert re.fullmatch(
    "error: the processes of this run differ: "
    rf"code is (\w+) {of_0}, (?!\1)\w+ {of_1}; "
    rf"config\.train\.seed is 0 {of_0}, 3 {of_1}; "
    rf"data\.valid_tokens is \d+ {of_0}, \d+ {of_1}; and 1 more\. "
    "All need the same code, the same command and the same data",
    error,
  ), error
  assert programs[1].errors() == ["error: the processes of this run differ; process 0 says in what"]
  assert not (tmp_path / "run").exists()


def test_processes_that_evaluate_compare_the_model_and_the_data(
  prepared, other_data, finetuned, monkeypatch
):
  """Other data, or another checkpoint, is another fact that check_agreement gets."""
  facts = []

  def record(*given):
    facts.append(given)
    raise InputError("seen")  # before anything is computed

  monkeypatch.setattr(evaluate, "check_agreement", record)
  text, task = finetuned.pretrained, f"{finetuned.workdir}/seed_0"
  for checkpoint, data, split in (
    (text, prepared, ""),
    (text, other_data, ""),
    (task, finetuned.data_dir, ""),
    (task, finetuned.data_dir, "train"),
    (f"{finetuned.workdir}/seed_1", finetuned.data_dir, ""),
  ):
    with pytest.raises(InputError, match="seen"):
      evaluate.run(checkpoint, str(data), split)
  (of_text, of_other), (dev, train, of_seed) = facts[:2], facts[2:]
  assert of_text[0] == of_other[0] and of_text[1] != of_other[1]
  assert (dev[0]["split"], train[0]["split"]) == ("dev", "train") and dev[1] != train[1]
  assert dev[0]["checkpoint"] != of_seed[0]["checkpoint"] and dev[1] == of_seed[1]


def test_differences_name_fields_and_hosts():
  facts = [{"config": {"steps": 6, "seed": 0}, "data": {"digest": "a"}} for _ in range(7)]
  assert list_differences(tuple(facts), tuple("abcdefg")) == []
  facts[1] = {"config": {"steps": 7, "seed": 0}, "data": {"digest": "a"}}
  facts[6] = {"config": {"steps": 6}, "data": {"digest": "b"}}
  assert list_differences(tuple(facts), ("a", "b", "c", "c", "d", "e", "f")) == [
    "config.steps is 6 on processes 0, 2, 3, 4 and 2 more (a, c, d), 7 on process 1 (b)",
    "config.seed is 0 on processes 0, 1, 2, 3 and 2 more (a, b, c), missing on process 6 (f)",
    "data.digest is a on processes 0, 1, 2, 3 and 2 more (a, b, c), b on process 6 (f)",
  ]
