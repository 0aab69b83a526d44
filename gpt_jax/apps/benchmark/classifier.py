"""The size and speed of a classifier with its weights in 32, 16 and 8 bits."""

import dataclasses
import functools
import statistics
from typing import cast

import jax

from gpt_jax.apps.benchmark.memory import labeled_batch
from gpt_jax.models.decoding_weights import KINDS, keep_classifier_weights, variables
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig, Outputs, smallest_batch
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured

_SIZES = (1, 16)  # texts in a call


def classifier(config: PretrainConfig) -> Measured:
  """Texts of the config's length, labeled as by `predict --weights`, all types in turns.

  The parameters are random; tokenizing is not measured.
  """
  spec = ModelConfig(config.trunk, (ClassifyHead(),))
  model = spec.build()
  params = jax.jit(model.init)(jax.random.key(0), smallest_batch(spec))["params"]
  kept = {kind: keep_classifier_weights(model, params, kind) for kind in KINDS}

  @jax.jit
  def scores(weights, batch):
    return cast(Outputs, model.apply(variables(weights), batch)).heads[0]

  for kind, weights in kept.items():
    yield f"{kind} weights", sum(x.nbytes for x in jax.tree.leaves(weights)) / 1e6, "MB"
  for size in _SIZES:
    data = dataclasses.replace(config.data, batch_size=size)
    train = dataclasses.replace(config.train, microbatches=1)
    batch = labeled_batch(dataclasses.replace(config, data=data, train=train))
    # A program for each type, with the batch on the device.
    calls = {kind: functools.partial(scores, kept[kind], jax.device_put(batch)) for kind in KINDS}
    times = timing.in_turns(calls)
    for kind in KINDS:
      rate = size / statistics.median(times[kind])
      yield f"{kind} weights, {size} a call", rate, "examples/s"
      if kind != "float32":
        faster = timing.ratio(times["float32"], times[kind])
        yield f"{kind} weights, {size} a call", faster, "times float32"
