"""Batches of text-to-text examples for an encoder-decoder: an input, and the answer to predict."""

from typing import cast

import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.text import EncodedText
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.formats import START

_MULTIPLE = 8  # of a row's length


class EncoderDecoderBatches:
  """An example per row: the input for the encoder, the answer shifted right for the decoder.

  Attributes:
    steps_per_epoch: the last partial batch is dropped.
    shape: of the encoder's rows, (B, S).
  """

  def __init__(self, encoded: Encoded, batch_size: int, seed: int, epochs: int):
    """The arguments are those of PackedBatches.

    Raises:
      InputError: fewer examples than one batch.
    """
    self.steps_per_epoch = len(encoded) // batch_size
    if not self.steps_per_epoch:
      raise InputError(
        f"{len(encoded)} examples are fewer than one batch; batch_size is {batch_size}"
      )
    self._encoded = cast(EncodedText, encoded)
    count = self.steps_per_epoch * batch_size
    orders = []
    for epoch in range(epochs):
      order = np.random.default_rng([seed, epoch]).permutation(len(encoded))[:count]
      orders.append(order.reshape(self.steps_per_epoch, batch_size))
    self._order = np.concatenate(orders)
    self.shape = (batch_size, _rounded(int(self._encoded.source_lengths.max())))
    self._target_length = _rounded(self._encoded.longest)

  def __call__(self, step: int) -> Batch:
    examples = self._order[step]
    source = np.full(self.shape, -1, np.int32)
    targets = np.full((len(examples), self._target_length), -1, np.int32)
    for row, n in enumerate(examples):
      ids, answer = self._encoded.source(n), self._encoded.targets[n]
      source[row, : len(ids)], targets[row, : len(answer)] = ids, answer
    start = self._encoded.special[START]
    # [B, T]: the start token, then the answer without its last token.
    shifted = np.concatenate([np.full_like(targets[:, :1], start), targets[:, :-1]], axis=1)
    # As many inputs as targets: the end token is predicted and never read.
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
