"""Runs of two, three and four processes: equal to one, stopped, killed, and taken on by fewer."""

import json
import os
import platform
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from hosts import ROOT, Program, start_distributed, trained

from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenWriter
from gpt_jax.parallel.agreement import list_differences

# A batch that divides over one to four processes; a rate that does not depend on the run's length.
CONFIG = """
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.models.transformer import TransformerConfig

def get_config():
  return PretrainConfig(
    trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
    data=WindowsConfig(batch_size=12, length=16),
    optim=OptimConfig(learning_rate=1e-2, schedule="constant", warmup_steps=2),
    train=TrainConfig(steps=100000, log_every=1, checkpoint_every=5),
  )
"""
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def flags(prepared, tmp_path_factory):
  """Those of all runs."""
  config = tmp_path_factory.mktemp("config") / "config.py"
  config.write_text(CONFIG)
  return [f"--config={config}", f"--data={prepared}"]


@pytest.fixture(scope="module")
def alone(flags, tmp_path_factory):
  """alone(steps): the losses of so many steps, or more, of one process."""
  folder, losses = tmp_path_factory.mktemp("alone"), {}

  def run(steps):
    if len(losses) < steps:
      length = f"--workdir={folder / 'run'}", f"--config.train.steps={steps}"
      with Program("pretrain", f"{folder}/log", *flags, *length) as program:
        program.ends()
      losses.update(trained(folder / "run"))
    return losses

  return run


def resume(flags, workdir, processes, steps):
  """The losses of a copy of a run that so many processes take up to its end."""
  copy = shutil.copytree(workdir, f"{workdir}-{processes}")
  more = f"--workdir={copy}", f"--config.train.steps={steps}"
  if processes == 1:
    programs = [Program("pretrain", f"{copy}.log", *flags, *more)]
  else:
    programs = start_distributed("pretrain", f"{copy}.log", *flags, *more, processes=processes)
  for program in programs:
    with program:
      program.ends()
  assert "resumed at step" in programs[0].log_text()
  return trained(copy)


def check_equal(losses, expected):
  assert losses.keys() <= expected.keys()
  np.testing.assert_allclose(
    list(losses.values()), [expected[step] for step in losses], **TOLERANCE
  )


def newest(workdir):
  return max(int(name) for name in os.listdir(workdir / "checkpoints") if name.isdecimal())


@pytest.mark.slow
def test_four_are_stopped_by_sigterm_to_one_and_two_go_on_and_one(flags, alone, tmp_path):
  workdir = tmp_path / "run"
  programs = start_distributed(
    "pretrain", f"{tmp_path}/four", *flags, f"--workdir={workdir}", processes=4
  )
  programs[0].wait_for(r"step 2/")
  programs[2].process.send_signal(signal.SIGTERM)
  for program in programs:
    with program:
      program.ends(143)
  stopped = int(re.search(r"stopped at step (\d+) of", programs[0].log_text())[1])
  assert newest(workdir) == stopped
  expected = alone(stopped + 3)
  for processes in (2, 1):
    losses = resume(flags, workdir, processes, stopped + 3)
    assert len(losses) == stopped + 3
    check_equal(losses, expected)


@pytest.mark.slow
def test_one_of_four_is_killed_and_three_go_on(flags, alone, tmp_path):
  workdir = tmp_path / "run"
  programs = start_distributed(
    "pretrain", f"{tmp_path}/four", *flags, f"--workdir={workdir}", processes=4
  )
  programs[0].wait_for(r"step 12/")
  programs[2].process.kill()
  programs[2].ends(-signal.SIGKILL)
  for number in (0, 1, 3):
    with programs[number] as survivor:
      survivor.ends(1, 60)
      assert survivor.errors() == [
        "error: process 2 of 4 is lost; start all of them again with the same command, which "
        "resumes the run"
      ], survivor.log_text()
  steps = newest(workdir) + 3
  expected = alone(steps)
  losses = resume(flags, workdir, 3, steps)
  assert len(losses) == steps
  check_equal(losses, expected)


def test_process_0_of_four_is_killed(flags, tmp_path):
  programs = start_distributed(
    "pretrain", f"{tmp_path}/four", *flags, f"--workdir={tmp_path}/run", processes=4
  )
  programs[0].wait_for(r"step 1/")
  programs[0].process.kill()
  programs[0].ends(-signal.SIGKILL)
  for survivor in programs[1:]:
    with survivor:
      survivor.ends(1, 60)
      (error,) = survivor.errors()
      assert error.startswith("error: process 0 of 4 is lost; ")


def test_two_processes_finetune_all_seeds_as_one(finetuned, tmp_path):
  tree, config = tmp_path / "config.json", tmp_path / "config.py"
  tree.write_text(json.dumps(to_json(finetuned.config)))
  config.write_text(
    "import json\nfrom gpt_jax.config import from_json\n\ndef get_config():\n"
    f"  return from_json(json.load(open({str(tree)!r})))\n"
  )
  programs = start_distributed(
    "finetune",
    f"{tmp_path}/two",
    f"--config={config}",
    f"--data={finetuned.data_dir}",
    f"--checkpoint={finetuned.pretrained}",
    f"--workdir={tmp_path}/run",
    "--seeds=2",
  )
  for program in programs:
    with program:
      program.ends()
  assert not programs[1].log_text()  # only process 0 logs
  for name in ("seed_0", "seed_1"):
    results = []
    for workdir in (tmp_path / "run", Path(finetuned.workdir)):
      result = json.loads((workdir / name / "result.json").read_text())
      results.append((result["steps"], result["best"]["step"], result["dev"]))
    assert results[0][:2] == results[1][:2]
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-3)
  assert (tmp_path / "run" / "summary.json").exists()


@pytest.fixture(scope="module")
def pretrained(flags, tmp_path_factory):
  """The folder of a run of one process."""
  folder = tmp_path_factory.mktemp("pretrained") / "run"
  length = f"--workdir={folder}", "--config.train.steps=5"
  with Program("pretrain", f"{folder}.log", *flags, *length) as program:
    program.ends()
  return folder


def evaluated(flags, log, processes):
  """What evaluate prints, by name; of several processes only the first one prints."""
  if processes == 1:
    programs = [Program("evaluate", log, *flags)]
  else:
    programs = start_distributed("evaluate", log, *flags, processes=processes)
  for program in programs:
    with program:
      program.ends()
  printed, *others = (program.output_text() for program in programs)
  assert not any(others)
  lines = printed.split("\n\n")[0].splitlines()  # before the table of classes
  return {name: float(value.replace(",", "")) for name, value in map(str.split, lines)}


@pytest.mark.parametrize("kind", ["text", "task"])
def test_processes_evaluate_as_one(kind, flags, pretrained, finetuned, tmp_path):
  of_kind = [f"--checkpoint={pretrained}", flags[1]]
  if kind == "task":
    of_kind = [f"--checkpoint={finetuned.workdir}/seed_0", f"--data={finetuned.data_dir}"]
  alone, three = (evaluated(of_kind, f"{tmp_path}/{n}", n) for n in (1, 3))
  assert three == pytest.approx(alone, rel=1e-3)


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
  writer = TokenWriter(str(folder), "valid", tiny_tokenizer.vocab_size)
  writer.add(tiny_tokenizer.encode("the dog sat on the sea and the cat ran to the mat"), 49, 12)
  writer.close(tokenizer_hash=tiny_tokenizer.hash)
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


def test_processes_that_evaluate_other_data_are_refused(flags, pretrained, other_data, tmp_path):
  checkpoint = f"--checkpoint={pretrained}"
  last = [checkpoint, f"--data={other_data}"]
  programs = start_distributed("evaluate", f"{tmp_path}/two", checkpoint, flags[1], flags=last)
  for program in programs:
    with program:
      program.ends(2)
  (error,) = programs[0].errors()
  assert error.startswith("error: the processes of this run differ: data.digest is ")


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
