"""Pre-training with its run folder on gs://: killed, and on a store that fails."""

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from stores import Faults, gcs_environment

from gpt_jax import files
from gpt_jax.checkpoints.lease import Lease
from gpt_jax.checkpoints.store import restore_params
from gpt_jax.errors import InputError
from gpt_jax.training.history import read_metrics
from gpt_jax.training.json_lines import cut_back, open_to_append, read_lines

ROOT = Path(__file__).parents[2]
CONFIG = """
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig


def get_config():
  return PretrainConfig(
    trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
    data=WindowsConfig(batch_size=8, length=16),
    train=TrainConfig(steps=24, log_every=2, evaluate_every=12, checkpoint_every=3),
  )
"""


@pytest.fixture
def command(tmp_path, prepared):
  """command(workdir): of a run of pretrain."""
  config = tmp_path / "config.py"
  config.write_text(CONFIG)
  program = [sys.executable, str(ROOT / "launch" / "pretrain.py"), f"--config={config}"]
  return lambda workdir: [*program, f"--data={prepared}", f"--workdir={workdir}"]


@pytest.fixture
def environment():
  return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


def train(command, environment):
  return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def assert_same(a, b):
  """Two runs have the same parameters, bit for bit, and logged the same steps."""
  (x, _, step_x), (y, _, step_y) = restore_params(a), restore_params(b)
  assert step_x == step_y == 24
  jax.tree.map(lambda p, q: np.testing.assert_array_equal(p.view("u4"), q.view("u4")), x, y)
  losses = [[(e["step"], e.get("loss")) for e in read_metrics(run)] for run in (a, b)]
  assert losses[0] == losses[1]


def test_a_run_on_a_bucket_killed_and_resumed_is_the_same(
  command, environment, stores, gs, tmp_path
):
  with subprocess.Popen(
    command(gs), env=environment | stores, stderr=subprocess.PIPE, text=True
  ) as process:
    for line in process.stderr:
      if line.startswith("step 16/"):
        break
    process.kill()
  resumed = train(command(gs), environment | stores)
  assert resumed.returncode == 0, resumed.stderr
  local = str(tmp_path / "run")
  assert train(command(local), environment).returncode == 0
  assert_same(gs, local)


@pytest.mark.slow  # waits between tries
def test_errors_of_a_store_are_retried_and_lose_nothing(command, environment, stores, gs, tmp_path):
  port = int(stores["STORAGE_EMULATOR_HOST"].rpartition(":")[2])
  with Faults(port, rate=0.04) as faults:
    done = train(command(gs), environment | stores | gcs_environment(faults.port))
  assert done.returncode == 0, done.stderr
  assert faults.injected >= 5 and "Traceback" not in done.stderr
  local = str(tmp_path / "run")
  assert train(command(local), environment).returncode == 0
  assert_same(gs, local)


def test_a_store_that_is_gone_is_one_line(gs, stores, monkeypatch):
  def gone(*_, **__):
    raise ConnectionResetError(104, "Connection reset by peer")

  monkeypatch.setattr(files._store(gs), "exists", gone)
  with pytest.raises(files.StoreError, match="reset by peer"):
    files.exists(f"{gs}/x")


def test_a_lease_is_taken_over_when_it_has_run_out(gs, monkeypatch):
  monkeypatch.setattr("gpt_jax.checkpoints.lease._machine", lambda: "elsewhere")
  Lease(gs)._closed.set()  # renewed no more
  monkeypatch.undo()
  with pytest.raises(InputError, match=r"another run is at work there.*its lease ends in \d+ s"):
    Lease(gs)
  later = time.time() + 61
  monkeypatch.setattr("time.time", lambda: later)
  with Lease(gs) as second:
    assert files.list_folder(f"{gs}/lock") == ["2"]
    assert second._read(2)["owner"] == second._owner
  assert not files.exists(f"{gs}/lock")


def test_lines_are_appended_in_segments(gs, monkeypatch):
  path = f"{gs}/metrics.jsonl"
  monkeypatch.setattr("gpt_jax.training.json_lines._SEGMENT", 20)
  monkeypatch.setattr("gpt_jax.training.json_lines._SECONDS", 0)
  lines = [f'{{"step": {step}}}\n' for step in range(1, 10)]
  for part in (lines[:6], lines[6:]):
    with open_to_append(path) as file:
      for line in part:
        file.write(line)
        file.flush()
  assert len(files.list_folder(path)) > 3 and list(read_lines(path)) == lines
  cut_back(path, 4)
  assert len(files.list_folder(path)) == 1 and list(read_lines(path)) == lines[:4]


@pytest.mark.parametrize("path", ["s3://bucket/run"])
def test_run_folders_are_not_on_other_stores(command, environment, path, stores):
  done = train(command(path), environment | stores)
  assert done.returncode == 2 and done.stderr.count("\n") == 1
  assert "checkpoints can be on gs:// or a disk" in done.stderr
