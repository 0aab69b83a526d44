"""Cross-view training of a translator (Clark et al. 2018, section 3.2): decoders that see less than
the one that translates, which learn from a teacher's translations of text without any.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig, Reader
from gpt_jax.models.method import Method
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy

VIEWS = ("dropped", "future")


@register("translation_views")
@dataclasses.dataclass(frozen=True)
class TranslationViews(Head, Method):
  """Two decoders with the trunk's LSTMs, and attention and softmax of their own.

  `dropped` loses some of its attention weights; `future` predicts the token after the next one.
  The attentional vector that is fed to the LSTMs stays the translator's.
  """

  attention_dropout: float = option(
    0.5, "share of its attention weights that `dropped` loses", low=0.0, high=0.99
  )

  slot = "mix"
  scope = "translation_views"
  metric = "views_loss"
  weight = 1.0
  labeled = False
  per_token = True
  reads_layers = True
  learns_unlabeled = True
  takes_turns = True

  def check(self, config: Any, task: Any, start: Any) -> None:
    if not task.writes_text:
      raise InputError(
        f"mix: is read by a translator, and {task.name} is a task of {task.kind}; leave it out"
      )

  def check_trunk(self, trunk: TrunkConfig) -> None:
    if not (isinstance(trunk, LSTMEncoderDecoderConfig) and trunk.decoder):
      raise InputError(
        "mix: views of translations are of LSTMs with attention; use configs/translate.py:views"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    del trunk
    return _Views(self)

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.predictions).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Sum of both cross-entropies with the tokens of the translations, for each of which one."""
    del states
    predictions = given(batch.predictions)
    targets, weights = predictions.targets, predictions.weights
    hidden, table = outputs["dropped"]
    total = cross_entropy(hidden, table, targets, weights, num_tokens)
    # The state before token t predicts token t + 1.
    targets, weights = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (targets, weights))
    hidden, table = outputs["future"]
    total = total + cross_entropy(hidden, table, targets, weights, num_tokens)
    return Mean(total, self.denominator(batch))


class _Views(nn.Module):
  config: TranslationViews

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Any = None):
    """The attentional vectors [B, T, D] and the output table [R, D + 1] of each view."""
    top, memory = given(states.attended)
    rows, rates = states.table.shape[0], (self.config.attention_dropout, 0.0)
    return {
      view: Reader(rows, rate, name=view)(top, memory, key)
      for view, rate in zip(VIEWS, rates, strict=True)
    }
