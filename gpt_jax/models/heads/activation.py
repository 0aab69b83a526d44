"""Activation regularization of a recurrent language model (Merity et al. 2018, section 4.5)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.models.heads.head import Head
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key


@register("activation")
@dataclasses.dataclass(frozen=True)
class ActivationHead(Head):
  """AR: the mean square of the last layer's output, after its dropout; or, temporal, TAR: of the
  difference of that output between neighboring positions, before its dropout.
  """

  temporal: bool = option(False, "TAR, and not AR")
  weight: float = option(2.0, "loss weight: alpha of AR, beta of TAR (1)", low=0.0)

  labeled = False
  per_token = False
  reads = frozenset({"layers"})

  @property
  def scope(self) -> str:  # type: ignore[override]  # a model may have both
    return "temporal_activation" if self.temporal else "activation"

  @property
  def metric(self) -> str:  # type: ignore[override]
    return f"{self.scope}_loss"

  @property
  def measured(self) -> None:
    return None  # it regularizes training; evaluations report the cross-entropy alone

  def build(self, trunk: TrunkConfig) -> nn.Module:
    del trunk
    return _Outputs(self.temporal)

  def denominator(self, batch: Batch) -> jax.Array:
    return self._weights(batch).sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Outputs are mean squares [B, T], or [B, T - 1] of differences."""
    del states, num_tokens
    return Mean((outputs * self._weights(batch)).sum(), self.denominator(batch))

  def _weights(self, batch: Batch) -> jax.Array:
    """1 at each position of a text; of differences, where both positions are of the same text."""
    inside = given(batch.predictions).weights > 0
    if self.temporal:
      inside = inside[:, 1:] & inside[:, :-1] & (batch.rows.positions[:, 1:] > 0)
    return inside.astype(jnp.float32)


class _Outputs(nn.Module):
  temporal: bool

  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    if not self.temporal:
      return jnp.square(states.hidden.astype(jnp.float32)).mean(-1)
    last = given(states.layers)[-1].astype(jnp.float32)
    return jnp.square(last[:, 1:] - last[:, :-1]).mean(-1)
