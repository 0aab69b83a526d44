"""Trains again from one checkpoint of a run to a later one, and compares the two states' bits."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from gpt_jax.checkpoints.run_folder import read_config
from gpt_jax.checkpoints.store import compare, restore_step, saved_meta, saved_steps
from gpt_jax.config import from_json
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.models.model import ModelConfig
from gpt_jax.objectives.objective import make_windows
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch
from gpt_jax.programs import finetune, pretrain
from gpt_jax.programs.finetuning.config import FinetuneConfig
from gpt_jax.programs.finetuning.start import Start
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.encoding import evenly
from gpt_jax.tasks.formats import Format
from gpt_jax.training.trainer import Trainer

SHOWN = 10  # arrays that differ


@dataclasses.dataclass(frozen=True)
class Replay:
  """A run as it can be trained again.

  Attributes:
    trainer: compiled for the devices of this machine.
    batch_at: step -> this process's rows of the host batch.
    seed: of dropout.
    identity: what identifies the data that was given, as in config.json.
  """

  trainer: Trainer
  batch_at: Callable[[int], Any]
  seed: int
  identity: dict[str, Any]


def run(workdir: str, step: int, data: str) -> dict[str, Any]:
  """Replays the steps between the newest checkpoint before `step` and `step`; changes no file.

  Prints which arrays of parameters and optimizer differ from the checkpoint of `step`. On the
  devices of the run there are none; on others sums are rounded in another order.

  Args:
    workdir: of a pre-training or fine-tuning, with both checkpoints.
    step: of the later one.
    data: the run's data: the folder that prepare wrote, or that of the task.

  Returns:
    start: the step of the earlier checkpoint; differences: see store.compare; equal: whether there
    are none.

  Raises:
    InputError: a checkpoint is missing or damaged, or data that does not fit the run.
  """
  start = _start(workdir, step)
  meta = saved_meta(workdir, step)
  try:
    config, spec = from_json(meta["config"]), from_json(meta["model"])
  except KeyError as error:
    raise InputError(f"{workdir}: no run wrote this checkpoint: it has no {error}") from error
  noted = read_config(workdir)
  _check_length(workdir, noted, start, step)
  tokenizer = load_tokenizer(os.path.join(workdir, "tokenizer"))
  prepare = _finetuning if isinstance(config, FinetuneConfig) else _pretraining
  format = from_json(meta.get("sequence_format", {"type": "gpt_format"}))
  replay = prepare(config, spec, tokenizer, data, format)
  for name, value in replay.identity.items():
    if noted["data"].get(name) != value:
      print(f"other data than the run's: {name} is {value}, not {noted['data'].get(name)}")
  abstract = replay.trainer.abstract_state()
  state = restore_step(workdir, start, abstract)
  for number in range(start, step):
    batch = replay.trainer.to_device(replay.batch_at(number))
    state, _ = replay.trainer.step(state, batch, replay.seed)
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
  return earlier[-1]


def _check_length(workdir: str, noted: dict[str, Any], start: int, step: int) -> None:
  """Raises InputError if the run got another number of steps, and so another schedule, between."""
  for change in noted.get("changes", []):
    if start < change["at_step"] < step:
      raise InputError(
        f"--replay={step}: the run in {workdir} was made longer at step {change['at_step']}, after "
        f"the checkpoint of step {start} and under another schedule"
      )


def _pretraining(
  config: PretrainConfig, spec: ModelConfig, tokenizer: Tokenizer, data: str, format: Format
) -> Replay:
  del format  # the objective writes the sequences
  if not data:
    raise InputError("--data is needed: the folder of the run's prepared text")
  text, held_out = TokenFile(data, "train"), TokenFile(data, "valid")
  text.check_vocabulary(tokenizer)
  windows = make_windows(config.objective, text, config.data, config.train.seed)
  mesh = make_mesh(config.mesh)
  check_batch(config.data.batch_size, mesh, config.train.parts)
  objective = config.objective.bind(tokenizer, config.data.length)
  total_steps = config.train.total_steps(windows.steps_per_epoch)
  trainer = pretrain.make_trainer(config, spec, objective, mesh, total_steps)
  batch_at = pretrain.make_batch_at(config, objective, windows, mesh)
  return Replay(trainer, batch_at, config.train.seed, pretrain.data_identity(text, held_out))


def _finetuning(
  config: FinetuneConfig, spec: ModelConfig, tokenizer: Tokenizer, data: str, format: Format
) -> Replay:
  start = Start(config.trunk, spec.attention, tokenizer, format=format)
  task = finetune.build_task(config.task, data, start)
  examples = evenly(task.examples(data, "train"), config.train_examples)
  train_set = start.encode(task, examples)
  mesh = make_mesh(config.mesh)
  trainer = finetune.make_trainer(config, spec, train_set, mesh)
  batches = finetune.make_batches(config, train_set, mesh)
  identity = finetune.data_identity({"train": train_set}, start)
  del identity["pretrained"]
  return Replay(
    trainer, lambda step: trainer.local_part(batches(step)), config.train.seed, identity
  )


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
