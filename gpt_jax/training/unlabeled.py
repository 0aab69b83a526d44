"""Text without labels beside the labeled examples, and cross-view training's loss of it (Clark et
al. 2018, section 3): the views learn what the head that reads everything predicts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.loss import Denominators, perturbed
from gpt_jax.models.method import Method
from gpt_jax.models.model import Model
from gpt_jax.ops.dropout import Key


@register("unlabeled")
@dataclasses.dataclass(frozen=True)
class Unlabeled(Method):
  """The training examples that are not among the train_examples are read without their labels."""

  file: str = option("", "a table of further texts, in the task's columns, without labels")

  slot = "unlabeled"

  def check(self, config: Any, task: Any, start: Any) -> None:
    if self.file and task.writes_text:
      raise InputError(f"unlabeled.file={self.file}: needs a head for labels")
    # A task that writes text has a file of its own.
    has_rest = config.train_examples or self.file or task.writes_text
    if not has_rest or not any(method.learns_unlabeled for method in config.methods):
      raise InputError(
        "unlabeled: needs train_examples above 0, or unlabeled.file, and what learns without "
        "labels: adversarial=virtual_adversarial (configs/adversarial.py), views "
        "(configs/cross_view.py) or a teacher (configs/distill.py)"
      )


UNLABELED_WORK = 4 / 3  # of a step's work: the teacher's forward pass besides


class CrossViewLoss:
  """The sum over the views of the mean cross-entropy with the teacher's probabilities, and over the
  heads of several tasks; see Loss.

  The teacher is the primary head, without dropout and without gradient. Its own layers learn
  nothing here, the trunk below all of them does. Cross-entropy is the divergence KL(teacher ||
  view) plus the teacher's entropy, which is constant.
  """

  def __init__(self, model: Model):
    spec = model.config
    self._heads: list[Any] = [head for head in spec.heads if head.learns_unlabeled]
    self._teacher = model
    dropout = self._heads[0].unlabeled_dropout  # all have that of the run
    students = spec.with_trunk_dropout(dropout)
    heads = tuple(dataclasses.replace(head, dropout=dropout) for head in self._heads)
    self._students = dataclasses.replace(students, heads=heads).build(model.remat)

  def denominators(self, batch: Batch) -> Denominators:
    return {
      f"{head.scope}_{view}": weights.sum()
      for head in self._heads
      for view, weights in head.view_weights(batch).items()
    }

  def __call__(
    self, params: Any, batch: Batch, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    own = self.denominators(batch)  # those given are of the whole batch, of which this is a part
    denominators = own if denominators is None else denominators
    # Without a key there is no dropout: the teacher is the model as it will be used.
    outputs = perturbed(self._teacher, jax.lax.stop_gradient(params), batch, None)
    of_students = perturbed(self._students, params, batch, key).heads
    total = jnp.float32(0)
    for head, scores in zip(self._heads, of_students, strict=True):
      number = self._teacher.config.heads.index(head)
      teacher = jax.nn.softmax(outputs.heads[number]["primary"])
      for view, weights in head.view_weights(batch).items():
        entropies = -(teacher * jax.nn.log_softmax(scores[view])).sum(-1)
        denominator = jnp.maximum(denominators[f"{head.scope}_{view}"], 1)
        total = total + (entropies * weights).sum() / denominator
    # Scaled so that the parts of a batch add up to the total.
    first = f"{self._heads[0].scope}_full"
    return total, {"loss": Mean(total * denominators[first], own[first])}
