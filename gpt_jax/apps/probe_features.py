"""The features of a linear probe: what a classification head reads of each example."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.models.heads.classify import represent
from gpt_jax.models.model import ModelConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import local_part, replicate, to_device
from gpt_jax.programs.start import Start
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import OrderedBatches

# The trunk has not been trained to gather a text in its extract token.
POOLING = "mean"
_BATCH = 32


def probe_features(
  start: Start, encoded: Encoded, done: Callable[[int], None] = lambda _: None
) -> np.ndarray:
  """The input of W_y for each example, without dropout: float32 [N, D].

  done: called with the number of examples that are done.
  """
  mesh = make_mesh(MeshConfig())
  params = replicate({"trunk": start.params["trunk"]}, mesh)
  model = ModelConfig(start.trunk, (), start.attention).build()
  size = -(-_BATCH // mesh.shape["data"]) * mesh.shape["data"]
  batches = OrderedBatches(encoded, size, row_multiple=mesh.shape["data"])

  @jax.jit
  def of_batch(params, batch: Batch) -> jax.Array:
    batch = jax.tree.map(lambda x: x[0], batch)
    states: Any = model.apply({"params": params}, batch.rows, method="states")
    return represent(states.hidden, batch, POOLING).sum(1)

  features = []
  with jax.set_mesh(mesh):
    for batch in batches:
      features.append(np.asarray(of_batch(params, to_device(local_part(batch, mesh), mesh))))
      done(min(len(features) * size, len(encoded)))
  # Without the fillers of the last batch.
  return np.concatenate(features)[: len(encoded)]
