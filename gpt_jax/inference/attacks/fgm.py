"""The embeddings of each sequence move by a given length along the gradient of the loss (FGM,
arXiv 1605.07725).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gpt_jax.models.loss import ModelLoss, perturbed
from gpt_jax.models.model import Model
from gpt_jax.models.perturbation import no_perturbation, of_length
from gpt_jax.models.predictor import make_predictor
from gpt_jax.training.adversarial import ascent


def make_attacked_predictor(model: Model, mesh: Mesh, radii: Sequence[float]) -> Callable[..., Any]:
  """predict(params, labeled examples, batch_size) -> predictions at each radius.

  As make_predictor's, but with the radii, L2 norms of what is added to a sequence's embeddings, as
  the last axis but one: [N, R, K], or for a head that predicts each token a list of [t, R, K].
  """
  head = model.config.head
  index = model.config.heads.index(head)  # of its outputs among those of all heads
  loss = ModelLoss(model, (head,))  # without the auxiliary language model

  def predictions(params, batch):
    # At 0 the gradient is that of the clean loss: FGM takes one step from there.
    zero = no_perturbation(model, params, batch)
    gradient = ascent(loss, params, batch, None, None, zero)

    def at(radius):
      r = of_length(gradient, radius, batch.rows)
      return head.decode(perturbed(model, params, batch, None, r).heads[index])

    # lax.map, one radius after the other: the memory of one forward pass.
    return jnp.moveaxis(jax.lax.map(at, jnp.asarray(radii, jnp.float32)), 0, -2)

  return make_predictor(model, mesh, predictions)
