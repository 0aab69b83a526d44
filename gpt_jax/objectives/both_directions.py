"""Language modeling in both directions (ELMo, Peters et al. 2018, section 3.1) with one trunk.

A row is read from left to right or, reversed, from right to left, and each token is predicted from
those before it in that order:

  text      the cat sat
  forward   <start> the cat      ->  the cat sat
  reversed  <reversed> sat cat   ->  sat cat the

ELMo has one LSTM per direction; the two share only the embeddings and the softmax, and each token
is predicted in both. Here one trunk serves both directions: each row gets one of them at random,
and its first token tells the trunk which. Fine-tuning reads from left to right, with the <start> of
the forward rows. Text that is generated or scored has no such token, so the trunk must infer the
direction from the words.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.config import register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.objective import Bound, Noise, Objective

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
    del length
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
