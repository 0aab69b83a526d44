"""Pre-training: from prepared text to a checkpoint (section 3.1)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.config import to_json
from gpt_jax.data.windows import Windows
from gpt_jax.objectives.objective import Bound
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.pretrain_config import PretrainConfig, check_type, model_spec
from gpt_jax.programs.pretrain_text import (
  Text,
  TextBatches,
  data_identity,
  load_text,
  make_measure,
  warn_when_stuck,
)
from gpt_jax.training import hooks
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.recipe import Evaluation, Recipe
from gpt_jax.training.run import Run
from gpt_jax.training.run_log import Baselines

if TYPE_CHECKING:
  from gpt_jax.training.profile import Span
  from gpt_jax.training.trackers import Trackers

MakeRecipe = Callable[[PretrainConfig, Text], Recipe]
_ANY_LENGTH = 10_000  # updates of a schedule that no run follows


def run(
  config: PretrainConfig,
  data: str,
  workdir: str,
  *,
  make_recipe: MakeRecipe | None = None,
  trackers: "Trackers | None" = None,
  profile: "Span | None" = None,
  on_end: Sequence[Callable[[str], None]] = (),
) -> dict[str, float]:
  """Trains to the end, resuming from the newest checkpoint; returns the last evaluation.

  Args:
    config: see configs/.
    data: folder written by launch/prepare.py; on the command line also several, with commas: a
      mixture.
    workdir: folder for config, metrics and checkpoints; the same command resumes the run.
    make_recipe: pretrain_start.from_checkpoint(…) to start from a checkpoint, and
      pretrain_samples.with_samples(…) for samples along the run; None: pretrain_recipe.
    trackers: experiment trackers that get the metrics, see training.trackers.parse_trackers.
    profile: the steps of which a trace is written, see training.profile.parse_span.
    on_end: called with the workdir when the run has ended, also by an error or a signal.
  """
  check_type(config)
  config = resume_choices(config, [workdir])
  recipe = (make_recipe or pretrain_recipe)(config, load_text(config, data))
  ends = [functools.partial(call, workdir) for call in on_end]
  training, seed = Run(recipe, [workdir]), recipe.config.train.seed
  return training.train(seed, workdir, on_end=ends, trackers=trackers, profile=profile)


def pretrain_recipe(config: PretrainConfig, text: Text) -> Recipe:
  """The recipe of a pre-training run from random weights; the trunk gets the vocabulary."""
  recipe = text_recipe(config, text)
  # The config with the vocabulary in it, which text_recipe has put there.
  config, spec, steps = recipe.config, recipe.spec, recipe.total_steps
  measure, entropies = make_measure(config, text, recipe.mesh), None
  rows = text.windows(config, text.train, config.train.seed).spans_per_epoch
  held_out_rows = text.windows(config, text.held_out).spans_per_epoch
  if spec.predicts_tokens:
    share = config.objective.word_share(config.data.length)
    entropies = share * text.train.unigram_entropy, share * text.held_out.unigram_entropy
  return dataclasses.replace(
    recipe,
    tokenizer=text.tokenizer,
    identity=data_identity(text.train, text.held_out),
    meta={
      "model": to_json(spec),
      "tokenizer_hash": text.tokenizer.hash,
      "trained_special": list(dict.fromkeys(config.objective.special)),
      "sequence_format": config.objective.format,
    },
    evaluation=Evaluation(measure, "valid_loss", "min", hooks.every(config.train.evaluate_every)),
    baselines=Baselines(entropies, spec.token_metric, rows, held_out_rows),
    can_grow=True,
    summary=describe(config, text, steps),
    first_hooks=lambda: warn_when_stuck(config, spec, text.train, steps),
  )


def text_recipe(config: PretrainConfig, text: Text) -> Recipe:
  """The recipe of pre-training on a text, without evaluations."""
  trunk = config.trunk.with_vocabulary(text.tokenizer)
  config = dataclasses.replace(config, trunk=trunk)
  objective = config.objective.bind(text.tokenizer, config.data.length)
  return step_recipe(config, objective, make_mesh(config.mesh), text)


def step_recipe(
  config: PretrainConfig, objective: Bound, mesh: Mesh, text: Text | None = None
) -> Recipe:
  """The recipe of a pre-training step, without evaluations, for runs that save nothing.

  Args:
    config: its trunk has its vocabulary.
    objective: the config's, bound to tokenizer and length.
    text: to train on; None: nothing is trained, and the length of the run is arbitrary.
  """
  config = resume_choices(config)  # of plans and benchmarks; a run has chosen before
  if text is None:
    train = dataclasses.replace(config.train, steps=_ANY_LENGTH, epochs=0)
    config = dataclasses.replace(config, train=train)

  @functools.cache
  def windows(seed: int) -> Windows | None:
    return text.windows(config, text.train, seed) if text else None

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


def describe(config: PretrainConfig, text: Text, total_steps: int) -> list[str]:
  """The lines printed before a run: model, text, length, devices."""
  trunk, tokens = config.trunk, config.data.batch_size * config.data.length
  kinds = sorted({device.device_kind for device in jax.devices()})
  # In rows: of short documents some positions are padding.
  spans = text.windows(config, text.train, config.train.seed).spans_per_epoch
  epochs = total_steps * config.data.batch_size / spans
  lines = [
    f"model   {trunk.parameter_count():,} parameters, {type(trunk).__name__}, {trunk.dtype}",
    f"text    {text.train.n_tokens:,} tokens, vocabulary {text.tokenizer.vocab_size:,}, "
    f"unigram entropy {text.train.unigram_entropy:.2f} nats",
    f"run     {total_steps:,} steps of {tokens:,} tokens: {epochs:.2f} epochs",
    f"devices {jax.device_count()} x {', '.join(kinds)}",
  ]
  return lines + config.optim.warnings(total_steps)
