"""Language modeling in both directions at once (ELMo's biLM, Peters et al. 2018, section 3.1): each
token is predicted from those before it and, by itself, from those after it.

  row        <start> the cat sat <extract>
  predicted          the cat sat            from the left, and from the right

The two directions are two LSTMs, which share their input, by characters, and the softmax. For one
trunk that reads a row from one side or the other see both_directions.py.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.config import option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.objectives.objective import Bound, Noise, Objective


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
      del draw  # nothing is random
      size = (rows >= 0).sum(axis=1, keepdims=True)
      column = np.arange(length, dtype=np.int32)[None]
      is_text = (column > 0) & (column <= size)
      targets = np.where(is_text, np.pad(rows, [(0, 0), (1, 1)]), 0).astype(np.int32)
      inputs = np.where(column == size + 1, last, targets).astype(np.int32)
      inputs[:, 0] = first
      valid = (column <= size + 1) & (size > 0)
      return Batch(
        Rows(
          np.where(valid, inputs, 0),
          np.broadcast_to(column, inputs.shape),
          valid.astype(np.int32),
        ),
        predictions=Predictions(targets, is_text.astype(np.float32)),
      )

    return between_special
