"""Masked language modeling on packed sentences (RoBERTa, Liu et al. 2019, section 4.2).

The text needs sentence ends (prepare --sentences).
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Rows
from gpt_jax.config import register
from gpt_jax.data.sentence_windows import SENTENCE_END, PackedSentenceWindows
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.objectives.masking import MaskedObjective
from gpt_jax.objectives.objective import Bound, Noise


@register("full_sentences")
@dataclasses.dataclass(frozen=True)
class FullSentences(MaskedObjective):
  """Rows "<s> sentence </s> sentence </s> …", of one document or, with data.sampling
  across_documents (RoBERTa's FULL-SENTENCES), of several.
  """

  @property
  def marks_sentences(self) -> bool:
    return True

  attention = "bidirectional"
  special = ("cls", "sep", "mask")
  heads = ({"type": "masked_head"},)
  format = {"type": "roberta_format"}

  def windows(
    self, tokens: TokenFile, config: WindowsConfig, seed: int = 0
  ) -> PackedSentenceWindows:
    """See Objective.windows."""
    return PackedSentenceWindows(tokens, config, seed, self.copies)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    mask = self.bind_masks(tokenizer, self.special, length)
    cls_id, sep_id = tokenizer.special["cls"], tokenizer.special["sep"]

    def sentences_batch(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], see PackedSentenceWindows."""
      # <s>, then T - 1 tokens: [B, T + 1] -> [B, T]. A row of padding stays one.
      first = np.where(rows[:, :1] == -1, -1, cls_id)
      rows = np.concatenate([first, rows[:, : length - 1]], axis=1).astype(np.int32)
      valid = rows != -1
      is_text = valid & (rows != SENTENCE_END)
      is_text[:, 0] = False
      # RoBERTa's rows have no token types, and </s> alone separates sentences.
      tokens = np.where(rows == SENTENCE_END, np.int32(sep_id), np.maximum(rows, 0))
      inputs, predictions = mask(tokens, valid, is_text, draw)
      positions = np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)
      return Batch(
        Rows(inputs, positions, segments=valid.astype(np.int32)),  # no attention to padding
        predictions=predictions,
      )

    return sentences_batch
