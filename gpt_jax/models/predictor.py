"""Predictions for labeled examples from a model with a labeled head."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from gpt_jax.config import Config, from_json, register
from gpt_jax.models.decoding_weights import variables
from gpt_jax.models.model import Model, ModelConfig, Outputs
from gpt_jax.parallel.placement import local_part, to_device
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import OrderedBatches


def make_predictor(
  model: Model, mesh: Mesh, predictions_of: Callable[[Any, Any], jax.Array] | None = None
) -> Callable[..., Any]:
  """predict(params, examples, batch_size, done, few_shapes=False) -> predictions on every process.

  Predictions are in the examples' order: probabilities, float32 [N, K], or for a head that predicts
  each token a list of [t, K], one position per id of the example's sequence. params may be those of
  keep_classifier_weights; done is called with the number of predicted examples after every batch.

  predictions_of: (params, batch) -> the batch's predictions, in place of the labeled head's.
  """
  head = model.config.head

  def predict(
    params,
    encoded: Encoded,
    batch_size: int,
    done: Callable[[int], None] = lambda _: None,
    few_shapes: bool = False,
  ) -> Any:
    devices = mesh.shape["data"]
    size = -(-batch_size // devices) * devices
    batches = OrderedBatches(encoded, size, row_multiple=devices, few_shapes=few_shapes)
    predictions: list[np.ndarray] = []
    with jax.set_mesh(mesh):
      for step, batch in enumerate(batches):
        placed = to_device(local_part(batch, mesh), mesh)
        of_batch = _predict_batch(model, predictions_of, params, placed)
        values = multihost_utils.process_allgather(of_batch, tiled=True)
        predictions.extend(batches.unpack(step, values) if head.per_token else [values])
        done(min((step + 1) * size, len(encoded)))
    return predictions if head.per_token else np.concatenate(predictions)[: len(encoded)]

  return predict


@functools.partial(jax.jit, static_argnums=(0, 1))  # equal models share a program
def _predict_batch(model: Model, predictions_of: Any, params: Any, batch: Any) -> jax.Array:
  # [microbatches, rows, …]: to_device made one of them.
  batch = jax.tree.map(lambda x: x[0], batch)
  if predictions_of is not None:
    return predictions_of(params, batch)
  head, heads = model.config.head, model.config.heads
  outputs = model.apply(variables(params), batch)
  return head.decode(cast(Outputs, outputs).heads[heads.index(head)])


@register("label_predictor")
@dataclasses.dataclass(frozen=True)
class LabelPredictor(Config):
  """How the labels of a task are predicted: by the model's head. A task names its predictor, as it
  names its head: see LabeledTask.predictor.
  """

  def make(self, task: Any, spec: ModelConfig, mesh: Mesh, tokenizer: Any) -> Callable[..., Any]:
    """predict(params, examples, batch_size, done) -> predictions of a task."""
    return make_predictor(spec.build(), mesh)

  def of_loaded(self, loaded: Any, task: Any) -> Callable[..., Any]:
    """predict(examples, batch_size, done) -> predictions of a LoadedModel."""
    return loaded.predictor()


def make_task_predictor(
  task: Any, spec: ModelConfig, mesh: Mesh, tokenizer: Any
) -> Callable[..., Any]:
  """predict(params, examples, batch_size, done) -> predictions of a task of any kind."""
  return from_json({"type": task.predictor}).make(task, spec, mesh, tokenizer)


def task_predictor(loaded: Any, task: Any) -> Callable[..., Any]:
  """predict(examples, batch_size, done) -> predictions of a fine-tuned model for its kind of task.

  Keep it: every predictor has its own copy of the parameters.
  """
  return from_json({"type": task.predictor}).of_loaded(loaded, task)
