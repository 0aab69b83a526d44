"""Programs killed with -9 or asked to end, and started again, or stopped and continued: what they
leave equals what one that lives leaves.

`pytest tests/attack/test_kills.py --budget=100` makes 1,000 kills.
"""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked import ROOT, Forked
from outcomes import describe_model
from small_runs import PRETRAIN, complete, finetune_flags, trained
from tiny_runs import write_config

pytestmark = pytest.mark.attack
KILLS_A_RUN = 4  # at most; then it is let to its end, and the next kills meet a new run
WORDS = "the cat sat on the mat and the dog ran to the old red barn by the sea "
IMPATIENT = """
import functools
import jax
jax.distributed.initialize = functools.partial(
  jax.distributed.initialize, heartbeat_timeout_seconds=10
)
"""
TELLS_OF_EVALUATIONS = """
import time
from gpt_jax.programs import pretrain

def make_measure(*arguments, original=pretrain.make_measure):
  measure = original(*arguments)
  def slowly(*texts):
    print("evaluating", flush=True)
    time.sleep(0.2)
    return measure(*texts)
  return slowly

pretrain.make_measure = make_measure
"""
COMPARE = """
from gpt_jax.apps.compare.budgets import BUDGETS
from tiny_budget import TINY

BUDGETS["tiny"] = TINY
"""


def write_program(folder, changes, name):
  """A program of launch/ after statements that change it, as the name that start takes."""
  (folder / "changed.py").write_text(
    f"import runpy, sys\nsys.path[:0] = [{str(ROOT / 'launch')!r}, {str(ROOT / 'tests')!r}]\n"
    f"{changes}runpy.run_path({str(ROOT / 'launch' / name)!r}, run_name='__main__')\n"
  )
  return folder / "changed"


@pytest.fixture
def start():
  """start(program, *flags, devices=1): launch/<program>.py, forked."""
  processes = []

  def run(program, *flags, devices=1):
    processes.append(Forked(program, flags, devices))
    return processes[-1]

  yield run
  for process in processes:
    if process.poll() is None:
      process.kill()


@pytest.fixture
def kill(tmp_path, random, ledger):
  """kill(what, make, contents, attempts, …): kills runs of a program and compares their contents.

  make(folder): the processes of one run, started; contents(folder): what it wrote, to compare;
  asked: signals, of which one is sent instead of SIGKILL, after which a run has to end by itself.
  """

  def attack(what, make, contents, attempts, die=None, codes=(0,), asked=()):
    duration = seconds(make(tmp_path / "whole"))
    expected = contents(tmp_path / "whole")
    outcomes = []
    for number in range(3 * attempts):  # a run may end before it is killed
      folder, met = tmp_path / str(number), 0
      while met < min(KILLS_A_RUN, attempts - len(outcomes)):
        processes = make(folder)
        if die is None:
          time.sleep(random.uniform(0, duration))
        else:
          die(processes, folder)
        if processes[0].poll() is not None:
          duration *= 0.9  # the machine is less busy than it was
          break
        met += 1
        for index in random.permutation(len(processes)):
          processes[index].send_signal(random.choice(asked) if asked else signal.SIGKILL)
          time.sleep(random.uniform(0, 2) if len(processes) > 1 else 0)
        for process in processes:
          output, _ = process.communicate()
          assert not asked or process.returncode in (0, 143), output
        assert not asked or last_saved(folder) == last_logged(folder)
      for process in make(folder):
        complete(process, codes)
      left = [path.name for path in tmp_path.rglob("*partial*")]
      same = contents(folder) == expected
      outcome = "harmless" if same and not left else f"{folder}: other contents, or left: {left}"
      outcomes += [outcome] * met
      if outcome == "harmless":
        shutil.rmtree(folder, ignore_errors=True)
      if len(outcomes) == attempts:
        break
    ledger(f"kills, {what}", outcomes)

  return attack


def seconds(processes):
  """How long they run."""
  began = time.monotonic()
  for process in processes:
    complete(process)
  return time.monotonic() - began


def while_it_writes(random, writes=1):
  """Waits until the program has begun its first (or nth) temporary folder, and a moment longer."""

  def die(processes, folder):
    number = random.integers(1, writes + 1)
    seen: set[str] = set()
    while processes[0].poll() is None:
      temporary = {*names(folder.parent, f"{folder.name}.partial"), *names(folder / "checkpoints")}
      seen.update(name for name in temporary if not name.isdigit())
      if len(seen) >= number:
        time.sleep(random.uniform(0, 0.02))
        return
      time.sleep(0.0005)

  return die


def while_it_evaluates(random):
  """Waits for one of the first evaluations of TELLS_OF_EVALUATIONS, and a moment longer."""

  def die(processes, folder):
    del folder
    number = random.integers(1, 4)
    while processes[0].poll() is None and processes[0].output().count("evaluating") < number:
      time.sleep(0.01)
    time.sleep(random.uniform(0, 0.2))

  return die


def names(folder, start=""):
  return [name for name in os.listdir(folder) if name.startswith(start)] if folder.is_dir() else []


def files_of(folder):
  files = (path for path in sorted(folder.rglob("*")) if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def pretrain(prepared, tmp_path, start):
  """pretrain(folder, *flags): a small run with a checkpoint every other step, started."""
  often = [("train.steps", "30"), ("train.evaluate_every", "0"), ("train.checkpoint_every", "2")]
  config = write_config(tmp_path / "config.py", PRETRAIN, often)

  def make(folder, *flags, devices=1, program="pretrain"):
    flags = (config, f"--data={prepared}", f"--workdir={folder}", *flags)
    return start(program, *flags, devices=devices)

  return make


def write_texts(tmp_path, count):
  """The flag for a folder of so many texts, which are written."""
  (tmp_path / "text").mkdir()
  for number in range(count):
    (tmp_path / "text" / f"{number}.txt").write_text(WORDS * 4000)
  return f"--source={tmp_path}/text"


@pytest.mark.parametrize("moment", ["any time", "writing"])
def test_prepare(kill, start, tmp_path, random, attempts, moment):
  flags = write_texts(tmp_path, 40), "--vocab_size=290"
  die = while_it_writes(random) if moment == "writing" else None
  make = lambda out: [start("prepare", *flags, f"--out={out}")]
  kill(f"prepare, {moment}", make, files_of, attempts(2), die)


@pytest.mark.parametrize("moment", ["any time", "saving"])
def test_pretrain(kill, pretrain, random, attempts, moment):
  die = while_it_writes(random, writes=6) if moment == "saving" else None
  make = lambda folder: [pretrain(folder)]
  kill(f"pretrain, {moment}", make, trained, attempts(2 if die is None else 1.5), die)


@pytest.mark.parametrize("moment", ["saving", "evaluating"])
def test_pretrain_is_asked_to_end(kill, pretrain, tmp_path, random, attempts, moment):
  """It saves once more, whatever it is doing, and says with its exit code that it is not done."""
  count, program = attempts(0.5), write_program(tmp_path, TELLS_OF_EVALUATIONS, "pretrain.py")
  die = while_it_writes(random, writes=6) if moment == "saving" else while_it_evaluates(random)
  flags = "--config.train.evaluate_every=3", "--config.train.checkpoint_every=7"
  if moment == "saving":
    flags = ("--config.train.evaluate_every=15",)
  make = lambda folder: [pretrain(folder, *flags, program=program)]
  kill(f"pretrain asked to end, {moment}", make, results_of, count, die, asked=[signal.SIGTERM])


def last_saved(workdir):
  return max(int(name) for name in names(workdir / "checkpoints") if name.isdigit())


def last_logged(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return max(json.loads(line)["step"] for line in lines)


def results_of(workdir):
  """As trained, without the steps that are kept: a run that is asked to end saves one more."""
  losses, params, step, _ = trained(workdir)
  return losses, params, step


def test_one_of_two_processes(kill, pretrain, distributed, attempts):
  """The other is killed up to two seconds later, or has ended by itself."""

  def make(folder):
    return [pretrain(folder, *flags, devices=2) for flags in distributed(2)]

  kill("pretrain in two processes, one or both", make, trained, attempts(0.5))


@pytest.mark.parametrize("count", [1, 2])
def test_stopped_and_continued(pretrain, distributed, tmp_path, random, attempts, ledger, count):
  """One process of a run does nothing for three seconds, at any moment, and nothing is lost."""
  number_of_attempts, outcomes = attempts(0.3), []

  def make(folder):
    if count == 1:
      return [pretrain(folder)]
    return [pretrain(folder, *flags, devices=2) for flags in distributed(count)]

  duration = seconds(make(tmp_path / "whole"))
  expected = trained(tmp_path / "whole")
  for number in range(number_of_attempts):
    processes = make(tmp_path / str(number))
    stopped = processes[random.integers(count)]
    time.sleep(random.uniform(0, duration))
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(3)
    stopped.send_signal(signal.SIGCONT)
    seconds(processes)
    same = trained(tmp_path / str(number)) == expected
    outcomes.append("harmless" if same else f"{tmp_path}/{number}: other contents")
  ledger(f"stopped and continued, {count} process{'es' * (count - 1)}", outcomes)


def test_stopped_for_longer_than_the_others_wait(
  pretrain, distributed, tmp_path, random, attempts, ledger
):
  """They end, and later it does; the same command resumes the run."""
  count, outcomes = attempts(0.3), []
  impatient = write_program(tmp_path, IMPATIENT, "pretrain.py")

  def make(folder, program="pretrain"):
    return [pretrain(folder, *flags, devices=2, program=program) for flags in distributed(2)]

  seconds(make(tmp_path / "whole"))
  expected = trained(tmp_path / "whole")
  for number in range(count):
    folder = tmp_path / str(number)
    processes = make(folder, impatient)
    while processes[0].poll() is None and not names(folder / "checkpoints", "2"):
      time.sleep(0.01)
    stopped = int(random.integers(2))
    processes[stopped].send_signal(signal.SIGSTOP)
    output, _ = processes[1 - stopped].communicate(timeout=120)
    processes[stopped].send_signal(signal.SIGCONT)
    processes[stopped].communicate(timeout=120)
    codes = [process.returncode for process in processes]
    seconds(make(folder))
    same = trained(folder) == expected and "Traceback" not in output
    good = same and (0 not in codes or set(codes) == {0})
    outcomes.append("harmless" if good else f"{folder}: {codes}, same: {same}: {output[-500:]}")
  ledger("stopped for too long, one of two processes", outcomes)


@pytest.mark.parametrize("what", ["finetune", "finetune, a layer more in each epoch"])
def test_finetune(kill, start, finetuned, tmp_path, attempts, what):
  changes = [("train.epochs", "3"), ("train.checkpoint_every", "2"), ("train.log_every", "1")]
  if what != "finetune":
    changes += [("unfreeze", "true"), ("layer_decay", "0.5")]
  flags = finetune_flags(finetuned, tmp_path / "finetune.py", changes)

  def results(workdir):
    return trained(workdir), json.loads((workdir / "result.json").read_text())

  make = lambda folder: [start("finetune", *flags, f"--workdir={folder}")]
  kill(what, make, results, attempts(1 if what == "finetune" else 0.3))


def test_compare(kill, start, prepared, tmp_path, attempts):
  """Pre-trains, fine-tunes and probes; its pace is measured anew."""
  count = attempts(0.3)
  program = write_program(tmp_path, COMPARE, "compare.py")
  flags = f"--corpus={prepared}", "--budget=tiny", "--objectives=causal,none"

  def tables(workdir):
    results = json.loads((workdir / "results.json").read_text())
    del results["pace"], results["checksum"]
    tuned = workdir / "tasks" / "causal" / "story-ending" / "seed_0"
    return results, trained(workdir / "runs" / "causal" / "rate_0.001"), trained(tuned)

  make = lambda folder: [start(program, *flags, f"--workdir={folder}")]
  kill("compare", make, tables, count)


def test_label(kill, start, finetuned, tmp_path, attempts):
  """Of its models, the one that is fine-tuned resumes; the others are fitted again."""
  count = attempts(0.3)
  table = tmp_path / "table.tsv"
  shutil.copy(f"{finetuned.data_dir}/train.tsv", table)
  flags = table, f"--checkpoint={finetuned.pretrained}", "--skip_finetuning=false", "--epochs=2"

  def written(workdir):
    result = json.loads((workdir / "result.json").read_text())
    del result["checkpoint"], result["checksum"]  # the path of the chosen one
    files = [files_of(workdir / name) for name in ("data", "tfidf")]
    probe, suspects = describe_model(workdir / "probe" / "best"), workdir / "suspects.csv"
    return result, files, probe, suspects.read_bytes(), trained(workdir / "finetuned")

  make = lambda folder: [start("label", *map(str, flags), f"--workdir={folder}")]
  kill("label", make, written, count)


def test_label_with_a_pool(kill, start, finetuned, tmp_path, attempts):
  """Killed while it ranks, too: pool.csv is whole or absent, and chosen anew alike."""
  count = attempts(0.3)
  table, pool = tmp_path / "table.tsv", tmp_path / "pool.tsv"
  shutil.copy(f"{finetuned.data_dir}/train.tsv", table)
  rows = Path(f"{finetuned.data_dir}/dev.tsv").read_text().splitlines()
  pool.write_text("".join(f"{row.rpartition(chr(9))[0]}\n" for row in rows))
  flags = table, f"--checkpoint={finetuned.pretrained}", "--skip_finetuning", f"--pool={pool}"

  def written(workdir):
    result = json.loads((workdir / "result.json").read_text())
    return result["pool"], (workdir / "pool.csv").read_bytes()

  make = lambda folder: [start("label", *map(str, flags), f"--workdir={folder}")]
  kill("label --pool", make, written, count)


def test_export(kill, start, finetuned, random, attempts):
  flags = f"--checkpoint={finetuned.workdir}/seed_0", "--format=npz"
  make = lambda out: [start("export", *flags, f"--out={out}")]
  # 2: it is there already
  kill("export, writing", make, files_of, attempts(1), while_it_writes(random), codes=(0, 2))
