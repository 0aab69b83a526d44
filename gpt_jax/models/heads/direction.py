"""One direction of a language model of both (ELMo, Peters et al. 2018, section 3.1)."""

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


@register("direction")
@dataclasses.dataclass(frozen=True)
class DirectionHead(Head):
  """-log P(token | the tokens on one side of it), in nats, by the trunk's table.

  Each direction predicts by its own part of the hidden states: both together have read the token.
  """

  backward: bool = option(False, "predict from the tokens after it, and not from those before it")
  weight: float = option(0.5, "loss weight", low=0.0)

  labeled = False
  per_token = True

  @property
  def scope(self) -> str:  # type: ignore[override]  # a model has both
    return "backward" if self.backward else "forward"

  @property
  def metric(self) -> str:  # type: ignore[override]
    return f"{self.scope}_loss"

  def check_trunk(self, trunk: TrunkConfig) -> None:
    if not (trunk.has_separate_directions or (self.backward and trunk.reads_backward)):
      raise InputError(
        "trunk: predicting in both directions needs two that do not see each other, as those of "
        "LSTMStackConfig(directions=separate); backward_lm needs directions=backward"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    del trunk
    return NoOutputs()

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.predictions).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """A target at position t is the token there, which the state of a neighbor predicts."""
    del outputs
    predictions = given(batch.predictions)
    halves = states.hidden.shape[-1] // (states.table.shape[-1] - 1)  # a table has a bias
    hidden = jnp.split(states.hidden, halves, axis=-1)[-1 if self.backward else 0]
    # Before position t, or after it. The ends of a text are special tokens, which nothing predicts,
    # so no prediction is from another text or from the other end of the row.
    hidden = jnp.roll(hidden, -1 if self.backward else 1, axis=1)
    total = cross_entropy(
      hidden, states.table, predictions.targets, predictions.weights, num_tokens
    )
    return Mean(total, self.denominator(batch))
