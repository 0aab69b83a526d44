"""Cross-view training's loss of text without labels (Clark et al. 2018, section 3): the views learn
what the head that reads everything predicts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean
from gpt_jax.models.heads.views import VIEWS, ViewsHead
from gpt_jax.models.loss import Denominators, perturbed
from gpt_jax.models.model import Model
from gpt_jax.ops.dropout import Key

UNLABELED_WORK = 4 / 3  # of a step's work: the teacher's forward pass besides


class CrossViewLoss:
  """The sum over the views of the mean cross-entropy with the teacher's probabilities; see Loss.

  The teacher is the primary head, without dropout and without gradient. Its own layers learn
  nothing here, the trunk below all of them does. Cross-entropy is the divergence KL(teacher ||
  view) plus the teacher's entropy, which is constant.
  """

  def __init__(self, model: Model):
    spec, head = model.config, model.config.head
    assert isinstance(head, ViewsHead)
    self._head, self._teacher = head, model
    students = spec.with_trunk_dropout(head.unlabeled_dropout)
    heads = (dataclasses.replace(head, dropout=head.unlabeled_dropout),)
    self._students = dataclasses.replace(students, heads=heads).build(model.remat)

  def denominators(self, batch: Batch) -> Denominators:
    weights = self._head.view_weights(batch)
    return {view: weights[view].sum() for view in VIEWS}

  def __call__(
    self, params: Any, batch: Batch, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    own = self.denominators(batch)  # those given are of the whole batch, of which this is a part
    denominators = own if denominators is None else denominators
    number = self._teacher.config.heads.index(self._head)
    # Without a key there is no dropout: the teacher is the model as it will be used.
    outputs = perturbed(self._teacher, jax.lax.stop_gradient(params), batch, None)
    teacher = jax.nn.softmax(outputs.heads[number]["primary"])
    scores = perturbed(self._students, params, batch, key).heads[0]
    weights, total = self._head.view_weights(batch), jnp.float32(0)
    for view in VIEWS:
      entropies = -(teacher * jax.nn.log_softmax(scores[view])).sum(-1)
      total = total + (entropies * weights[view]).sum() / jnp.maximum(denominators[view], 1)
    # Scaled so that the parts of a batch add up to the total.
    return total, {"loss": Mean(total * denominators["full"], own["full"])}
