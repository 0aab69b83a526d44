"""launch/pretrain.py in processes of its own: distributed, terminated. Kills: tests/attack."""

import os
import re
import signal

import jax
import numpy as np
import pytest
from hosts import Program, start_distributed, trained

from gpt_jax.checkpoints.store import restore_params

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


@pytest.fixture
def pretraining(prepared, tmp_path):
  return [*of_run(prepared, tmp_path / "config.py"), f"--workdir={tmp_path / 'run'}"]


def of_run(prepared, config):
  """The flags of all runs of this file."""
  config.write_text(CONFIG)
  return [f"--config={config}", f"--data={prepared}"]


@pytest.fixture(scope="module")
def one_process(prepared, tmp_path_factory):
  """The workdir of one process of four devices."""
  folder = tmp_path_factory.mktemp("one")
  flags = of_run(prepared, folder / "config.py")
  workdir = f"--workdir={folder / 'run'}"
  with Program("pretrain", f"{folder}/one.log", *flags, workdir, devices=4) as program:
    program.ends()
  return folder / "run"


@pytest.mark.parametrize(
  "mesh", [("fsdp=true", "model=2"), ("backend=pmap",)], ids=["2x2 fsdp", "pmap"]
)
def test_two_processes_equal_one(pretraining, one_process, tmp_path, mesh):
  flags = [*pretraining, *(f"--config.mesh.{field}" for field in mesh)]
  first, second = start_distributed("pretrain", f"{tmp_path}/two", *flags, devices=2)
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


def test_sigterm_to_one_of_two_stops_both(pretraining, tmp_path):
  """They save the same step and exit with 143; one process of four devices resumes from it."""
  flags = [*pretraining, "--config.train.steps=2000", "--config.mesh.fsdp=true"]
  first, second = start_distributed("pretrain", f"{tmp_path}/two", *flags, devices=2)
  with first, second:
    first.wait_for(r"step \d+/")
    second.process.send_signal(signal.SIGTERM)
    first.ends(143)
    second.ends(143)
  stopped = int(re.search(r"stopped at step (\d+) of 2000 and saved", first.log_text())[1])
  assert os.listdir(tmp_path / "run" / "checkpoints") == [str(stopped)]
  with Program("pretrain", f"{tmp_path}/on.log", *flags, devices=4) as program:
    program.wait_for(r"step \d+/")
    assert f"resumed at step {stopped:,}" in program.log_text()
    program.process.send_signal(signal.SIGINT)
    program.ends(130)
  resumed = re.search(r"stopped at step (\d+) of 2000 and saved", program.log_text())
  assert int(resumed[1]) > stopped


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_others_with_a_line_that_names_it(pretraining, tmp_path, lost):
  flags = [*pretraining, "--config.train.steps=100000"]
  programs = start_distributed("pretrain", f"{tmp_path}/two", *flags, devices=2)
  with programs[0], programs[1]:
    programs[0].wait_for(r"step \d+/")
    programs[lost].process.kill()
    survivor = programs[1 - lost]
    survivor.ends(1, 60)
  assert survivor.errors() == [
    f"error: process {lost} of 2 is lost; start all of them again with the same command, which "
    "resumes the run"
  ]
