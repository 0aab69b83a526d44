"""Contrastive learning of pairs that are given, such as a text and its back-translation (CERT, Fang
et al. 2020): each document is a pair.
"""

import dataclasses
import os

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.config import register
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.windows import PAD, Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.objectives.contrastive import TextPairs
from gpt_jax.objectives.objective import Bound, Noise

_FIRST = 1 << 16  # tokens of a file, among which should be a line break


class _Beginnings(Windows):
  """A row for each document, its first T + 1 tokens."""

  def __init__(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0):
    """Raises InputError for rows across documents."""
    if config.sampling != "within_documents":
      raise InputError(
        f"data.sampling={config.sampling}: a pair is one document; use within_documents"
      )
    super().__init__(tokens, config, seed)
    # As if no document were longer, so that each is one span from its first token on.
    self._size = np.minimum(self._size, config.length + 1)
    self._span_ends = np.cumsum(self._size >= 2)
    self.spans_per_epoch = int(self._span_ends[-1])


@register("line_pairs")
@dataclasses.dataclass(frozen=True)
class LinePairs(TextPairs):
  """The first line of a document and what follows it, at most data.length tokens of each; both are
  anchors. Where the first 2 x data.length + 1 tokens have no two lines, there is no pair.
  """

  symmetric = True

  def text_length(self, length: int) -> int:
    return 2 * length + 1  # two texts, and the break between them

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    """See Objective.windows. Raises InputError also for documents of one line each."""
    line_id = load_tokenizer(os.path.join(os.path.dirname(tokens.path), "tokenizer")).line_id
    if line_id not in tokens.read(0, min(_FIRST, tokens.n_tokens)):
      raise InputError(
        f"{tokens.path}.bin: no document has two lines, a pair; prepare a table with "
        "--text_column=A,B"
      )
    length = self.text_length(config.length) - 1
    return _Beginnings(tokens, dataclasses.replace(config, length=length), seed)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    room, line_id = self._room(length, length), tokenizer.line_id
    if line_id is None:
      raise InputError(
        "objective=line_pairs: the vocabulary has no token for the line break between two texts; "
        "prepare with --vocabulary=sentencepiece or bytes"
      )

    def pairs(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, 2 length + 1], -1 past a text's end."""
      columns = np.arange(room)[None]
      middle = np.argmax(rows == line_id, axis=1)[:, None]  # [B, 1]; 0: there is none
      # Past the end of a row it is the last place again, which is then made padding.
      places = np.minimum(middle + 1 + columns, rows.shape[1] - 1)
      second = np.take_along_axis(rows, places, axis=1)  # [B, room]
      second[middle + 1 + columns > places] = PAD
      # A text without a partner would be a candidate of the others that nothing is near.
      is_pair = (middle > 0) & (second[:, :1] >= 0)
      first = np.where(is_pair & (columns < middle), rows[:, :room], PAD)
      return self._batch((first, np.where(is_pair, second, PAD)), tokenizer)

    return pairs
