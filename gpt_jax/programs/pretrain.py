"""Pre-training: from prepared text to a checkpoint (section 3.1)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import Windows
from gpt_jax.inference.samples import FIRST_SAMPLE, MIN_STEPS, make_writer, write_samples
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.trunk import with_vocabulary
from gpt_jax.objectives.objective import Bound
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.pretrain_config import PretrainConfig, check_type, model_spec
from gpt_jax.programs.pretrain_text import (
  Text,
  TextBatches,
  data_identity,
  load_text,
  text_evaluation,
  warn_when_stuck,
)
from gpt_jax.training import hooks
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.profile import parse_span
from gpt_jax.training.recipe import Baselines, Recipe, RunContext, as_initialized
from gpt_jax.training.run import train
from gpt_jax.training.start import Start, load_start
from gpt_jax.training.trackers import parse_trackers

_ANY_LENGTH = 10_000  # updates of a schedule that no run follows


def run(
  config: PretrainConfig,
  data: str,
  workdir: str,
  *,
  pretrained: str = "",
  profile: str = "",
  tracker: str = "auto",
  on_end: Sequence[Callable[[str], None]] = (),
) -> dict[str, float]:
  """Trains to the end, resuming from the newest checkpoint; returns the last evaluation.

  Args:
    config: see configs/.
    data: folder that prepare wrote.
    workdir: folder of the run.
    pretrained: checkpoint whose trunk and vocabulary the run starts from; "": random weights.
    profile: START:STOP, the steps of which a trace is written; "": none.
    tracker: see parse_trackers.
    on_end: called with the workdir when the run has ended, also by an error or a signal.

  Raises:
    InputError: user errors, before training; later only if ten updates in a row are not finite.
  """
  check_type(config)
  trackers = parse_trackers(tracker, workdir)
  text = load_text(config, data)
  start = load_objective_start(config, pretrained, text.tokenizer) if pretrained else None
  recipe = pretrain_recipe(config, text, start)
  return train(
    recipe,
    workdir,
    on_end=[functools.partial(call, workdir) for call in on_end],
    trackers=trackers,
    profile=parse_span(profile, recipe.total_steps),
  )


def pretrain_recipe(config: PretrainConfig, text: Text, start: Start | None = None) -> Recipe:
  """The recipe of a pre-training run.

  Args:
    config: of the run; its trunk gets the vocabulary, and with a start its sizes.
    text: of its prepared folder.
    start: the checkpoint that it goes on from; None: random weights.
  """
  if start:
    config = dataclasses.replace(config, trunk=start.trunk)
    text = text._replace(tokenizer=start.tokenizer)
  recipe = text_recipe(config, text)
  # The config with the vocabulary in it, which text_recipe has put there.
  config, spec, steps = recipe.config, recipe.spec, recipe.total_steps
  new_heads = start.new_heads(parameter_shapes(spec)) if start else []
  entropies = None
  if spec.predicts_tokens:
    entropies = text.train.unigram_entropy, text.held_out.unigram_entropy

  def sampling(context: RunContext) -> list[hooks.Hook]:
    if not writes_samples(spec, steps):
      return []
    write = make_writer(spec.build(), text.tokenizer, text.held_out, recipe.mesh)
    of_run = context.workdir, context.first, context.reporter
    return [write_samples(*of_run, write, samples_due(config))]

  return dataclasses.replace(
    recipe,
    tokenizer=text.tokenizer,
    identity=data_identity(text.train, text.held_out, start),
    meta=make_meta(config, spec, text.tokenizer, start),
    start=start.apply if start else as_initialized,
    evaluation=text_evaluation(config, text, recipe.mesh),
    baselines=Baselines(entropies, spec.token_metric),
    can_grow=True,
    summary=describe(config, text, steps, start, new_heads),
    first_hooks=lambda: warn_when_stuck(config, spec, text.train, steps, new_heads),
    further_hooks=sampling,
    other_programs=2 if writes_samples(spec, steps) else 1,
  )


def text_recipe(config: PretrainConfig, text: Text) -> Recipe:
  """The recipe of pre-training on a text, without evaluations."""
  trunk = with_vocabulary(config.trunk, text.tokenizer)
  config = dataclasses.replace(config, trunk=trunk)
  objective = config.objective.bind(text.tokenizer, config.data.length)
  return step_recipe(config, objective, make_mesh(config.mesh), text.train)


def step_recipe(
  config: PretrainConfig, objective: Bound, mesh: Mesh, text: TokenFile | None = None
) -> Recipe:
  """The recipe of a pre-training step, without evaluations, for runs that save nothing.

  Args:
    config: its trunk has its vocabulary.
    objective: the config's, bound to tokenizer and length.
    mesh: the devices.
    text: the training text; None: nothing is trained, and the length of the run is arbitrary.
  """
  if text is None:
    train = dataclasses.replace(config.train, steps=_ANY_LENGTH, epochs=0)
    config = dataclasses.replace(config, train=train)

  @functools.cache
  def windows(seed: int) -> Windows | None:
    return config.objective.windows(text, config.data, seed) if text else None

  # Only for its number of batches, which is the same with every seed.
  first = windows(config.train.seed)
  return Recipe(
    config,
    mesh,
    model_spec(config),
    lambda train: TextBatches(config, objective, mesh, windows(train.seed), train.parts),
    config.data.batch_size,
    first.steps_per_epoch if first else 1,
    lambda steps: make_optimizer(config.optim, steps),
    batch_field="data.batch_size",
    smaller="a smaller config.data.batch_size or config.data.length",
  )


def load_objective_start(config: PretrainConfig, pretrained: str, tokenizer: Tokenizer) -> Start:
  """The checkpoint to start from, with what the objective needs."""
  objective = config.objective
  return load_start(
    pretrained,
    config.trunk,
    objective.attention,
    tokenizer,
    objective.special,
    objective.format,
    objective.keeps_format,
  )


def make_meta(
  config: PretrainConfig,
  spec: ModelConfig,
  tokenizer: Tokenizer,
  start: Start | None = None,
) -> dict[str, Any]:
  """Metadata that checkpoints record with the parameters."""
  trained = (*(start.trained_special if start else ()), *config.objective.special)
  return {
    "model": to_json(spec),
    "tokenizer_hash": tokenizer.hash,
    "trained_special": list(dict.fromkeys(trained)),
    "sequence_format": to_json(start.format) if start else config.objective.format,
  }


def writes_samples(spec: ModelConfig, total_steps: int) -> bool:
  return spec.gives_text_probability and total_steps >= MIN_STEPS


def samples_due(config: PretrainConfig) -> Callable[[int], bool]:
  """After evaluations, and after FIRST_SAMPLE updates times 1, 2, 4, …"""
  evaluating = hooks.every(config.train.evaluate_every)
  return hooks.any_of(evaluating, hooks.powers_of_two_times(FIRST_SAMPLE))


def describe(
  config: PretrainConfig,
  text: Text,
  total_steps: int,
  start: Start | None,
  new_heads: Sequence[str] = (),
) -> list[str]:
  """The lines printed before a run: model, text, length, devices, what is new after a start."""
  trunk, tokens = config.trunk, config.data.batch_size * config.data.length
  kinds = sorted({device.device_kind for device in jax.devices()})
  # In positions of rows: of short documents some are padding.
  epochs = total_steps * tokens / text.train.n_tokens
  lines = [
    f"model   {trunk.parameter_count():,} parameters, {type(trunk).__name__}, {trunk.dtype}",
    f"text    {text.train.n_tokens:,} tokens, vocabulary {text.tokenizer.vocab_size:,}, "
    f"unigram entropy {text.train.unigram_entropy:.2f} nats",
    f"run     {total_steps:,} steps of {tokens:,} tokens: {epochs:.2f} epochs",
    f"devices {jax.device_count()} x {', '.join(kinds)}",
  ]
  if warning := config.optim.about_long_warmup(total_steps):
    lines.append(warning)
  if start:
    heads = "".join(f"the {name} head and " for name in new_heads)
    lines.append(
      f"start   {start.checkpoint}, step {start.step:,}: sizes, vocabulary and weights; {heads}the "
      f"optimizer {'are' if heads else 'is'} new"
    )
  return lines
