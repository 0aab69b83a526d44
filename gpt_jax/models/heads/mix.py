"""A task's head on all layers of a trunk (ELMo, Peters et al. 2018, section 3.2 and 3.3): a mix
`gamma sum_j softmax(s)_j h_j`, alone or beside layers of the task's own.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Mix, WrappedHead
from gpt_jax.models.layers import uniform
from gpt_jax.models.lstm_stack import Block, LSTMStackConfig
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup


@register("mixed")
@dataclasses.dataclass(frozen=True)
class MixedHead(WrappedHead, Mix):
  """Another head, whose hidden states are replaced.

  With `units` the task has a layer of its own, an LSTM in both directions: ELMo at its input is
  [x; mix], x being the task's own embeddings, and at its output [h; mix]. Without, the head reads
  [x; mix].
  """

  layer: int = option(-1, "read one layer alone, 0 being the embeddings; -1: a mix of all", low=-1)
  penalty: float = option(
    1e-3, "lambda of lambda sum s^2, which keeps the mix near a mean", low=0.0
  )
  dropout: float = option(0.5, "dropout on the mix", low=0.0, high=0.99)
  embedding: int = option(0, "size of the task's own embeddings; 0: it has none", low=0, high=10**6)
  units: int = option(0, "units of the task's LSTM, each direction; 0: it has none", low=0)
  at: str = option(
    "input", "where the task's LSTM has the mix", choices=("input", "output", "both"), needs="units"
  )

  def __post_init__(self):
    super().__post_init__()
    if self.at == "output" and not self.embedding:
      raise InputError("mix.at=output: the task's LSTM then reads mix.embedding; set it above 0")

  @property
  def measured(self) -> "MixedHead":
    # The penalty regularizes training.
    return dataclasses.replace(self, head=self.inner.measured, penalty=0.0)

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    if (self.units or self.embedding) and head.get("transform") == "pooler":
      head = {**head, "transform": "none"}  # the trunk's pooler is a map of its own states
    return super().change_head(head, start)

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    if self.layer > trunk.layers:
      raise InputError(f"mix.layer={self.layer}: the trunk has the layers 0 to {trunk.layers}")
    widths = trunk.layer_widths
    if self.layer < 0 and len(set(widths)) > 1:
      sizes = ", ".join(map(str, widths))
      raise InputError(
        f"mix: needs layers of one width, and the trunk's are {sizes}; mix.layer=N reads one alone"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Mixed(self, trunk, self.inner.build(trunk))

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Outputs are those of the head, and sum s^2."""
    of_head, squares = outputs
    mean = self.inner.loss(of_head, states, batch, num_tokens)
    # Once for the whole batch, however it is split: parts add up to its denominator.
    return Mean(mean.total + self.penalty * squares * mean.weight, mean.weight)

  def of_inner(self, outputs) -> Any:
    return outputs[0]


class ScalarMix(nn.Module):
  """gamma sum_j softmax(s)_j h_j, or gamma h_j of one layer j."""

  layer: int = -1

  @nn.compact
  def __call__(self, layers: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """The states [B, T, D] of all layers to their mix, float32 [B, T, D], and sum s^2."""
    gamma = self.param("scale", nn.initializers.ones, ())
    if self.layer >= 0:
      return gamma * layers[self.layer].astype(jnp.float32), jnp.float32(0)
    s = self.param("mixture", nn.initializers.zeros, (len(layers),))
    shares = jax.nn.softmax(s)
    mix = sum(shares[j] * h.astype(jnp.float32) for j, h in enumerate(layers))
    return gamma * mix, jnp.square(s).sum()


class _Mixed(nn.Module):
  config: MixedHead
  trunk: TrunkConfig
  head: nn.Module

  def setup(self):
    # The head's parameters are where they are without a mix.
    nn.share_scope(self, self.head)
    c, trunk = self.config, self.trunk
    if c.at != "output":
      self.mix = ScalarMix(c.layer)
    if c.at != "input":
      self.output_mix = ScalarMix(c.layer)
    width = c.embedding + (trunk.layer_widths[c.layer] if c.at != "output" else 0)
    if c.embedding:
      self.embedding = self.param("embedding", uniform(0.1), (trunk.rows, c.embedding))
    if c.units:
      own = LSTMStackConfig(
        embedding_width=width, units=(c.units,), directions="joined", tied=False, input_dropout=0.0
      )
      self.lstm = Block(own, 0)

  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    c, rows = self.config, batch.rows
    parts, squares = [], jnp.float32(0)
    if c.embedding:
      parts.append(lookup(self.embedding, rows.inputs))
    if c.at != "output":
      mix, squares = self.mix(given(states.layers))
      parts.append(dropout(mix, c.dropout, key and key.fold(1)))
    x = jnp.concatenate(parts, -1)
    if c.units:
      x = jnp.concatenate(self.lstm([x, x], rows.positions, rows.is_token, None, None)[0], -1)
    if c.at != "input":
      mix, more = self.output_mix(given(states.layers))
      x = jnp.concatenate([x, dropout(mix, c.dropout, key and key.fold(2))], -1)
      squares = squares + more
    return self.head(states._replace(hidden=x), batch, key), squares
