"""Masked language modeling (BERT, Devlin et al. 2018, section 3.1): predict hidden tokens."""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, rows_of
from gpt_jax.config import register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.masking import MaskedObjective
from gpt_jax.objectives.objective import Bound, Noise


@register("masked")
@dataclasses.dataclass(frozen=True)
class Masked(MaskedObjective):
  """15 % of the tokens are predicted; 80 % of them become <mask>, 10 % a random token."""

  keeps_format = True
  attention = "bidirectional"
  special = ("mask",)
  heads = ({"type": "masked_head"},)
  format = {"type": "roberta_format"}  # BERT's needs token types

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    mask = self.bind_masks(tokenizer, self.special, length)

    def masked_batch(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], -1 past a text's end; the last column is not read."""
      read, valid = rows_of(rows[:, :-1]), rows[:, :-1] >= 0
      inputs, predictions = mask(read.inputs, valid, valid, draw)
      return Batch(read._replace(inputs=inputs), predictions=predictions)

    return masked_batch
