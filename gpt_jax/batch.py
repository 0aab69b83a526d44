"""The batch that data and models exchange, and an exact weighted mean.

A batch always has rows. Its other parts are optional and None if absent; trunks, heads and
objectives read the parts they know. All are named tuples, so JAX treats them as pytrees and this
file does not import it.

Letters, everywhere in gpt_jax: B rows, N examples, C sequences per example, T positions, M
predicted positions, D width, H heads, K = D / H (in attention) or classes (in labels), F = 4 D, V
vocabulary.
"""

from typing import Any, NamedTuple, TypeVar

import numpy as np

Array = Any  # numpy on the host, jax.Array on a device
POOLINGS = ("mean", "last", "cls")  # how the states of a text's tokens become its vector
_Part = TypeVar("_Part")


class Rows(NamedTuple):
  """Inputs of a trunk.

  Attributes:
    inputs: int32 [B, T] token ids.
    positions: int32 [B, T]; restart at 0 with each sequence of a packed row.
    segments: int32 [B, T]; attention stays among equal segments. None: each row is one text.
    types: int32 [B, T] token types (BERT's sentence A and B). None: there are none.
    prefix: bool [B, T]; positions that their whole segment may attend to, for prefix attention.
  """

  inputs: Array
  positions: Array
  segments: Array | None = None
  types: Array | None = None
  prefix: Array | None = None

  @property
  def is_token(self) -> Array:
    """bool [B, T], False at padding."""
    return np.ones(self.inputs.shape, bool) if self.segments is None else self.segments > 0


class Predictions(NamedTuple):
  """Token ids to predict.

  Attributes:
    targets: int32 [B, M].
    weights: float32 [B, M]; loss weight of each prediction, 0 = ignored.
    at: int32 [B, M]; the position of each prediction in its row. None: M = T, one at each position.
  """

  targets: Array
  weights: Array
  at: Array | None = None


class Labels(NamedTuple):
  """The labels of N examples of C sequences each.

  Attributes:
    anchors: int32 [N, C]; where each sequence is read (GPT's extract token, BERT's [CLS]), as
      row * T + column. -1: an example of windows has no such sequence.
    distributions: float32 [N, K]; over the K classes. For a multi-label task 0 or 1 of each label,
      for regression the standardized number (K = 1).
    weights: float32 [N]; 0 for an example that only fills the batch, or has no label.
  """

  anchors: Array
  distributions: Array
  weights: Array


class Tags(NamedTuple):
  """One class per token.

  Attributes:
    targets: int32 [B, T].
    weights: float32 [B, T]; loss weight of each token, 0 = not tagged.
  """

  targets: Array
  weights: Array


class Batch(NamedTuple):
  """One batch.

  Attributes:
    rows: what the trunk reads.
    source: what an encoder reads, for an encoder-decoder.
    predictions: of language models; `weights` of labeled examples add up to 1 per example, so that
      the auxiliary loss of an example is the mean over its sequences of the mean over their tokens.
    labels: of labeled examples.
    tags: of tagged tokens.
  """

  rows: Rows
  source: Rows | None = None
  predictions: Predictions | None = None
  labels: Labels | None = None
  tags: Tags | None = None


def given(part: _Part | None) -> _Part:
  """An optional part that the caller cannot do without."""
  assert part is not None
  return part


class Mean(NamedTuple):
  """A weighted mean as its two sums, so that it adds exactly over batches, hosts, microbatches."""

  total: Array
  weight: Array

  def __add__(self, other: "Mean") -> "Mean":  # type: ignore[override]  # a sum, not a longer tuple
    return Mean(self.total + other.total, self.weight + other.weight)

  @property
  def value(self) -> float:
    """The mean; nan where the weight is 0."""
    weight = float(np.asarray(self.weight))
    return float(np.asarray(self.total)) / weight if weight else float("nan")


def encoder_decoder_batch(source: np.ndarray, target: np.ndarray, length: int, pad: int) -> Batch:
  """Inputs for the encoder, filled up to `length`, and targets shifted right for the decoder.

  The decoder begins with `pad`, predicts the first token of the target there, and so on.

  source, target: int32 [B, I] and [B, J], -1 past their ends.
  """
  filled = np.full((len(source), length), -1, np.int32)
  filled[:, : source.shape[1]] = source
  # T5's decoder starts with pad, id 0 in its vocabulary.
  shifted = np.concatenate([np.full_like(target[:, :1], pad), target[:, :-1]], axis=1)
  shifted = np.where(target >= 0, shifted, -1)
  return Batch(
    rows_of(shifted),
    source=rows_of(filled),
    predictions=Predictions(np.maximum(target, 0), (target >= 0).astype(np.float32)),
  )


def rows_of(ids: np.ndarray) -> Rows:
  """Rows from ids [B, T], -1 past their ends; segment 0 is padding."""
  positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  return Rows(np.maximum(ids, 0).astype(np.int32), positions, (ids >= 0).astype(np.int32))
