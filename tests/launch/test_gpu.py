"""launch/gpu_day.sh with a Python that only writes down what it is asked to run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "launch" / "gpu_day.sh"
STAND_IN = """#!/usr/bin/env bash
echo "$*" | head -1 >> "$CALLS"
[[ "$*" != *"$FAILS"* ]]
"""


@pytest.fixture
def gpu_day(tmp_path):
  """fails -> the commands that a call of the script runs, where those that contain `fails` fail."""
  launch, binaries = tmp_path / "clone" / "launch", tmp_path / "bin"
  for folder in (launch, binaries, tmp_path / "tokens", tmp_path / "glue"):
    folder.mkdir(parents=True)
  shutil.copy(SCRIPT, launch)
  (binaries / "python3").write_text(STAND_IN)
  (binaries / "python3").chmod(0o755)

  def call(fails="nothing", only=""):
    calls = tmp_path / "calls"
    calls.write_text("")
    env = os.environ | {"CALLS": str(calls), "FAILS": fails, "ONLY": only}
    env["PATH"] = f"{binaries}:{env['PATH']}"
    command = ["bash", str(launch / "gpu_day.sh"), "out", "tokens", "glue"]
    subprocess.run(command, cwd=tmp_path, env=env, check=False, capture_output=True)
    return calls.read_text().splitlines()

  return call


def test_what_is_done_is_not_done_again(gpu_day):
  first = gpu_day(fails="pretrain.py")
  assert first[0].startswith("-c") and sum("finetune.py" in call for call in first) == 5
  again = gpu_day()
  assert len(again) == 1 and "launch/pretrain.py" in again[0]
  assert gpu_day() == []


def test_nothing_runs_on_a_device_that_cannot_add(gpu_day):
  assert len(gpu_day(fails="-c")) == 1


def test_some_pieces_only(gpu_day):
  calls = gpu_day(only="peers")
  assert len(calls) == 2 and "--peers" in calls[1]
