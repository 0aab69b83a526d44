"""Runs of pretrain and finetune of a few seconds, and what must be the same after an attack."""

import json
import warnings

import jax
import numpy as np
from tiny_runs import write_config

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import list_folder, read_json
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run_log import read_lines

PRETRAIN = PretrainConfig(
  TransformerConfig(context=16, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=8, length=16),
  train=TrainConfig(steps=24, log_every=1, evaluate_every=12, checkpoint_every=3),
)


def finetune_flags(finetuned, path, changes=()):
  """Those of a run like `finetuned`, whose config is written to a file."""
  config = write_config(path, finetuned.config, changes)
  return config, f"--data={finetuned.data_dir}", f"--checkpoint={finetuned.pretrained}"


def trained(workdir):
  """The losses of a run by step, the bits of its last parameters, and the steps it kept."""
  entries = list(map(json.loads, read_lines(f"{workdir}/metrics.jsonl")))
  losses = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
  params, _, step = restore_params(str(workdir))
  bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)]
  return losses, bits, step, sorted(list_folder(f"{workdir}/checkpoints"))


def results(program, workdir):
  """What of a run must be the same, and its result."""
  losses, bits, step, _ = trained(workdir)
  return losses, bits, step, read_json(f"{workdir}/result.json") if program == "finetune" else None


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
