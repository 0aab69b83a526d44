"""Contrastive learning with in-batch negatives: pairs of texts that should have similar vectors.

Rows 2i and 2i + 1 of the batch are a pair, so that each host's rows hold whole pairs. The texts
come from a window of the token file, at most data.length tokens of one document.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import POOLINGS, Batch, rows_of
from gpt_jax.config import Config, option, register
from gpt_jax.data.sentence_windows import SENTENCE_END, PackedSentenceWindows
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import PAD, Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.objectives.objective import Bound, Noise, Objective, frame


@dataclasses.dataclass(frozen=True)
class TextVectors(Config):
  """How a text becomes a vector, and how vectors are compared; for objectives and their head."""

  pooling: str = option(
    "mean",
    "the vector of a text: the mean of its tokens; the last token, which alone has read all of it "
    "in a causal model; or cls, put in front of it (and sep after it), as BERT",
    choices=POOLINGS,
  )
  temperature: float = option(0.05, "tau, by which cosines are divided", low=1e-3, high=100.0)
  mlp: bool = option(
    False, "a dense layer with tanh before the cosine when training; embeddings are taken before it"
  )


@dataclasses.dataclass(frozen=True)
class TextPairs(TextVectors, Objective):
  """Base of these objectives."""

  attention: str = option(
    "causal",
    "what a position attends to; must match the checkpoint that the run starts from",
    choices=("causal", "bidirectional"),
  )

  keeps_format = True
  symmetric = False  # whether both texts of a pair are anchors, or only the first

  @property
  def special(self) -> tuple[str, ...]:  # type: ignore[override]
    return ("cls", "sep") if self.pooling == "cls" else ()

  @property
  def format(self) -> dict[str, str]:
    """The format of a run that starts from random weights; see Objective.format."""
    return {"type": "gpt_format" if self.attention == "causal" else "roberta_format"}

  @property
  def heads(self) -> tuple[dict, ...]:
    vectors = {field.name: vars(self)[field.name] for field in dataclasses.fields(TextVectors)}
    return ({"type": "contrastive", "symmetric": self.symmetric, **vectors},)

  def _room(self, row: int, length: int) -> int:
    """Tokens of text in a row; `length` is data.length. Raises InputError if there are none."""
    room = row - len(self.special)
    if room < 1:
      raise InputError(f"data.length={length}: leaves no token for a text; use a larger one")
    return room

  def _batch(self, texts: tuple[np.ndarray, np.ndarray], tokenizer: Tokenizer) -> Batch:
    """Two arrays int32 [B, t], -1 after the end of each text, to a batch of 2 B rows."""
    # [B, 2, t] -> [2 B, t]: partners are neighbors.
    rows = np.stack(texts, axis=1).reshape(-1, texts[0].shape[1])
    if self.special:
      rows = frame(rows, tokenizer.special["cls"], tokenizer.special["sep"])
    return Batch(rows_of(rows))


@register("dropout_views")
@dataclasses.dataclass(frozen=True)
class DropoutViews(TextPairs):
  """The same text twice (SimCSE, Gao et al. 2021, section 3); its two rows get different dropout,
  which is a hash of the row.
  """

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    room = self._room(length, length)

    def views(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], -1 past a text's end; what exceeds the room is not read."""
      return self._batch((rows[:, :room], rows[:, :room]), tokenizer)

    return views


@register("neighbor_spans")
@dataclasses.dataclass(frozen=True)
class NeighborSpans(TextPairs):
  """The beginning and the end of a window; both are anchors."""

  span: int = option(
    0,
    "length of each of the two; 0: half of data.length, so that the second follows the first; "
    "longer ones overlap, shorter ones leave a gap",
    unit="tokens",
    low=0,
  )

  symmetric = True

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    if self.span > length:
      raise InputError(f"objective.span={self.span}: must not exceed data.length={length}")
    span = self._room(self.span or length // 2, length)
    window = length if self.span else 2 * span

    def neighbors(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1], -1 past a text's end; shorter windows have shorter spans."""
      tokens = rows[:, :window]  # [B, W]
      sizes = (tokens >= 0).sum(axis=1, keepdims=True)  # [B, 1]
      # In proportion, so that the halves of a short window do not overlap either.
      lengths = span * sizes // window
      columns = np.arange(span)[None]  # [1, S]
      from_end = np.minimum(sizes - lengths + columns, window - 1)
      second = np.take_along_axis(tokens, np.maximum(from_end, 0), axis=1)  # [B, S]
      inside = columns < lengths
      first = np.where(inside, tokens[:, :span], PAD)
      return self._batch((first, np.where(inside, second, PAD).astype(np.int32)), tokenizer)

    return neighbors


@register("neighbor_sentences")
@dataclasses.dataclass(frozen=True)
class NeighborSentences(TextPairs):
  """The first two sentences of a row (QuickThoughts, Logeswaran and Lee 2018), at most half of
  data.length each; both are anchors. A row whose second sentence does not fit, or ends its document
  before it, is no pair. The text needs sentence ends (prepare --sentences).
  """

  symmetric = True

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    return PackedSentenceWindows(tokens, config, seed)

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    room = self._room(length // 2, length)

    def pairs(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, T + 1] of sentences, SENTENCE_END after each, then -1."""
      is_end = rows == SENTENCE_END
      ends_before = np.cumsum(is_end, axis=1)  # the number of the sentence that a token is in
      columns = np.arange(room)[None]
      begin = is_end.argmax(axis=1)[:, None] + 1  # [B, 1], of the second sentence
      places = np.minimum(begin + columns, rows.shape[1] - 1)
      second = np.take_along_axis(rows, places, axis=1)
      of_second = np.take_along_axis(ends_before, places, axis=1) == 1
      second = np.where(of_second & (begin + columns == places) & (second >= 0), second, PAD)
      # A sentence alone would be a negative of all others, and have no partner.
      is_first = (ends_before == 0)[:, :room] & (second[:, :1] >= 0)
      first = np.where(is_first, rows[:, :room], PAD)
      return self._batch((first, second.astype(np.int32)), tokenizer)

    return pairs
