"""Programs killed at any moment, and two at once: what they leave is what one of them would."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpt_jax.checkpoints.store import restore_params
from gpt_jax.config import override_all, to_json
from gpt_jax.programs.finetune import read_result

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WORDS = "the cat sat on the mat and the dog ran to the old red barn by the sea "


def start(program, *flags):
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace("count=8", "count=1")
  return subprocess.Popen(
    [sys.executable, str(ROOT / "launch" / f"{program}.py"), *flags],
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def complete(process, code=0):
  output = process.communicate(timeout=300)[0]
  assert process.returncode == code, output
  return output


def contents(folder):
  files = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def kill_often(make, kills, duration, random):
  """Starts a program again and again and kills it after a random time; then lets it end.

  Returns how many of the kills met it alive; only these count.
  """
  met = 0
  for _ in range(kills):
    process = make()
    time.sleep(random.uniform(0, duration))
    met += process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
  complete(make())
  return met


def timed(make):
  """The duration of the program, run to its end."""
  began = time.monotonic()
  complete(make())
  return time.monotonic() - began


def test_prepare_is_killed(tmp_path, random, attempts, ledger):
  text = tmp_path / "text"
  text.mkdir()
  for number in range(40):
    (text / f"{number}.txt").write_text(WORDS * 4000)

  def make(name):
    return start("prepare", f"--source={text}", f"--out={tmp_path / name}", "--vocab_size=290")

  duration = timed(lambda: make("whole"))
  kills = kill_often(lambda: make("killed"), attempts(2), duration, random)
  same = contents(tmp_path / "killed") == contents(tmp_path / "whole")
  left = [name for name in os.listdir(tmp_path) if "partial" in name]
  outcome = "harmless" if same and not left else f"another folder, or left behind: {left}"
  ledger("kills, prepare", [outcome] * kills)


def test_finetune_is_killed(finetuned, tmp_path, random, attempts, ledger):
  config = tmp_path / "config.py"
  config.write_text(
    f"from gpt_jax.config import from_json\nimport json\n\n\ndef get_config():\n"
    f"  tree = json.load(open({str(tmp_path / 'config.json')!r}))\n  return from_json(tree)\n"
  )
  changes = [("train.epochs", "12"), ("train.checkpoint_every", "2"), ("train.log_every", "1")]
  tree = to_json(override_all(finetuned.config, changes))
  (tmp_path / "config.json").write_text(json.dumps(tree))

  def make(name):
    return start(
      "finetune",
      f"--config={config}",
      f"--data_dir={finetuned.data_dir}",
      f"--pretrained={finetuned.pretrained}",
      f"--workdir={tmp_path / name}",
    )

  duration = timed(lambda: make("whole"))
  kills = kill_often(lambda: make("killed"), attempts(2), duration, random)
  (a, _, step), (b, _, other) = (restore_params(str(tmp_path / n)) for n in ("whole", "killed"))
  same = step == other and read_result(str(tmp_path / "whole" / "result.json")) == read_result(
    str(tmp_path / "killed" / "result.json")
  )
  for x, y in zip(_leaves(a), _leaves(b), strict=True):
    same = same and np.array_equal(x.view(np.uint32), y.view(np.uint32))
  outcome = "harmless" if same else "another result"
  ledger("kills, finetune", [outcome] * kills)


def _leaves(tree):
  for value in tree.values():
    yield from _leaves(value) if isinstance(value, dict) else (value,)


def test_two_prepare_at_once(tmp_path, attempts, ledger):
  text = tmp_path / "text.txt"
  text.write_text(WORDS * 2000)
  outcomes = []
  for number in range(attempts(2)):
    flags = (f"--source={text}", f"--out={tmp_path / str(number)}", "--vocab_size=290")
    processes = [start("prepare", *flags) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    codes = sorted(process.returncode for process in processes)
    errors = [out for out in outputs if "error: " in out]
    one_line = all(
      error.splitlines()[-1].endswith("to see whether it is the same") for error in errors
    )
    good = codes == [0, 2] and one_line or codes == [0, 0] and not errors
    outcomes.append("harmless" if good and "Traceback" not in "".join(outputs) else str(outputs))
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]
  ledger("two at once, prepare", outcomes)


def test_no_room(tmp_path, attempts, ledger):
  """A limit on the size of files, in place of a full disk."""
  outcomes = []
  for limit in range(1, 1 + attempts(2)):
    out = tmp_path / str(limit)
    command = (
      f"ulimit -f {8 * limit}; exec {sys.executable} {ROOT}/launch/prepare.py --source=embedded "
      f"--out={out} --vocab_size=1500"
    )
    done = subprocess.run(
      ["bash", "-c", command],
      env={**os.environ, "PYTHONPATH": str(ROOT)},
      capture_output=True,
      text=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    good = done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr
    outcomes.append("refused" if good and not out.exists() else done.stderr)
    shutil.rmtree(out, ignore_errors=True)
  ledger("no room, prepare", outcomes)
