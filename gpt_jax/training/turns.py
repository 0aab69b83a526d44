"""Two or more streams of batches in turns, each with its loss: labeled and unlabeled text, say."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from gpt_jax.batch import Batch, Mean
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
  """Batches of several streams in turns; see recipe.Batches.

  Step n takes batch n // S of stream n % S, so that a pass over a stream takes S times its steps:
  the `steps_per_epoch` of a recipe is to be multiplied by S.

  Args:
    streams: their batches.
    largest: the stream whose step needs most memory: the plan of a run is that of its example.
  """

  def __init__(self, streams: Sequence[Batches], largest: int = 0):
    self.shape = streams[largest].shape
    self._streams, self._largest = streams, largest

  def at(self, step: int) -> Turn:
    number, stream = divmod(step, len(self._streams))
    return Turn(self._streams[stream].at(number), stream)

  def example(self) -> Turn:
    return Turn(self._streams[self._largest].example(), self._largest)

  def init_batch(self) -> Batch:
    return self._streams[0].init_batch()


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
