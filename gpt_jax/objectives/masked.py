"""Masked language modeling (BERT, Devlin et al. 2018, section 3.1): predict hidden tokens.

The rule is that of google-research/bert, create_pretraining_data.py, but new masks are drawn for
every batch, as in RoBERTa, and random replacements are not special tokens.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.config import option, register, validate
from gpt_jax.data.draws import Draw
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.objectives.objective import Bound


@register("masked")
@dataclasses.dataclass(frozen=True)
class Masked:
  """15 % of the tokens are predicted; 80 % of them become <mask>, 10 % a random token."""

  share: float = option(0.15, "share of a row's tokens to predict", low=0.01, high=1.0)
  masked: float = option(0.8, "share of these that become <mask>", low=0.0, high=1.0)
  random: float = option(0.1, "share of these that become a random token", low=0.0, high=1.0)

  def __post_init__(self):
    validate(self)

  @property
  def attention(self) -> str:
    return "bidirectional"

  @property
  def special(self) -> tuple[str, ...]:
    return ("mask",)

  @property
  def heads(self) -> tuple[dict, ...]:
    return ({"type": "masked_head"},)

  @property
  def format(self) -> dict:
    return {"type": "roberta_format"}  # BERT's needs token types

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    vocab_size, mask_id = tokenizer.vocab_size, tokenizer.special["mask"]
    max_predictions = max(1, round(length * self.share))

    def masked_batch(rows: np.ndarray, draw: Draw) -> Batch:
      """Rows int32 [B, T + 1], -1 past a text's end; the last column is not read."""
      tokens = rows[:, :-1]
      valid = tokens >= 0
      at, weights = self._choose(valid, max_predictions, draw)
      targets = np.take_along_axis(np.maximum(tokens, 0), at, axis=1)
      replaced = self._replace(targets, vocab_size, mask_id, draw)
      inputs = np.maximum(tokens, 0)
      np.put_along_axis(inputs, at, np.where(weights > 0, replaced, targets), axis=1)
      positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
      return Batch(
        Rows(inputs, positions, segments=valid.astype(np.int32)),  # no attention to padding
        predictions=Predictions(targets, weights, at),
      )

    return masked_batch

  def _choose(self, valid: np.ndarray, max_predictions: int, draw: Draw):
    """Positions to predict int32 [B, M] in ascending order, and their loss weights [B, M]."""
    length = valid.shape[1]
    counts = np.rint(valid.sum(axis=1) * self.share)
    counts = np.minimum(np.maximum(counts, valid.any(axis=1)), max_predictions)
    order = np.where(valid, draw("masked positions", (length,)), 2.0).argsort(axis=1)
    chosen = np.arange(max_predictions) < counts[:, None]
    # Unused predictions go to the end, at positions that differ from the chosen ones.
    at = order[:, :max_predictions]
    rank = np.where(chosen, at, length + at).argsort(axis=1)
    at = np.take_along_axis(at, rank, axis=1).astype(np.int32)
    return at, chosen.astype(np.float32)

  def _replace(self, targets: np.ndarray, vocab_size: int, mask_id: int, draw: Draw) -> np.ndarray:
    """What stands in the input for each target."""
    action = draw("replacement", targets.shape[1:])
    random_ids = (draw("random token", targets.shape[1:]) * vocab_size).astype(np.int32)
    replaced = np.where(action < self.masked + self.random, random_ids, targets)
    return np.where(action < self.masked, np.int32(mask_id), replaced)
