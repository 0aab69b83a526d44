"""A head that gives the task's head more to read."""

import dataclasses
from typing import Any

import jax

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.method import Method
from gpt_jax.models.trunk import TrunkConfig


@dataclasses.dataclass(frozen=True)
class WrappedHead(Head):
  """Base of heads that give another one, the task's, more than the last layer's states to read."""

  head: Any | None = option(None, "the head, which the task names")

  labeled = True
  reads = frozenset({"layers"})

  @property
  def inner(self) -> Any:
    """The head that it wraps."""
    return given(self.head)

  @property
  def scope(self) -> str:  # type: ignore[override]
    return self.inner.scope

  @property
  def metric(self) -> str:  # type: ignore[override]
    return self.inner.metric

  @property
  def weight(self) -> float:  # type: ignore[override]
    return self.inner.weight

  @property
  def per_token(self) -> bool:  # type: ignore[override]
    return self.inner.per_token

  @property
  def pooling(self) -> str:
    return self.inner.pooling

  @property
  def num_classes(self) -> int:
    return self.inner.num_classes

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    self.inner.check_trunk(trunk)

  def denominator(self, batch: Batch) -> jax.Array:
    return self.inner.denominator(batch)

  def accuracy(self, outputs: Any, batch: Batch) -> Mean | None:
    return self.inner.accuracy(self.of_inner(outputs), batch)

  def decode(self, outputs: Any) -> jax.Array:
    return self.inner.decode(self.of_inner(outputs))

  def of_inner(self, outputs: Any) -> Any:
    """The outputs of the wrapped head among all."""
    raise NotImplementedError


class Mix(Method):
  """Base of the heads that fine-tuning puts around a task's head for labels."""

  slot = "mix"

  def change_loaded(self, loaded: Any) -> Any:
    return loaded.encoder_alone()

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    return {**to_json(self), "head": head}

  def check(self, config: Any, task: Any, start: Any) -> None:
    if task.writes_text:
      raise InputError(
        "mix: is read by a head for labels, and a text-to-text model has none; leave it out"
      )
