"""A head that gives the task's head more to read."""

import dataclasses
from typing import Any

import jax

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option
from gpt_jax.models.heads.head import Head
from gpt_jax.models.trunk import TrunkConfig


@dataclasses.dataclass(frozen=True)
class WrappedHead(Head):
  """Base of heads that give another one, the task's, more than the last layer's states to read."""

  head: Any | None = option(None, "the head, which the task names")

  labeled = True
  reads_layers = True

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
  def pooling(self) -> str:  # type: ignore[override]
    return self.inner.pooling

  @property
  def num_classes(self) -> int:
    return self.inner.num_classes

  def check_trunk(self, trunk: TrunkConfig) -> None:
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
