"""Runs of pretrain and finetune of a few seconds, and what must be the same after an attack."""

import json
import warnings

import jax
import numpy as np

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import to_json
from gpt_jax.files import read_json
from gpt_jax.programs.config_files import override_all
from gpt_jax.training.run_log import read_metrics

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


def starter(start, prepared, finetuned, folder):
  """make(program, workdir) starts a run of pretrain or finetune; its configs are in a folder."""
  changes = [("train.epochs", "3"), ("train.checkpoint_every", "4"), ("train.log_every", "1")]
  tree = to_json(override_all(finetuned.config, changes))
  (folder / "config.json").write_text(json.dumps(tree))
  configs = {"pretrain": PRETRAIN, "finetune": FINETUNE.format(str(folder / "config.json"))}
  for program, config in configs.items():
    (folder / f"{program}.py").write_text(config)
  more = {
    "pretrain": [f"--data={prepared}"],
    "finetune": [f"--data={finetuned.data_dir}", f"--checkpoint={finetuned.pretrained}"],
  }

  def make(program, workdir):
    config = f"--config={folder}/{program}.py"
    return start(program, config, *more[program], f"--workdir={workdir}")

  return make


def results(program, workdir):
  """The losses of a run by step, the bits of its last parameters, and its result."""
  losses = [(entry["step"], entry["loss"]) for entry in read_metrics(workdir) if "loss" in entry]
  params, _, step = restore_params(workdir)
  bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]
  result = None
  if program == "finetune":
    result = read_json(f"{workdir}/result.json")
  return losses, bits, step, result


def read_model(path):
  """What load_model gives, as a value that can be compared and sent, and its warnings."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = load_model(path)
  value = checksum(model.params), json.dumps(model.meta), model.step, model.tokenizer.hash
  return value, [str(entry.message) for entry in caught if entry.category is UserWarning]


def complete(process, codes=(0,)):
  """The output of a program that must end with one of these codes."""
  output = process.communicate(timeout=300)[0]
  assert process.returncode in codes, output
  return output
