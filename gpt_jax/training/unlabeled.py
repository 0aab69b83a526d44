"""Text without labels beside the labeled examples: cross-view training's loss of it (Clark et al.
2018, section 3), and streams of batches in turns, each with its loss: labeled text of some tasks,
and unlabeled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.data.draws import Draw
from gpt_jax.errors import InputError
from gpt_jax.models.loss import Denominators, Loss, perturbed
from gpt_jax.models.method import Method
from gpt_jax.models.model import Model
from gpt_jax.ops.dropout import Key

if TYPE_CHECKING:  # configs import this file
  from gpt_jax.training.recipe import Batches


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turn:
  """A batch and the stream it is of. A step is compiled once for each stream."""

  batch: Any
  stream: int = dataclasses.field(metadata={"static": True})


class Turns:
  """Batches of several streams; see recipe.Batches.

  A pass over a stream takes more steps than it has batches: the `steps_per_epoch` of a recipe is to
  be that of all of them.
  """

  def __init__(self, streams: "Sequence[Batches]", order: np.ndarray, largest: int = 0):
    """`order`: int [steps], the stream of each step; `largest`: the one that needs most memory."""
    self.shape = streams[largest].shape
    self._streams, self._order, self._largest = streams, order, largest
    # Of each step's batch in its stream: a run that resumes has no memory of the steps before.
    self._number = np.zeros(len(order), np.int64)
    for stream in range(len(streams)):
      steps = np.flatnonzero(order == stream)
      self._number[steps] = np.arange(len(steps))

  def at(self, step: int) -> Turn:
    stream = int(self._order[step])
    return Turn(self._streams[stream].at(int(self._number[step])), stream)

  def example(self) -> Turn:
    return Turn(self._streams[self._largest].example(), self._largest)


def draw_order(sizes: Sequence[int], steps: int, seed: int, others: bool) -> np.ndarray:
  """The stream of each step where labeled batches of several tasks are drawn, int [steps]; with
  `others` each draw is followed by a step of a further stream, without labels.

  A task's share is in proportion to the square root of its size, as in the code of Clark et al.
  (2018). It is a function of the seed and the step: more steps begin with the same draws.
  """
  ends = np.cumsum(np.sqrt(sizes))
  uniform = Draw(seed, 0, np.arange(steps))("tasks", ())
  # The first task whose end of its share is above the number.
  drawn = np.searchsorted(ends, uniform * ends[-1], side="right")
  if not others:
    return drawn
  return np.stack([drawn, np.full(steps, len(sizes))], axis=1).reshape(-1)[:steps]


class LossInTurns:
  """The loss of each stream's batches; see models.loss.Loss.

  Beside `loss`, the mean over all turns weighted by their denominators, NAME_loss is that of a
  stream: read that one where the streams count different things, such as examples and tokens.
  """

  def __init__(self, losses: Mapping[str, Loss]):
    self._losses = list(losses.items())  # (name, loss), in the streams' order

  def denominators(self, batch: Turn) -> Denominators:
    _, loss = self._losses[batch.stream]
    return loss.denominators(batch.batch)

  def __call__(
    self, params: Any, batch: Turn, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    name, loss = self._losses[batch.stream]
    total, metrics = loss(params, batch.batch, key, denominators)
    return total, {**metrics, f"{name}_loss": metrics["loss"]}
