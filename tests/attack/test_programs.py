"""Programs in trouble: two at once, no room for their files, packages that are missing."""

import itertools
import os
import shutil

import pytest
from small_runs import PRETRAIN, complete, finetune_flags, trained
from test_kills import files_of
from tiny_runs import write_config

pytestmark = pytest.mark.attack
WORDS = "the cat sat on the mat and the dog ran to the old red barn by the sea "
SUFFIX = {"predict": ".tsv"}  # of what a program writes
OPTIONAL = (
  "ftfy matplotlib safetensors scipy sklearn spacy tensorboardX tensorflow_datasets tokenizers tqdm"
).split()


@pytest.fixture
def programs(prepared, finetuned, tmp_path):
  """Name -> the flags of a program; the last one lacks its value, as a rule the place to write."""
  text = tmp_path / "text.txt"
  text.write_text(WORDS * 2000)
  run = f"--checkpoint={finetuned.workdir}/seed_0"
  often = [("train.steps", "6"), ("train.evaluate_every", "0"), ("train.checkpoint_every", "0")]
  return {
    "prepare": (f"--source={text}", "--vocab_size=290", "--out="),
    "pretrain": (
      write_config(tmp_path / "pretrain.py", PRETRAIN, often),
      f"--data={prepared}",
      "--workdir=",
    ),
    "finetune": (*finetune_flags(finetuned, tmp_path / "finetune.py"), "--workdir="),
    "export": (run, "--format=npz", "--out="),
    "predict": (run, f"--input={finetuned.data_dir}/dev.tsv", "--out="),
    "evaluate": (run, f"--data={finetuned.data_dir}", "--split="),
    "generate": (f"--checkpoint={finetuned.pretrained}", "--prompt=the cat", "--max_tokens="),
  }


def to(flags, place):
  return *flags[:-1], f"{flags[-1]}{place}"


def contents(program, place):
  """What a program wrote; of a run, without the times."""
  if program in ("pretrain", "finetune"):
    return trained(place)
  return files_of(place) if place.is_dir() else place.read_bytes()


def outcome_of_refusal(process, what):
  """Of a program that must end with 2 and one line."""
  output = process.communicate(timeout=300)[0]
  errors = [line for line in output.splitlines() if line.startswith("error: ")]
  if process.returncode == 2 and len(errors) == 1 and "Traceback" not in output:
    return "refused"
  return f"{what}: exit {process.returncode}: {output[-2000:]}"


def test_two_prepare_at_once(start, programs, tmp_path, attempts, ledger):
  outcomes = []
  for number in range(attempts(2)):
    flags = to(programs["prepare"], tmp_path / str(number))
    processes = [start("prepare", *flags) for _ in range(2)]
    outputs = [complete(process, (0, 2)) for process in processes]
    codes = sorted(process.returncode for process in processes)
    errors = [out for out in outputs if "error: " in out]
    one_line = all(": another prepare " in error.splitlines()[-1] for error in errors)
    good = codes == [0, 2] and one_line or codes == [0, 0] and not errors
    outcomes.append("harmless" if good and "Traceback" not in "".join(outputs) else str(outputs))
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]
  ledger("two at once, prepare", outcomes)


@pytest.mark.parametrize("program, share", [("pretrain", 1), ("finetune", 0.4)])
def test_two_runs_at_once(start, programs, tmp_path, attempts, ledger, program, share):
  """The second is refused, and the first never knows of it."""
  flags, outcomes, count = programs[program], [], attempts(share)
  complete(start(program, *to(flags, tmp_path / "whole")))
  for number in range(count):
    place = tmp_path / str(number)
    processes = [start(program, *to(flags, place)) for _ in range(2)]
    codes = []
    for process in processes:
      output = complete(process, (0, 2))
      codes.append(process.returncode)
      assert "Traceback" not in output
      assert process.returncode == 0 or "another run is at work there" in output, output
    same = trained(place) == trained(tmp_path / "whole")
    # Both end well where the second came when the first was done.
    outcomes.append("harmless" if 0 in codes and same else f"{place}: {codes}, same: {same}")
  ledger(f"two at once, {program}", outcomes)


@pytest.mark.parametrize(
  "program, share",
  [("prepare", 1), ("pretrain", 1), ("finetune", 0.4), ("export", 1), ("predict", 0.4)],
)
def test_no_room(start, programs, tmp_path, random, attempts, ledger, program, share):
  """A limit on the size of files, in place of a full disk; afterwards there is room."""
  flags, outcomes, count = programs[program], [], attempts(share)
  suffix = SUFFIX.get(program, "")
  whole = tmp_path / f"whole{suffix}"
  complete(start(program, *to(flags, whole)))
  files = [whole] if whole.is_file() else [path for path in whole.rglob("*") if path.is_file()]
  largest = max(path.stat().st_size for path in files)
  for number in range(count):
    place = tmp_path / f"{number}{suffix}"
    limit = random.integers(0, -(-largest // 1024))  # in the shell's blocks of 1,024 bytes
    refused = start(program, *to(flags, place), before=f"ulimit -f {limit}")
    outcome = outcome_of_refusal(refused, f"{program} within {limit} KB")
    if outcome == "refused":
      complete(start(program, *to(flags, place)))
      if contents(program, place) != contents(program, whole):
        outcome = f"{program}: other contents after a full disk"
    outcomes.append(outcome)
  ledger(f"no room, {program}", outcomes)


def test_missing_packages(start, programs, tmp_path, random, attempts, ledger):
  """Without a package of an extra a program does its work, or names the extra."""
  pairs = list(itertools.product(programs, OPTIONAL))
  chosen = [pairs[i] for i in random.permutation(len(pairs))[: attempts(2)]]
  outcomes = []
  for number, (program, package) in enumerate(chosen):
    folder = tmp_path / str(number)
    folder.mkdir()
    (folder / f"{package}.py").write_text(f"raise ModuleNotFoundError(name={package!r})\n")
    out = folder / f"out{SUFFIX.get(program, '')}"
    place = {"generate": 3, "evaluate": "dev"}.get(program, out)
    process = start(program, *to(programs[program], place), packages=folder)
    output = process.communicate(timeout=300)[0]
    if process.returncode == 0:
      outcomes.append("harmless")
      continue
    helped = process.returncode == 2 and "pip install" in output and "Traceback" not in output
    outcomes.append("refused" if helped else f"{program} without {package}: {output[-2000:]}")
    shutil.rmtree(folder)
  ledger("a missing package", outcomes)
