"""The values that data and models exchange: a batch of text, a batch of labeled examples, an exact
mean.

All three are named tuples, so JAX treats them as pytrees and this file does not import it.

Letters, everywhere in gpt_jax: B rows, N examples, C sequences per example, T positions, D width, H
heads, K = D / H (in attention) or outcomes (in labels), F = 4 D, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy on the host, jax.Array on a device


class TextBatch(NamedTuple):
  """Rows of token ids with, at every place, the id that follows.

  Attributes:
    inputs: int32 [B, T].
    targets: int32 [B, T]; the id to predict at each place.
    weights: float32 [B, T]; what each prediction counts, 0 where there is none.
    positions: int32 [B, T]; the position embedding of each place, restarting at 0 with each
      sequence of a packed row.
    segments: int32 [B, T] or None; attention stays among equal segments. None where a row is one
      text.
  """

  inputs: Array
  targets: Array
  weights: Array
  positions: Array
  segments: Array | None


class TaskBatch(NamedTuple):
  """N labeled examples of C sequences each, packed into the rows of a TextBatch.

  Attributes:
    text: the rows. Its weights make the auxiliary loss of an example the mean, over its C
      sequences, of the mean over each sequence's tokens: all weights of one example add up to 1.
    ends: int32 [N, C]; the place of each sequence's extract token in the flattened rows (row * T +
      column).
    labels: float32 [N, K]; a distribution over the K outcomes.
    weights: float32 [N]; 1 for an example, 0 for one that only fills the batch.
  """

  text: TextBatch
  anchors: Array
  labels: Array
  weights: Array


class Mean(NamedTuple):
  """A weighted mean kept as its two sums, so that it adds exactly over batches, hosts and
  microbatches.
  """

  total: Array
  weight: Array

  def __add__(self, other: "Mean") -> "Mean":  # type: ignore[override]  # a sum, not a longer tuple
    return Mean(self.total + other.total, self.weight + other.weight)

  @property
  def value(self) -> float:
    """The mean; nan where nothing was weighed."""
    weight = float(np.asarray(self.weight))
    return float(np.asarray(self.total)) / weight if weight else float("nan")
