"""Heads of recurrent language models: one direction of a model of both (ELMo, Peters et al. 2018,
section 3.1), and activation regularization (AWD-LSTM, Merity et al. 2018, section 4.5).
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.heads.language import NoOutputs
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.dropout import Key
from gpt_jax.ops.sampled_softmax import sampled_cross_entropy


@register("direction")
@dataclasses.dataclass(frozen=True)
class DirectionHead(Head):
  """-log P(token | the tokens on one side of it), in nats, by the trunk's table.

  Each direction predicts by its own part of the hidden states: both together have read the token.
  """

  backward: bool = option(False, "predict from the tokens after it, and not from those before it")
  weight: float = option(0.5, "loss weight", low=0.0)
  samples: int = option(
    0, "tokens drawn for the softmax in training, see ops/sampled_softmax.py; 0: all", low=0
  )

  per_token = True

  @property
  def scope(self) -> str:  # type: ignore[override]  # a model has both
    return "backward" if self.backward else "forward"

  @property
  def measured(self) -> "DirectionHead":
    return dataclasses.replace(self, samples=0)  # perplexities are of the whole vocabulary

  @property
  def reads(self) -> frozenset[str]:  # type: ignore[override]
    return frozenset({self.scope})

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    if self.samples >= trunk.vocab_size:
      raise InputError(
        f"objective.samples={self.samples}: not fewer than the {trunk.vocab_size:,} tokens of the "
        "vocabulary; 0 takes all"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _StepKey() if self.samples else NoOutputs()

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.predictions).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """A target at position t is the token there, which the state of a neighbor predicts."""
    predictions = given(batch.predictions)
    halves = states.hidden.shape[-1] // (states.table.shape[-1] - 1)  # a table has a bias
    hidden = jnp.split(states.hidden, halves, axis=-1)[-1 if self.backward else 0]
    # Before position t, or after it. The ends of a text are special tokens, which nothing predicts,
    # so no prediction is from another text or from the other end of the row.
    hidden = jnp.roll(hidden, -1 if self.backward else 1, axis=1)
    arguments = hidden, states.table, predictions.targets, predictions.weights
    if self.samples:
      total = sampled_cross_entropy(*arguments, num_tokens, self.samples, outputs)
    else:
      total = cross_entropy(*arguments, num_tokens)
    return Mean(total, self.denominator(batch))


class _StepKey(nn.Module):
  """The key by which the loss draws its sample."""

  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    return key


@register("activation")
@dataclasses.dataclass(frozen=True)
class ActivationHead(Head):
  """AR: the mean square of the last layer's output, after its dropout; or, temporal, TAR: of the
  difference of that output between neighboring positions, before its dropout.
  """

  temporal: bool = option(False, "TAR, and not AR")
  weight: float = option(2.0, "loss weight: alpha of AR, beta of TAR (1)", low=0.0)

  reads = frozenset({"layers"})

  @property
  def scope(self) -> str:  # type: ignore[override]  # a model may have both
    return "temporal_activation" if self.temporal else "activation"

  @property
  def measured(self) -> None:
    return None  # it regularizes training; evaluations report the cross-entropy alone

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Outputs(self.temporal)

  def denominator(self, batch: Batch) -> jax.Array:
    return self._weights(batch).sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Outputs are mean squares [B, T], or [B, T - 1] of differences."""
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
