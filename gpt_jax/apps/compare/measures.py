"""Cost of a pre-training step, and a frozen linear probe of a trunk's states."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from gpt_jax.apps.probe_features import probe_features
from gpt_jax.batch import Rows
from gpt_jax.inference.linear_classifier import fit_chosen
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import Start, load_start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.formats import RoBERTaFormat
from gpt_jax.training.recipe import Recipe

_COUNTED = 8  # batches whose predictions are counted


class Cost(NamedTuple):
  # Of the trunk without its pooler, the same for all Transformers; includes the padding rows of the
  # embedding table.
  trunk: int
  head: int  # all other parameters, including the pooler; not part of the comparison
  predicted: float  # tokens per step, the mean over a few batches
  # Per step, by TrunkConfig.flops_per_token, except that a Transformer's product with the table
  # counts only where a token is predicted. Layers of heads do not count.
  flops: float


def parameters(spec: ModelConfig) -> tuple[int, int]:
  """Parameters of the trunk without its pooler, and all others."""
  trunk = others = 0
  for name, shape in parameter_shapes(spec).items():
    if name.startswith("trunk/") and not name.startswith("trunk/pooler/"):
      trunk += math.prod(shape)
    else:
      others += math.prod(shape)
  return trunk, others


def cost(recipe: Recipe) -> Cost:
  trunk, train = recipe.spec.trunk, recipe.config.train
  batch_at = recipe.batches(train).at
  batches = [batch_at(n % train.steps) for n in range(_COUNTED)]
  rows, length = batches[0].rows.inputs.shape
  predictions = batches[0].predictions
  predicted = [float(b.predictions.weights.sum()) if b.predictions else 0.0 for b in batches]
  if batches[0].source is not None:  # of the source as many, see flops_per_token
    flops = 2 * rows * length * trunk.flops_per_token(length)
  elif not trunk.heads:
    flops = rows * length * trunk.flops_per_token(length)
  else:
    of_table = 6 * trunk.vocab_size * trunk.width
    slots = predictions.targets.size if predictions else 0
    flops = rows * length * (trunk.flops_per_token(length) - of_table) + slots * of_table
  return Cost(*parameters(recipe.spec), statistics.mean(predicted), float(flops))


def probe_start(config: FinetuneConfig, checkpoint: str, tokenizer: str) -> Start:
  """The trunk that is probed; for "none", one with fresh weights. A text-to-text model reads plain
  texts: in RoBERTa's format, and all positions attend to all.
  """
  start = load_start(config, checkpoint, tokenizer)
  if start.format.writes_answers:
    start = dataclasses.replace(start, format=RoBERTaFormat())
  if start.params is None:
    ids = np.zeros((1, 2), np.int32)
    model = ModelConfig(start.trunk, (), start.attention).build()
    init = jax.jit(functools.partial(model.init, method="states"))
    variables = init(jax.random.key(0), Rows(ids, ids))
    start = dataclasses.replace(start, params=jax.device_get(variables["params"]))
  return start


def probe_score(
  start: Start, task: LabeledTask, data_dir: str, examples: Mapping[str, int]
) -> float:
  """The task's primary metric on its dev set, by the mean state of each text; of at most so many
  `examples` of "train" and "dev", 0: all. Scores (STS-B) are classes, the nearest numbers, whose
  expectation is the prediction.
  """
  features, labels = {}, {}
  for split in ("train", "dev"):
    chosen = task.subset(task.examples(data_dir, split), examples[split])
    encoded = task.encode(chosen, *start.reads)
    features[split], labels[split] = probe_features(start, encoded), encoded.labels
  classes = labels["train"].argmax(axis=1)
  linear = fit_chosen(features["train"], classes, task.num_classes)
  return task.score(linear(features["dev"]), labels["dev"])[task.primary_metric]
