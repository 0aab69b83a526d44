"""Language modeling in both directions, at once or one at random, and from right to left.

BidirectionalLM, ELMo's biLM (Peters et al. 2018, section 3.1), predicts each token from those
before it and, by itself, from those after it:

  row        <start> the cat sat <extract>
  predicted          the cat sat            from the left, and from the right

The two directions are two LSTMs, which share their input, by characters, and the softmax.

BothDirections has one trunk for both. A row is read from left to right or, reversed, from right to
left, and each token is predicted from those before it in that order:

  text      the cat sat
  forward   <start> the cat      ->  the cat sat
  reversed  <reversed> sat cat   ->  sat cat the

Each row gets one of the directions at random, and its first token tells the trunk which.
Fine-tuning reads from left to right, with the <start> of the forward rows. Text that is generated
or scored has no such token, so the trunk must infer the direction from the words.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows, rows_of
from gpt_jax.config import option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.objective import Bound, Noise, Objective, frame


@register("bidirectional_lm")
@dataclasses.dataclass(frozen=True)
class BidirectionalLM(Objective):
  """Half the sum of a forward and a backward language model's loss."""

  samples: int = option(0, "tokens drawn for the softmax in training; 0: all", low=0)

  attention = "bidirectional"
  # The ends of a labeled text, so that a trunk that is fine-tuned frozen knows them.
  special = ("start", "extract")
  format = {"type": "gpt_format"}

  @property
  def heads(self) -> tuple[dict, ...]:
    forward = {"type": "direction", "samples": self.samples}
    return forward, {**forward, "backward": True}

  def text_length(self, length: int) -> int:
    return length - len(self.special)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    if self.text_length(length) < 2:
      raise InputError(f"data.length={length}: leaves no text beside the special tokens; use more")
    first, last = (tokenizer.special[name] for name in self.special)

    def between_special(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T - 2], -1 past a text's end; a target is the token at its position."""
      framed = frame(rows, first, last)
      column = np.arange(length)[None]
      is_text = (column > 0) & (column <= (rows >= 0).sum(axis=1, keepdims=True))
      targets = np.where(is_text, framed, 0).astype(np.int32)
      predictions = Predictions(targets, is_text.astype(np.float32))
      return Batch(rows_of(framed), predictions=predictions)

    return between_special


@register("backward_lm")
@dataclasses.dataclass(frozen=True)
class BackwardLM(BidirectionalLM):
  """The backward half of a BidirectionalLM by itself, as ULMFiT's second model (Howard and Ruder
  2018, section 3.3), for LSTMStackConfig(directions=backward); with regularizers, AWD-LSTM's.
  """

  ar: float = option(0.0, "as in Causal", low=0.0)
  tar: float = option(0.0, "as in Causal", low=0.0)

  @property
  def heads(self) -> tuple[dict, ...]:
    backward = {**super().heads[1], "weight": 1.0}
    return (backward, *Causal(self.ar, self.tar).heads[1:])  # the language head is the first


FORWARD, REVERSED = "start", "reversed"


@register("both_directions")
@dataclasses.dataclass(frozen=True)
class BothDirections(Objective):
  """The mean of a forward and a backward language model's loss."""

  attention = "causal"
  special = (FORWARD, REVERSED)
  heads = ({"type": "language"},)
  format = {"type": "gpt_format"}

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    markers = tokenizer.special[FORWARD], tokenizer.special[REVERSED]

    def in_both_directions(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], -1 past a text's end; the last column is not read."""
      tokens = rows[:, :-1]
      sizes = (tokens >= 0).sum(axis=1, keepdims=True)
      column = np.arange(tokens.shape[1], dtype=np.int32)[None]
      is_reversed = draw("direction", (1,)) < 0.5
      # Only the text is reversed; padding stays at the end.
      order = np.where(is_reversed & (column < sizes), sizes - 1 - column, column)
      targets = np.take_along_axis(tokens, order, axis=1)
      first = np.where(is_reversed, markers[1], markers[0]).astype(np.int32)
      # Shifted right by the marker, so every token is predicted, the first one too.
      inputs = np.concatenate([first, np.maximum(targets[:, :-1], 0)], axis=1)
      return Batch(
        Rows(inputs, np.broadcast_to(column, inputs.shape)),
        predictions=Predictions(np.maximum(targets, 0), (targets >= 0).astype(np.float32)),
      )

    return in_both_directions
