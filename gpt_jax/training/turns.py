"""Streams of batches in turns, each with its loss: labeled text of some tasks, and unlabeled."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.batch import Batch, Mean
from gpt_jax.data.draws import Draw
from gpt_jax.models.loss import Denominators, Loss
from gpt_jax.ops.dropout import Key
from gpt_jax.training.recipe import Batches


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

  Args:
    order: the stream of each step, int [steps]; each stream gives its batches in their own order.
    largest: the stream whose step needs most memory: the plan of a run is that of its example.
    first: the stream whose batch initializes the model.
  """

  def __init__(
    self, streams: Sequence[Batches], order: np.ndarray, largest: int = 0, first: int = 0
  ):
    self.shape = streams[largest].shape
    self._streams, self._order, self._largest, self._first = streams, order, largest, first
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

  def init_batch(self) -> Batch:
    return self._streams[self._first].init_batch()


def draw_order(sizes: Sequence[int], steps: int, seed: int, others: bool) -> np.ndarray:
  """The stream of each step where labeled batches of several tasks are drawn, int [steps].

  A task's share is in proportion to the square root of its size, as in the code of Clark et al.
  (2018). It is a function of the seed and the step: more steps begin with the same draws.

  Args:
    others: whether each draw is followed by a step of a further stream, without labels.
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

  Args:
    losses: name -> loss, in the streams' order. Beside `loss`, the mean over all turns
      weighted by their denominators, NAME_loss is that of a stream: read that one where the streams
      count different things, such as examples and tokens.
  """

  def __init__(self, losses: Mapping[str, Loss]):
    self._losses = list(losses.items())

  def denominators(self, batch: Turn) -> Denominators:
    _, loss = self._losses[batch.stream]
    return loss.denominators(batch.batch)

  def __call__(
    self, params: Any, batch: Turn, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    name, loss = self._losses[batch.stream]
    total, metrics = loss(params, batch.batch, key, denominators)
    return total, {**metrics, f"{name}_loss": metrics["loss"]}
