"""The program that pre-trains: prepared text to a checkpoint (section 3.1)."""

import dataclasses
import itertools
import sys
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import option, register, to_json, validate
from gpt_jax.data.draws import Draw
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import evaluation_batches, make_evaluator, text_measures
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import Causal
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import check_batch, local_rows, to_device
from gpt_jax.training import loop as train
from gpt_jax.training.loop import TrainConfig, due
from gpt_jax.training.optimizer import OptimConfig, make_optimizer, warmup_length
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.step import compile_init, init_state, make_step, restore_or_init


@register("pretrain")
@dataclasses.dataclass(frozen=True)
class PretrainConfig:
  """A pre-training run; the defaults are the paper's (section 4.1)."""

  trunk: Any = option(
    TransformerConfig(), "the model below the head: TransformerConfig or LSTMConfig"
  )
  objective: Any = option(Causal(), "what is predicted")
  data: WindowsConfig = option(WindowsConfig(), "how text becomes batches")
  optim: OptimConfig = option(OptimConfig(), "update rule and schedule")
  mesh: MeshConfig = option(MeshConfig(), "how devices are used")
  train: TrainConfig = option(TrainConfig(epochs=100), "length and rhythm of the run")
  evaluation_batches: int = option(0, "batches of held-out text an evaluation reads; 0: all", low=0)

  def __post_init__(self):
    validate(self)
    if self.data.length > self.trunk.context:
      raise InputError(
        f"data.length={self.data.length}: must not exceed trunk.context={self.trunk.context}"
      )


def run(config: PretrainConfig, data: str, workdir: str) -> dict[str, float]:
  """Trains to the end, or from where the same call stopped before; returns the last evaluation.

  Args:
    config: see configs/.
    data: a folder that prepare wrote.
    workdir: the run's folder.

  Raises:
    InputError: for everything that a user can mend, before any training time is spent.
  """
  if not isinstance(config, PretrainConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; pre-training takes a PretrainConfig, as configs/gpt1.py has"
    )

  # 1. The text, and what it decides of the config.
  text, held_out = TokenFile(data, "train"), TokenFile(data, "valid")
  tokenizer = load_tokenizer(f"{data}/tokenizer").with_special(*config.objective.special)
  for split in (text, held_out):
    split.check_vocabulary(tokenizer)
  config = dataclasses.replace(config, trunk=with_vocabulary(config.trunk, tokenizer))
  windows = Windows(text, config.data, config.train.seed)
  validation = Windows(held_out, config.data)
  total_steps = config.train.total_steps(windows.steps_per_epoch)

  # 2. The devices, and the rows of each batch that this process provides.
  mesh = make_mesh(config.mesh)
  parts = config.train.microbatches
  check_batch(config.data.batch_size, mesh, parts)
  rows = local_rows(config.data.batch_size, mesh, parts)
  evaluation_rows = local_rows(config.data.batch_size, mesh)

  # 3. Model, loss, optimizer, state.
  objective = config.objective.bind(tokenizer, config.data.length)
  spec = ModelConfig(config.trunk, make_heads(config.objective.heads), config.objective.attention)
  model = spec.build()
  loss = model_loss(model)
  optimizer, schedule = make_optimizer(config.optim, total_steps)
  example = objective(np.zeros((1, config.data.length + 1), np.int32), Draw(0, 0, np.arange(1)))
  make_state = init_state(lambda key: model.init(key, example)["params"], optimizer)
  make_state, shardings = compile_init(
    make_state, mesh, config.trunk.TENSOR_PARALLEL, config.mesh.fsdp
  )
  step = make_step(
    loss, optimizer, schedule, mesh, shardings, microbatches=parts, backend=config.mesh.backend
  )
  claim(
    workdir, config, tokenizer, {"train_tokens": text.n_tokens, "valid_tokens": held_out.n_tokens}
  )

  def batch_at(step: int):
    batch = objective(windows(step, rows), Draw(config.train.seed, step, rows))
    return to_device(batch, mesh, parts, config.mesh.backend)

  evaluator = make_evaluator(loss, mesh)

  def evaluate(params) -> dict[str, float]:
    batches = evaluation_batches(objective, validation, evaluation_rows)
    found = evaluator(params, _first(batches, config.evaluation_batches))
    measures = text_measures(found["loss"], held_out.n_tokens, held_out.n_bytes)
    return {f"valid_{name}": value for name, value in measures.items()}

  def evaluate_at(step: int) -> bool:
    return due(step, config.train.evaluate_every)

  def milestone(step: int) -> bool:
    return train.is_power_of_two_multiple(step, config.train.milestone)

  def save_at(step: int) -> bool:
    return evaluate_at(step) or due(step, config.train.checkpoint_every) or milestone(step)

  # 4. Train, from the newest checkpoint if there is one.
  with Checkpoints(workdir, metric="valid_loss", mode="min", keep=milestone) as checkpoints:
    state, first = restore_or_init(make_state, shardings, config.train.seed, checkpoints)
    meta = {
      "model": to_json(spec),
      "config": to_json(config),
      "tokenizer_hash": tokenizer.hash,
    }
    settled_step = 2 * warmup_length(config.optim, total_steps)
    warned = False

    def watch(step: int, means: dict[str, float]) -> None:
      nonlocal warned
      if step > settled_step and "loss" in means and not warned:
        warned = train.warn_if_stuck(means["loss"], text.unigram_entropy)

    if jax.process_index() == 0:
      print(describe(config, tokenizer, text, total_steps, first), file=sys.stderr)
    flops = config.trunk.flops_per_token(config.data.length)
    with Reporter(workdir, total_steps, first, text.unigram_entropy, flops) as reporter:
      _, evaluation = train.fit(
        state,
        lambda state, batch: step(state, batch, config.train.seed),
        batch_at,
        total_steps,
        reporter=reporter,
        tokens_per_step=config.data.batch_size * config.data.length,
        save=lambda step, state, metrics: checkpoints.save(step, state, meta, metrics),
        evaluate=evaluate,
        log_every=config.train.log_every,
        evaluate_at=evaluate_at,
        save_at=save_at,
        watch=watch,
      )
  return evaluation


def with_vocabulary(trunk: Any, tokenizer: Tokenizer) -> Any:
  """The trunk's config with the data's vocabulary. Raises InputError where it names another
  size.
  """
  if trunk.vocab_size not in (0, tokenizer.vocab_size):
    raise InputError(
      f"trunk.vocab_size={trunk.vocab_size}: the data's tokenizer has {tokenizer.vocab_size}; leave the field at 0"
    )
  special_tokens = len(tokenizer.special)
  return dataclasses.replace(trunk, vocab_size=tokenizer.vocab_size, special_tokens=special_tokens)


def describe(
  config: PretrainConfig, tokenizer: Tokenizer, text: TokenFile, total_steps: int, first: int
) -> str:
  """What is about to run, for the console."""
  per_step = config.data.batch_size * config.data.length
  kinds = {device.device_kind for device in jax.devices()}
  lines = [
    f"model   {config.trunk.parameter_count():,} parameters, {type(config.trunk).__name__}, {config.trunk.dtype}",
    f"text    {text.n_tokens:,} tokens, vocabulary {tokenizer.vocab_size:,}, entropy {text.unigram_entropy:.3f}",
    f"run     {total_steps:,} steps of {per_step:,} tokens: {total_steps * per_step / text.n_tokens:.2f} passes",
    f"devices {jax.device_count()} x {', '.join(sorted(kinds))}",
  ]
  return "\n".join(lines + [f"resumed at step {first:,}"] * bool(first))


def _first(batches: Iterable[Any], count: int) -> Iterable[Any]:
  return itertools.islice(batches, count) if count else batches
