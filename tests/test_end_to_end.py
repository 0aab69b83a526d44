"""launch/pretrain.py in processes of its own: distributed, terminated. Kills: tests/attack."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from gpt_jax.checkpoints.store import restore_params

ROOT = Path(__file__).parents[1]
CONFIG = """
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.models.transformer import TransformerConfig

def get_config():
  return PretrainConfig(
    trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
    data=WindowsConfig(batch_size=8, length=16),
    optim=OptimConfig(learning_rate=2e-2, warmup_steps=1000),
    train=TrainConfig(steps=6, log_every=1),
  )
"""


class Program:
  """A running launch/pretrain.py."""

  def __init__(self, prepared, workdir, log, *flags, devices=1):
    os.makedirs(os.path.dirname(log), exist_ok=True)
    config = os.path.join(os.path.dirname(log), "config.py")
    Path(config).write_text(CONFIG)
    self.log = log
    with open(log, "wb") as file:
      self.process = subprocess.Popen(
        [
          sys.executable,
          "launch/pretrain.py",
          f"--config={config}",
          f"--data={prepared}",
          f"--workdir={workdir}",
          *flags,
        ],
        cwd=ROOT,
        env=os.environ
        | {
          "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", f"count={devices}"),
          "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.DEVNULL,
        stderr=file,
      )

  def log_text(self) -> str:
    return Path(self.log).read_text(encoding="utf-8", errors="replace")

  def wait_for(self, pattern: str, seconds: float = 120) -> None:
    """Waits until the log has the pattern or the process has ended."""
    end = time.monotonic() + seconds
    while not re.search(pattern, self.log_text()) and self.process.poll() is None:
      assert time.monotonic() < end, self.log_text()
      time.sleep(0.02)

  def ends(self, code: int = 0, seconds: float = 120) -> None:
    assert self.process.wait(seconds) == code, self.log_text()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
      self.process.wait()


def trained(workdir) -> dict[int, float]:
  """The losses in metrics.jsonl by step, which must be in order and without gap or repetition."""
  with open(f"{workdir}/metrics.jsonl", encoding="utf-8") as file:
    losses = [(entry["step"], entry["loss"]) for entry in map(json.loads, file) if "loss" in entry]
  assert [step for step, _ in losses] == list(range(1, len(losses) + 1))
  return dict(losses)


def start_distributed(prepared, workdir, log, *flags, processes=2, devices=2):
  """The processes of one distributed run, each with its own simulated devices."""
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
  distributed = ("--distributed", f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}")
  return [
    Program(
      prepared,
      workdir,
      f"{log}-{i}.log",
      *flags,
      *distributed,
      f"--process_id={i}",
      devices=devices,
    )
    for i in range(processes)
  ]


@pytest.fixture(scope="module")
def one_process(prepared, tmp_path_factory):
  """The workdir of one process of four devices."""
  folder = tmp_path_factory.mktemp("one")
  with Program(prepared, folder / "run", f"{folder}/one.log", devices=4) as program:
    program.ends()
  return folder / "run"


@pytest.mark.parametrize(
  "mesh", [("fsdp=true", "model=2"), ("backend=pmap",)], ids=["2x2 fsdp", "pmap"]
)
def test_two_processes_equal_one(prepared, one_process, tmp_path, mesh):
  first, second = start_distributed(
    prepared, tmp_path / "run", f"{tmp_path}/two", *(f"--config.mesh.{m}" for m in mesh)
  )
  with first, second:
    first.ends()
    second.ends()
  assert not second.log_text()  # only process 0 logs, and XLA has no warning about the sharding
  assert "rematerialization" not in first.log_text()
  losses, expected = trained(tmp_path / "run"), trained(one_process)
  assert losses.keys() == expected.keys()
  np.testing.assert_allclose(list(losses.values()), list(expected.values()), atol=1e-5)
  (params, _, _), (right, _, _) = (restore_params(str(w)) for w in (tmp_path / "run", one_process))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params, right)


def test_sigterm_to_one_of_two_stops_both(prepared, tmp_path):
  """They save the same step and exit with 143; one process of four devices resumes from it."""
  flags = ("--config.train.steps=2000", "--config.mesh.fsdp=true")
  first, second = start_distributed(prepared, tmp_path / "run", f"{tmp_path}/two", *flags)
  with first, second:
    first.wait_for(r"step \d+/")
    second.process.send_signal(signal.SIGTERM)
    first.ends(143)
    second.ends(143)
  stopped = int(re.search(r"stopped at step (\d+) of 2000 and saved", first.log_text())[1])
  assert os.listdir(tmp_path / "run" / "checkpoints") == [str(stopped)]
  with Program(prepared, tmp_path / "run", f"{tmp_path}/on.log", *flags, devices=4) as program:
    program.wait_for(r"step \d+/")
    assert f"resumed at step {stopped:,}" in program.log_text()
    program.process.send_signal(signal.SIGINT)
    program.ends(130)
  resumed = re.search(r"stopped at step (\d+) of 2000 and saved", program.log_text())
  assert int(resumed[1]) > stopped


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_others_with_a_line_that_names_it(prepared, tmp_path, lost):
  programs = start_distributed(
    prepared, tmp_path / "run", f"{tmp_path}/two", "--config.train.steps=100000"
  )
  with programs[0], programs[1]:
    programs[0].wait_for(r"step \d+/")
    programs[lost].process.kill()
    survivor = programs[1 - lost]
    survivor.ends(1, 60)
  errors = [line for line in survivor.log_text().splitlines() if line.startswith("error: ")]
  assert errors == [
    f"error: process {lost} of 2 is lost; start all of them again with the same command, which "
    "resumes the run"
  ]
  assert "Traceback" not in survivor.log_text() and "***" not in survivor.log_text()
