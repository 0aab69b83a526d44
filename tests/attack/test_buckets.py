"""Runs on gs:// and s3:// that are killed with -9, or whose store fails: nothing is lost.

`bash launch/test.sh -m store tests/attack/test_buckets.py --budget=20`: 80 kills and 800 errors.
"""

import json
import signal
import time

import jax
import numpy as np
import pytest
from conftest import complete
from stores import Faults, gcs_environment, s3_environment

from gpt_jax.checkpoints.store import restore_params
from gpt_jax.config import override_all, to_json
from gpt_jax.files import read_json
from gpt_jax.training.history import read_metrics

pytestmark = pytest.mark.attack
PRETRAIN = """
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig


def get_config():
  return PretrainConfig(
    trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
    data=WindowsConfig(batch_size=8, length=16),
    train=TrainConfig(steps=24, log_every=1, evaluate_every=12, checkpoint_every=3),
  )
"""
FINETUNE = """
import json
from gpt_jax.config import from_json


def get_config():
  return from_json(json.load(open({!r})))
"""


@pytest.fixture
def make(start, prepared, finetuned, tmp_path):
  """make(program, workdir): a run of pretrain or finetune, started."""
  changes = [("train.epochs", "3"), ("train.checkpoint_every", "4"), ("train.log_every", "1")]
  tree = to_json(override_all(finetuned.config, changes))
  (tmp_path / "config.json").write_text(json.dumps(tree))
  configs = {"pretrain": PRETRAIN, "finetune": FINETUNE.format(str(tmp_path / "config.json"))}
  for program, config in configs.items():
    (tmp_path / f"{program}.py").write_text(config)
  more = {
    "pretrain": [f"--data={prepared}"],
    "finetune": [f"--data={finetuned.data_dir}", f"--checkpoint={finetuned.pretrained}"],
  }

  def run(program, workdir):
    config = f"--config={tmp_path}/{program}.py"
    return start(program, config, *more[program], f"--workdir={workdir}")

  return run


def results(program, workdir):
  """The losses of a run by step, the bits of its last parameters, and its result."""
  losses = [(entry["step"], entry["loss"]) for entry in read_metrics(workdir) if "loss" in entry]
  params, _, step = restore_params(workdir)
  bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]
  result = None
  if program == "finetune":
    result = read_json(f"{workdir}/result.json")
  return losses, bits, step, result


@pytest.mark.parametrize("program", ["pretrain", "finetune"])
def test_kills(program, make, store, tmp_path, random, attempts, ledger):
  count, outcomes = attempts(1), []
  local = str(tmp_path / "whole")
  complete(make(program, local))
  expected = results(program, local)
  began = time.monotonic()
  complete(make(program, f"{store}/whole"))
  duration = time.monotonic() - began
  while len(outcomes) < count:
    workdir, met = f"{store}/{len(outcomes)}", 0
    while met < min(4, count - len(outcomes)):
      process = make(program, workdir)
      time.sleep(random.uniform(0, duration))
      if process.poll() is not None:
        complete(process)
        break
      process.send_signal(signal.SIGKILL)
      process.communicate()
      met += 1
    complete(make(program, workdir))
    same = results(program, workdir) == expected
    outcomes += met * ["harmless" if same else f"{workdir}: not the same"]
  ledger(f"kills, {program} on {store[:5]}", outcomes)


def test_errors(make, store, stores, tmp_path, monkeypatch, attempts, ledger):
  """Each run meets a few, and is the same as on a disk."""
  count, outcomes = attempts(20), []
  local = str(tmp_path / "whole")
  complete(make("pretrain", local))
  expected = results("pretrain", local)
  environment, url = gcs_environment, stores["STORAGE_EMULATOR_HOST"]
  if store.startswith("s3://"):
    environment, url = s3_environment, stores["AWS_ENDPOINT_URL"]
  port = int(url.rpartition(":")[2])
  while len(outcomes) < count:
    workdir = f"{store}/{len(outcomes)}"
    with Faults(port, rate=0.04, seed=len(outcomes)) as faults, monkeypatch.context() as patch:
      for name, value in environment(faults.port).items():
        patch.setenv(name, value)
      output = complete(make("pretrain", workdir))
    same = results("pretrain", workdir) == expected and "Traceback" not in output
    outcomes += faults.injected * ["harmless" if same else f"{workdir}: {output[-300:]}"]
  ledger(f"errors of {store[:5]} (429, 503, dropped connections)", outcomes)
