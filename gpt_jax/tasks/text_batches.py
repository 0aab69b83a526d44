"""Batches of text-to-text examples: an input, and an answer that is predicted token by token.

Every token of an answer has weight 1, as in T5: the summed loss is -log P(answer), the likelihood
of the label as a whole. A mean over each answer's tokens would count a token of a long label less.
"""

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.text import START, EncodedText
from gpt_jax.tasks.packing import PackedBatches

_MULTIPLE = 8  # of a row's length


class PrefixBatches:
  """Packed rows of inputs, each with its answer after it, for prefix attention.

  Attributes:
    steps_per_epoch, shape: see PackedBatches.
  """

  def __init__(
    self,
    encoded: EncodedText,
    batch_size: int,
    seed: int,
    epochs: int,
    groups: int = 1,
    row_multiple: int = 1,
  ):
    """See PackedBatches, whose order and rows these are."""
    self._packed = PackedBatches(encoded, batch_size, seed, epochs, groups, row_multiple)
    self._sources, self._lengths = encoded.source_lengths, encoded.lengths[:, 0]
    self.steps_per_epoch, self.shape = self._packed.steps_per_epoch, self._packed.shape

  def __call__(self, step: int) -> Batch:
    batch = self._packed(step)
    rows, predictions = batch.rows, batch.predictions
    assert predictions is not None and rows.segments is not None
    # Segment 1 + n is that of the batch's example n; 0 is padding.
    real = rows.segments > 0
    example = self._packed.examples(step)[np.maximum(rows.segments - 1, 0)]
    sources, lengths = self._sources[example], self._lengths[example]
    # The end of the input predicts the first token of the answer.
    predicted = real & (rows.positions >= sources - 1) & (rows.positions < lengths - 1)
    return Batch(
      rows._replace(prefix=real & (rows.positions < sources)),
      predictions=Predictions(predictions.targets, predicted.astype(np.float32)),
    )


class EncoderDecoderBatches:
  """An example per row: the input for the encoder, the answer shifted right for the decoder.

  Attributes:
    steps_per_epoch: the last partial batch is dropped.
    shape: of the encoder's rows, (B, S).
  """

  def __init__(self, encoded: EncodedText, batch_size: int, seed: int, epochs: int):
    """The arguments are those of PackedBatches.

    Raises:
      InputError: fewer examples than one batch.
    """
    self.steps_per_epoch = len(encoded) // batch_size
    if not self.steps_per_epoch:
      raise InputError(
        f"{len(encoded)} examples are fewer than one batch; batch_size is {batch_size}"
      )
    self._encoded = encoded
    count = self.steps_per_epoch * batch_size
    orders = []
    for epoch in range(epochs):
      order = np.random.default_rng([seed, epoch]).permutation(len(encoded))[:count]
      orders.append(order.reshape(self.steps_per_epoch, batch_size))
    self._order = np.concatenate(orders)
    self.shape = (batch_size, _rounded(int(encoded.source_lengths.max())))
    self._target_length = _rounded(encoded.longest)

  def __call__(self, step: int) -> Batch:
    examples = self._order[step]
    source = np.full(self.shape, -1, np.int32)
    targets = np.full((len(examples), self._target_length), -1, np.int32)
    for row, n in enumerate(examples):
      ids, answer = self._encoded.source(n), self._encoded.targets[n]
      source[row, : len(ids)], targets[row, : len(answer)] = ids, answer
    start = self._encoded.special[START]
    shifted = np.concatenate([np.full_like(targets[:, :1], start), targets[:, :-1]], axis=1)
    shifted = np.where(targets >= 0, shifted, -1)
    return Batch(
      _rows(shifted),
      source=_rows(source),
      predictions=Predictions(np.maximum(targets, 0), (targets >= 0).astype(np.float32)),
    )


def _rounded(length: int) -> int:
  return -(-length // _MULTIPLE) * _MULTIPLE


def _rows(ids: np.ndarray) -> Rows:
  """Rows from ids [B, T], -1 past their ends; segment 0 is padding."""
  positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  return Rows(np.maximum(ids, 0), positions, (ids >= 0).astype(np.int32))
