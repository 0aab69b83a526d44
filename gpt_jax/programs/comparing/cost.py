"""What a step of pre-training takes: parameters, predicted positions, arithmetic, seconds."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.models.model import ModelConfig, make_heads, parameter_shapes
from gpt_jax.models.trunk import with_vocabulary
from gpt_jax.objectives.objective import Bound, make_windows
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs import pretrain
from gpt_jax.programs.benchmarks import timing
from gpt_jax.programs.pretrain import PretrainConfig

_COUNTED = 8  # batches whose predictions are counted


class Cost(NamedTuple):
  """What pre-training with an objective computes.

  Attributes:
    trunk: parameters of the trunk, the same for all objectives; with the table's padding.
    head: all others, the pooler among them. They are not part of the comparison.
    predicted: tokens predicted in a step, a mean over some batches.
    flops: floating-point operations of a step, by TransformerConfig.flops_per_token, but with the
      product with the table only where a token is predicted. Heads' own layers are not counted.
  """

  trunk: int
  head: int
  predicted: float
  flops: float


def parameters(spec: ModelConfig) -> tuple[int, int]:
  """Parameters of the trunk without its pooler, and all others."""
  sizes = {name: int(np.prod(shape)) for name, shape in parameter_shapes(spec).items()}
  trunk = sum(
    size
    for name, size in sizes.items()
    if name.startswith("trunk/") and not name.startswith("trunk/pooler/")
  )
  return trunk, sum(sizes.values()) - trunk


def cost(config: PretrainConfig, data: str) -> Cost:
  """The Cost of a run on a prepared folder. Raises InputError if the text does not suit."""
  config, spec, _, batch_at = _assemble(config, data)
  batches = [batch_at(n) for n in range(_COUNTED)]
  rows, length = batches[0].rows.inputs.shape
  predictions = batches[0].predictions
  of_table = 6 * config.trunk.vocab_size * config.trunk.width
  body = config.trunk.flops_per_token(length) - of_table
  slots = predictions.targets.size if predictions else 0
  predicted = [float(b.predictions.weights.sum()) if b.predictions else 0.0 for b in batches]
  flops = rows * length * body + slots * of_table
  return Cost(*parameters(spec), statistics.mean(predicted), float(flops))


def paces(configs: Mapping[str, PretrainConfig], data: str) -> dict[str, float]:
  """Seconds of a training step of each run, its batch included: medians of steps in turns.

  A run's own log says what its steps took, but a shared machine is not equally busy in all runs.
  """
  times = timing.in_turns({name: _stepper(config, data) for name, config in configs.items()})
  return {name: statistics.median(seconds) for name, seconds in times.items()}


def _stepper(config: PretrainConfig, data: str) -> Callable[[], Any]:
  config, spec, bound, batch_at = _assemble(config, data)
  trainer = pretrain.make_trainer(config, spec, bound, make_mesh(config.mesh), config.train.steps)
  state, number = trainer.init(config.train.seed), 0

  def step():
    nonlocal state, number
    state, metrics = trainer.step(state, trainer.to_device(batch_at(number)), config.train.seed)
    number += 1
    return metrics["loss"]

  return step


def _assemble(
  config: PretrainConfig, data: str
) -> tuple[PretrainConfig, ModelConfig, Bound, Callable[[int], Any]]:
  """The config with the text's vocabulary, its model, the bound objective, and its batches."""
  text, _, tokenizer = pretrain.load_text(config, data)
  config = dataclasses.replace(config, trunk=with_vocabulary(config.trunk, tokenizer))
  objective = config.objective
  spec = ModelConfig(config.trunk, make_heads(objective.heads), objective.attention)
  windows = make_windows(objective, text, config.data, config.train.seed)
  bound = objective.bind(tokenizer, config.data.length)
  batch_at = pretrain.make_batch_at(config, bound, windows, make_mesh(config.mesh))
  return config, spec, bound, batch_at
