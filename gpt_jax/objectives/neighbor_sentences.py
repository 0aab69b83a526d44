"""Contrastive learning of a sentence and the next one (QuickThoughts, Logeswaran and Lee 2018).

The text needs sentence ends (prepare --sentences).
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.config import register
from gpt_jax.data.sentence_windows import SENTENCE_END, PackedSentenceWindows
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import PAD, WindowsConfig
from gpt_jax.objectives.contrastive import TextPairs
from gpt_jax.objectives.objective import Bound, Noise


@register("neighbor_sentences")
@dataclasses.dataclass(frozen=True)
class NeighborSentences(TextPairs):
  """The first two sentences of a row, at most half of data.length each; both are anchors. A row
  whose second sentence does not fit, or ends its document before it, is no pair.
  """

  symmetric = True

  def windows(
    self, tokens: TokenFile, config: WindowsConfig, seed: int = 0
  ) -> PackedSentenceWindows:
    """See Objective.windows."""
    return PackedSentenceWindows(tokens, config, seed)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    room = self._room(length // 2, length)

    def pairs(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1] of sentences, SENTENCE_END after each, then -1."""
      del draw
      is_end = rows == SENTENCE_END
      ends_before = np.cumsum(is_end, axis=1)
      columns = np.arange(room)[None]
      begin = is_end.argmax(axis=1)[:, None] + 1  # [B, 1], of the second sentence
      places = np.minimum(begin + columns, rows.shape[1] - 1)
      second = np.take_along_axis(rows, places, axis=1)
      of_second = np.take_along_axis(ends_before, places, axis=1) == 1
      second = np.where(of_second & (begin + columns == places) & (second >= 0), second, PAD)
      is_first = (ends_before == 0)[:, :room] & (second[:, :1] >= 0)
      first = np.where(is_first, rows[:, :room], PAD)
      return self._batch((first, second.astype(np.int32)), tokenizer)

    return pairs
