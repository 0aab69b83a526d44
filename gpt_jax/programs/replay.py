"""Trains again from one checkpoint of a run to a later one, and compares the two states' bits."""

import dataclasses
import os
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.restore import describe, restore_step, saved_meta, saved_steps
from gpt_jax.checkpoints.run_folder import read_config
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs import finetune, pretrain
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import build_task, training_set
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_mixture import load_texts
from gpt_jax.programs.pretrain_start import with_layer_decay
from gpt_jax.programs.start import Start
from gpt_jax.tasks.formats import Format
from gpt_jax.training.recipe import Recipe, make_trainer

SHOWN = 10  # arrays that differ


def run(workdir: str, step: int, data: str) -> dict[str, Any]:
  """Replays the steps between the newest checkpoint before `step` and `step`; changes no file.

  Prints which arrays of parameters and optimizer differ from the checkpoint of `step`. On the
  devices of the run there are none; on others sums are rounded in another order.

  Args:
    workdir: of a pre-training or fine-tuning, with both checkpoints.
    step: of the later one.
    data: the run's data: the folder that prepare wrote, or that of the task.

  Returns:
    start: the step of the earlier checkpoint; differences: see `compare`; equal: whether there
    are none.
  """
  start = _start(workdir, step)
  meta = saved_meta(workdir, step)
  try:
    config, spec = from_json(meta["config"]), from_json(meta["model"])
  except KeyError as error:
    raise InputError(f"{workdir}: no run wrote this checkpoint: it has no {error}") from error
  for name, why in (
    ("adapter", "trains an adapter, whose base no checkpoint has"),
    ("teacher", "has a teacher, which no checkpoint of it has"),
  ):
    if meta.get(name):
      raise InputError(f"--replay={step}: {workdir} {why}")
  noted = read_config(workdir)  # config.json, which has the identity of the run's data
  for change in noted.get("changes", []):
    if start < change["at_step"] < step:
      raise InputError(
        f"--replay={step}: the run in {workdir} was made longer at step {change['at_step']}, after "
        f"the checkpoint of step {start} and under another schedule"
      )
  tokenizer = load_tokenizer(os.path.join(workdir, "tokenizer"))
  if "task" in meta:  # a fine-tuning
    format = from_json(meta.get("sequence_format", {"type": "gpt_format"}))
    recipe = _finetuning(config, spec, tokenizer, data, format)
  else:
    recipe = _pretraining(config, tokenizer, data)
  for name, value in recipe.identity.items():
    if noted["data"].get(name) != value:
      print(f"other data than the run's: {name} is {value}, not {noted['data'].get(name)}")
  trainer, batches = make_trainer(recipe), recipe.batches(config.train)
  abstract = trainer.abstract_state()
  state = restore_step(workdir, start, abstract)
  # Batches, masks and dropout depend on the seed and the step alone.
  for number in range(start, step):
    batch = trainer.to_device(batches.at(number))
    state, _ = trainer.step(state, batch, config.train.seed)
  differences = compare(state, restore_step(workdir, step, abstract))
  _report(start, step, differences)
  return {"start": start, "differences": differences, "equal": not differences}


def _start(workdir: str, step: int) -> int:
  """The newest step before `step` that has a checkpoint."""
  steps = saved_steps(workdir)
  there = ", ".join(map(str, steps))
  if step not in steps:
    raise InputError(f"--replay={step}: {workdir} has no checkpoint of this step, but of {there}")
  earlier = [other for other in steps if other < step]
  if not earlier:
    raise InputError(
      f"--replay={step}: {workdir} has no checkpoint before this step, only of {there}; "
      "train.keep_checkpoints and train.milestone keep more"
    )
  return earlier[-1]  # the fewest steps to make again


def _pretraining(config: PretrainConfig, tokenizer: Tokenizer, data: str) -> Recipe:
  if not data:
    raise InputError("--data is needed: the folder of the run's prepared text")
  text = load_texts(config, data)
  text.train.check_vocabulary(tokenizer)
  text = text._replace(tokenizer=tokenizer)  # with the special tokens of the run
  identity = pretrain.data_identity(text.train, text.held_out)
  recipe = with_layer_decay(pretrain.text_recipe(config, text), config.layer_decay)
  return dataclasses.replace(recipe, identity=identity)


def _finetuning(
  config: FinetuneConfig, spec: ModelConfig, tokenizer: Tokenizer, data: str, format: Format
) -> Recipe:
  start = Start(config.trunk, spec.attention, tokenizer, format=format)
  task = build_task(config.task, data, start)
  train_set = training_set(config, task, data, start)
  identity = finetune.data_identity({"train": train_set}, start)
  # The weights come from the run's own checkpoint, wherever the run began.
  del identity["pretrained"]
  recipe = finetune.finetune_recipe(config, task, train_set, start)
  return dataclasses.replace(recipe, identity=identity)


def _report(start: int, step: int, differences: dict[str, float]) -> None:
  print(f"step {step:,}, replayed from the checkpoint of step {start:,}")
  if not differences:
    print("equal: parameters and optimizer are bit-identical")
    return
  print(f"not equal: {counted(len(differences), 'array')} differ")
  largest = sorted(differences, key=lambda name: -differences[name])
  for name in largest[:SHOWN]:
    print(f"  {name}, max |difference| {differences[name]:.3g}")
  if len(largest) > SHOWN:
    print(f"  … and {len(largest) - SHOWN:,} more, which differ less")


def compare(a: Any, b: Any) -> dict[str, float]:
  """By path the largest |difference| of each array that is not bit-identical in two states."""
  left, right = describe(a), describe(b)
  differences = {}
  for x, y, name in zip(jax.tree.leaves(a), jax.tree.leaves(b), left, strict=True):
    if left[name] != right[name]:
      difference = np.asarray(x, np.float64) - np.asarray(y, np.float64)
      differences[name] = float(np.abs(difference).max())
  return differences
