"""Span corruption (T5, Raffel et al. 2020, section 3.1.4): write what stood in the gaps of a text.

The rule is that of text-to-text-transfer-transformer, data/preprocessors.py: of L tokens exactly
round(0.15 L) are hidden, in spans of 3 tokens on average. The input has a sentinel for each hidden
span, the target a sentinel for each span that stays:

  text     the cat sat on the mat by the sea
  input    the cat <sentinel_0> the mat by <sentinel_1> <sep>
  target   <sentinel_0> sat on <sentinel_1> the sea <sep>

Letters: B rows, L tokens of text, I tokens of an input, J of a target, both with their end.
"""

import dataclasses

import numpy as np

from gpt_jax.batch import Batch, Predictions, encoder_decoder_batch, rows_of
from gpt_jax.config import option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.objectives.objective import Bound, Noise, Objective

END = "sep"  # ends every input and every target
_LAST = np.iinfo(np.int64).max  # sorts after every token


@register("span_corruption")
@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
  """data.length is the length of the row that a trunk reads, and the text is as long as fits.

  For an encoder-decoder that row is the encoder's: 512 holds 568 tokens of text, and the targets
  have 114 tokens. In the prefix layout it is input and target together. With these shares a text of
  30 tokens or fewer has one span, and that is its end.
  """

  layout: str = option(
    "prefix",
    "prefix: input and target in one row, for a Transformer whose positions attend to the whole "
    "input; encoder_decoder: the input for the encoder, the target for the decoder",
    choices=("prefix", "encoder_decoder"),
  )
  share: float = option(0.15, "share of a text's tokens that are hidden", low=0.01, high=0.9)
  span: float = option(3.0, "mean length of a hidden span", unit="tokens", low=1.0, high=1000.0)
  sentinels: int = option(100, "special tokens that stand for spans", low=1, high=10**4)
  z_loss: float = option(
    0.0, "weight of (log Z)^2 in the training loss of a token, Z = sum exp(logits)", low=0.0
  )

  @property
  def attention(self) -> str:
    """Attention kind of the trunk or, in an encoder-decoder, of its decoder."""
    return "prefix" if self.layout == "prefix" else "causal"

  @property
  def gives_source(self) -> bool:  # type: ignore[override]
    return self.layout == "encoder_decoder"

  @property
  def special(self) -> tuple[str, ...]:  # type: ignore[override]
    return ("pad", END, *(f"sentinel_{i}" for i in range(self.sentinels)))

  @property
  def heads(self) -> tuple[dict, ...]:
    return ({"type": "language", "special_tokens": True, "z_loss": self.z_loss},)

  format = {"type": "text_to_text"}

  def counts(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many of L tokens are hidden, and in how many spans; 0 where a text has less than two."""
    most = np.maximum(tokens - 1, 0)  # a token stays
    hidden = np.minimum(np.maximum(np.rint(tokens * self.share), 1), most).astype(np.int64)
    # Not more spans than hidden or kept tokens: none may be empty.
    spans = np.maximum(np.rint(hidden / self.span), 1)
    return hidden, np.minimum(np.minimum(spans, hidden), tokens - hidden).astype(np.int64)

  def lengths(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """I and J of texts of L tokens."""
    hidden, spans = self.counts(tokens)
    # What is kept, or hidden, with a sentinel a span and the end. At L = 568: 512 and 114.
    return tokens - hidden + spans + 1, hidden + spans + 1

  def text_length(self, length: int) -> int:
    """L, the most tokens of text whose row has at most `length` tokens."""
    # A row is not shorter than the text that stays in it.
    tokens = np.arange(2, int(length / (1 - self.share)) + 3)
    inputs, targets = self.lengths(tokens)
    # - 1: a row's last token is only a target, as in the causal objective.
    sizes = inputs + targets - 1 if self.layout == "prefix" else inputs
    fitting = tokens[sizes <= length]
    if not len(fitting):
      raise InputError(f"data.length={length}: too short for span corruption; use 16 or more")
    return int(fitting[-1])

  def word_share(self, length: int) -> float:
    """Words among a target's tokens; the others are sentinels and the end."""
    hidden, spans = self.counts(np.array([self.text_length(length)]))
    return float(hidden[0] / (hidden[0] + spans[0] + 1))

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    tokens = self.text_length(length)
    inputs, targets = self.lengths(np.array([tokens]))
    _, spans = self.counts(np.array([tokens]))
    if spans[0] > self.sentinels:
      raise InputError(
        f"objective.sentinels={self.sentinels}: data.length={length} holds {tokens} tokens of "
        f"text, which have {spans[0]} spans; use {spans[0]} or more"
      )
    special = tokenizer.special
    ids = np.array([special[f"sentinel_{i}"] for i in range(self.sentinels)], np.int32)
    end, pad = special[END], special["pad"]

    def corrupted(rows: np.ndarray, draw: Noise) -> Batch:
      """Rows int32 [B, L], -1 past a text's end."""
      span_of = self.divide((rows >= 0).sum(axis=1), rows.shape[1], draw)
      source, target = split(rows, *span_of, ids, end, (int(inputs[0]), int(targets[0])))
      if self.layout == "prefix":
        return prefix_batch(source, target, length)
      return encoder_decoder_batch(source, target, length, pad)

    return corrupted

  def divide(self, counts: np.ndarray, length: int, draw: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Draws the hidden tokens, bool [B, L], and the number of each token's span, int [B, L].

    Kept and hidden spans alternate, so the first token stays and the last is hidden;
    each kind is divided into non-empty parts at random, all divisions being equally likely.

    counts: int [B], the tokens of each text; length: L of the longest.
    """
    hidden, spans = self.counts(counts)
    kept_part = _parts("kept spans", counts - hidden, spans, length, draw)
    hidden_part = _parts("hidden spans", hidden, spans, length, draw)
    # In the text, part 0 that stays is followed by part 0 that is hidden, then by parts 1, and so
    # on: sorting the numbers of all tokens' parts gives their order.
    keys = np.where(kept_part == _LAST, _LAST, 2 * np.minimum(kept_part, length))
    hidden_keys = np.where(hidden_part == _LAST, _LAST, 2 * np.minimum(hidden_part, length) + 1)
    order = np.sort(np.concatenate([keys, hidden_keys], axis=1), axis=1)[:, :length]
    return (order != _LAST) & (order % 2 == 1), np.where(order == _LAST, 0, order // 2)


def split(
  rows: np.ndarray,
  hidden: np.ndarray,
  span: np.ndarray,
  sentinels: np.ndarray,
  end: int,
  shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
  """Inputs [B, I] and targets [B, J] of texts [B, L], -1 past their ends; shape: (I, J).

  A text of less than two tokens gives empty rows.

  hidden, span: from SpanCorruption.divide. sentinels: the id of each. end: the id after inputs and
    targets.
  """
  valid = (rows >= 0) & ((rows >= 0).sum(axis=1, keepdims=True) >= 2)
  begins = np.diff(hidden, axis=1, prepend=True) != 0  # the first token stays
  marks = sentinels[np.minimum(span, len(sentinels) - 1)]
  # The sentinel of a span stands before its first token, in input and target alike.
  inputs = _written(rows, valid & ~hidden, valid & hidden & begins, marks, end, shape[0])
  targets = _written(rows, valid & hidden, valid & ~hidden & begins, marks, end, shape[1])
  return inputs, targets


def prefix_batch(source: np.ndarray, target: np.ndarray, length: int) -> Batch:
  """Input int32 [B, I] and target [B, J], -1 past their ends, as one row of `length` tokens, of
  which the target is predicted.

  Every position attends to the whole input, and to the part of the target before it.
  """
  inputs, targets = ((x >= 0).sum(axis=1)[:, None] for x in (source, target))
  column = np.arange(length + 1)[None]
  from_source = np.take_along_axis(source, np.minimum(column, source.shape[1] - 1), axis=1)
  in_target = np.clip(column - inputs, 0, target.shape[1] - 1)
  both = np.where(column < inputs, from_source, np.take_along_axis(target, in_target, axis=1))
  both = np.where(column < inputs + targets, both, -1)
  # The last token of the input predicts the first of the target.
  at = np.minimum(np.maximum(inputs - 1, 0) + np.arange(target.shape[1]), length - 1)
  return Batch(
    rows_of(both[:, :-1])._replace(prefix=column[:, :-1] < inputs),
    predictions=Predictions(
      np.maximum(target, 0), (target >= 0).astype(np.float32), at.astype(np.int32)
    ),
  )


def _parts(name: str, items: np.ndarray, parts: np.ndarray, length: int, draw: Noise) -> np.ndarray:
  """The part of each item, int64 [B, length], of a random division; _LAST after the items.

  items, parts: int [B], how many items are divided into how many non-empty parts.
  """
  number = np.arange(length)[None]
  # Each but the first part begins at one of the items 1, 2, …: those with the smallest draws.
  noise = draw(name, (length,))
  noise = np.where((number > 0) & (number < items[:, None]), noise, 2.0)
  # Argsort of argsort: the rank of each draw among its row's.
  rank = noise.argsort(axis=1).argsort(axis=1)
  part = (rank < parts[:, None] - 1).cumsum(axis=1)
  return np.where(number < items[:, None], part, _LAST)


def _written(
  rows: np.ndarray, kept: np.ndarray, marked: np.ndarray, marks: np.ndarray, end: int, length: int
) -> np.ndarray:
  """The tokens where `kept` and the marks where `marked`, in order, then the end: [B, length]."""
  written = kept | marked
  # What is not written goes to one more column, and so does nothing else.
  column = np.where(written, written.cumsum(axis=1) - 1, length)
  result = np.full((len(rows), length + 1), -1, np.int32)
  np.put_along_axis(result, column, np.where(marked, marks, rows), axis=1)
  count = written.sum(axis=1)
  some = count > 0
  result[some, count[some]] = end
  return result[:, :length]
