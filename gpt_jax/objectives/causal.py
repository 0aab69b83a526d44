"""Causal language modeling: predict every token from those before it (eq. 1); with a prefix."""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.config import option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.objective import Bound, Noise, Objective


@register("causal")
@dataclasses.dataclass(frozen=True)
class Causal(Objective):
  """The paper's pre-training objective; with regularizers, AWD-LSTM's."""

  ar: float = option(
    0.0, "weight of the squared outputs (AWD-LSTM: 2), see ActivationHead", low=0.0
  )
  tar: float = option(
    0.0, "weight of the squared differences of neighboring outputs (AWD-LSTM: 1)", low=0.0
  )

  attention = "causal"
  format = {"type": "gpt_format"}

  @property
  def heads(self) -> tuple[dict, ...]:
    # P(u) = softmax(h_n W_e^T) (eq. 2): the head is the embedding table, and has no parameters.
    heads: list[dict] = [{"type": "language"}]
    for temporal, weight in ((False, self.ar), (True, self.tar)):
      if weight:
        heads.append({"type": "activation", "temporal": temporal, "weight": weight})
    return tuple(heads)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    return causal_batch


def causal_batch(rows: np.ndarray, draw: Noise | None = None) -> Batch:
  """Rows int32 [B, T + 1], -1 past a text's end, to inputs and next tokens [B, T]."""
  # The target at position t is the token at t + 1: [B, T + 1] -> [B, T] twice.
  inputs, targets = rows[:, :-1], rows[:, 1:]
  # Every row starts at position 0, even in the middle of a document: it sees nothing before it.
  positions = np.broadcast_to(np.arange(inputs.shape[1], dtype=np.int32), inputs.shape)
  # Padding is at the end, where causal attention hides it from the text: no segments are needed.
  # Weight 0 keeps it out of the loss.
  weights = (targets >= 0).astype(np.float32)
  return Batch(
    Rows(np.maximum(inputs, 0), positions),
    predictions=Predictions(np.maximum(targets, 0), weights),
  )


@register("prefix_lm")
@dataclasses.dataclass(frozen=True)
class PrefixLM(Objective):
  """T5's prefix language model (Raffel et al. 2020, section 3.2.3): each text is cut at a random
  place; the positions of the first part attend to each other, and what follows is predicted.
  """

  attention = "prefix"
  heads = ({"type": "language"},)
  format = {"type": "gpt_format"}

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    return _prefix_lm_batch


def _prefix_lm_batch(rows: np.ndarray, draw: Noise) -> Batch:
  """Rows int32 [B, T + 1], -1 past a text's end, to inputs and the tokens after a cut [B, T]."""
  # Inputs and targets are those of a causal model; only mask and weights differ.
  batch = causal_batch(rows)
  tokens = (rows >= 0).sum(axis=1)
  # All cuts that leave a token on both sides are equally likely; of n tokens there are n - 1.
  cut = 1 + (draw("cut", (1,))[:, 0] * np.maximum(tokens - 1, 0)).astype(np.int64)
  column = np.arange(rows.shape[1] - 1)[None]
  predictions = batch.predictions
  assert predictions is not None
  after_cut = column >= cut[:, None] - 1  # the last token of the prefix predicts the next one
  return batch._replace(
    rows=batch.rows._replace(
      segments=(rows[:, :-1] >= 0).astype(np.int32), prefix=column < cut[:, None]
    ),
    predictions=predictions._replace(weights=predictions.weights * after_cut),
  )
