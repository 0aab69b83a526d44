"""Encoded examples packed into batches of one shape: several sequences per row."""

from collections.abc import Iterator

import numpy as np

from gpt_jax.batch import Batch, Labels, Predictions, Rows, Tags
from gpt_jax.errors import InputError
from gpt_jax.tasks.encoding import Encoded

_FILLER = -1  # in place of an example's index, where a batch has fewer


class PackedBatches:
  """The batches of a training run: shuffled by (seed, epoch), packed ahead, all of one `shape`
  (B, T). The last partial batch of an epoch is dropped (released train.py:387).
  """

  def __init__(
    self,
    encoded: Encoded,
    batch_size: int,
    seed: int,
    epochs: int,
    groups: int = 1,
    row_multiple: int = 1,
  ):
    """Plans every epoch.

    Args:
      batch_size: N, examples a batch.
      seed: with the number of the epoch, it decides the order of the examples.
      groups: parts that are computed apart (microbatches, pmap's devices): the examples and rows of
        a group are contiguous, and its ends are relative to its first row.
      row_multiple: the rows of a group are filled up to a multiple of this (devices along the
        batch); the layout of the others is the same for all values.
    """
    self.steps_per_epoch = encoded.whole_batches(batch_size)
    tokens = encoded.lengths.sum(axis=1)  # of an example, in all of its sequences
    orders = [
      _shuffled(tokens, batch_size, np.random.default_rng([seed, epoch])) for epoch in range(epochs)
    ]
    self._packing = _Packing(encoded, np.concatenate(orders), groups, row_multiple)
    self.shape = self._packing.shape

  def __call__(self, step: int) -> Batch:
    return self._packing(step)


def _shuffled(lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> np.ndarray:
  """A random division of an epoch into batches with about as many tokens each, int [M, N].

  The examples in order of length, cut into N strata of M: every batch draws one of each. One shape
  must hold the fullest batch, so this saves a tenth (MRPC) to a third (RACE) of the cells that a
  plain shuffle needs. Unlike length bucketing it leaves the gradients of batches unbiased.
  """
  M = len(lengths) // batch_size
  # The examples of the last partial batch are left out, others in each epoch.
  order = rng.permutation(len(lengths))[: M * batch_size]
  # [N, M]: N strata of similar lengths.
  strata = order[np.argsort(lengths[order], kind="stable")].reshape(batch_size, M)
  # [M, N]: each stratum is shuffled over the batches, then each batch within itself.
  return rng.permuted(rng.permuted(strata, axis=1).T, axis=1)


class OrderedBatches:
  """Every example once, in order, in batches of one shape; the last has fillers of weight 0."""

  def __init__(
    self,
    encoded: Encoded,
    batch_size: int,
    groups: int = 1,
    row_multiple: int = 1,
    few_shapes: bool = False,
  ):
    """As PackedBatches; few_shapes rounds the shape up to one of about ten, each compiled once, for
    callers with a few examples at a time, and never the same number.
    """
    self.steps = -(-len(encoded) // batch_size)
    order = np.full((self.steps, batch_size), _FILLER)
    order.reshape(-1)[: len(encoded)] = np.arange(len(encoded))
    self._packing = _Packing(encoded, order, groups, row_multiple, few_shapes)

  def __iter__(self) -> Iterator[Batch]:
    return map(self._packing, range(self.steps))

  def unpack(self, step: int, values: np.ndarray) -> list[np.ndarray]:
    """Values [B, T, ...] of a batch, as the values [t, ...] of the sequences of each example."""
    return self._packing.unpack(step, values)


class _Packing:
  """Where each sequence of each batch goes: M batches (of `groups` parts), all of one shape."""

  def __init__(
    self,
    encoded: Encoded,
    order: np.ndarray,
    groups: int,
    row_multiple: int,
    few_shapes: bool = False,
  ):
    steps, batch_size = order.shape
    if batch_size % groups:
      raise InputError(
        f"a batch of {batch_size} examples cannot be divided into {groups} equal parts"
      )
    self.encoded, self.order, self.groups = encoded, order, groups
    lengths = np.where(order[..., None] == _FILLER, 0, encoded.lengths[order])  # [M, N, C]
    longest = int(lengths.max())
    # [M groups, S]: each group is packed by itself, into rows of its own.
    parts = lengths.reshape(steps * groups, -1)
    shortest = -(-longest // 32) * 32
    candidates = list(range(shortest, encoded.context + 1, 32)) or [encoded.context]
    if few_shapes:
      # One row if everything fits into it, else the longest rows.
      whole = max(16, _power_of_two(int(parts.sum(axis=1).max())))
      candidates = [min(encoded.context, whole)]
    # All batches are laid out for each T: one shape must hold the fullest of them.
    plans = ((*_first_fit_decreasing(parts, T), T) for T in candidates)  # row, column, rows, T
    # The least arithmetic: 24 D^2 + 4 T D a cell and layer, for GPT-1's D = 768.
    row, column, rows, length = min(
      plans, key=lambda plan: plan[2] * plan[3] * (1 + plan[3] / (6 * 768))
    )
    multiples = -(-rows // row_multiple)
    if few_shapes:  # 1, 2, 3, 4, 6, 8, 12, …
      power = _power_of_two(multiples)
      multiples = power * 3 // 4 if power >= 4 and multiples <= power * 3 // 4 else power
    self.rows = row_multiple * multiples
    self.row, self.column = row.reshape(lengths.shape), column.reshape(lengths.shape)
    self.shape = (self.rows * groups, length)

  def __call__(self, step: int) -> Batch:
    examples, (rows, length) = self.order[step], self.shape
    # Segment 0 is padding.
    inputs, targets, positions, segments, types, tags = np.zeros((6, rows, length), np.int32)
    weights, tag_weights = np.zeros((2, rows, length), np.float32)
    sequence_types = None
    N, C = self.row[step].shape
    anchors = np.zeros((N, C), np.int32)  # 0 for fillers, which have no weight
    distributions = np.zeros((N, self.encoded.labels.shape[1]), np.float32)
    labeled = len(self.encoded) - self.encoded.unlabeled
    # Fillers of the last batch, and unlabeled examples, which are at the end, have no weight.
    counted = (examples != _FILLER) & (examples < labeled)
    for n, example in enumerate(examples):
      if example == _FILLER:
        continue
      distributions[n] = self.encoded.labels[example]
      present = self.encoded.kept[example].any(-1)  # [C]
      anchors[n, ~present] = -1
      for c in np.flatnonzero(present).tolist():
        ids = self.encoded.sequence(example, c)
        first, begin = self._first_row(n, N), self.column[step, n, c]
        row, end = first + self.row[step, n, c], begin + len(ids)
        inputs[row, begin:end] = ids  # after the sequences already in the row
        # The last token predicts nothing, not the start of the next sequence in the row. In GPT's
        # format delimiter and extract are targets, as in OpenAI's code, and start is none.
        targets[row, begin : end - 1] = ids[1:]  # the next token of the same sequence
        # An example's weights sum to 1, as openai/train.py:174-178: a mean over its tokens.
        weights[row, begin : end - 1] = counted[n] / (present.sum() * (len(ids) - 1))
        positions[row, begin:end] = np.arange(len(ids))
        # Attention stays among positions of one number.
        segments[row, begin:end] = 1 + n * C + c
        anchor = begin + self.encoded.format.anchor(ids)
        # Relative to the group's first row, which a microbatch or pmap's device sees as row 0.
        anchors[n, c] = (row - first) * length + anchor
        sequence_types = self.encoded.sequence_types(example, c)
        if sequence_types is not None:
          types[row, begin:end] = sequence_types
        if self.encoded.tags is not None:
          tags[row, begin:end] = self.encoded.sequence_tags(example, c)
          tag_weights[row, begin:end] = tags[row, begin:end] >= 0
    batch = Batch(
      Rows(inputs, positions, segments, None if sequence_types is None else types),
      predictions=Predictions(targets, weights),
      labels=Labels(anchors, distributions, counted.astype(np.float32)),
      tags=None if self.encoded.tags is None else Tags(np.maximum(tags, 0), tag_weights),
    )
    return self.encoded.finish(batch, examples)

  def unpack(self, step: int, values: np.ndarray) -> list[np.ndarray]:
    examples, lengths, unpacked = self.order[step], self.encoded.lengths, []
    for n, example in enumerate(examples):
      if example == _FILLER:
        continue
      parts = []
      for c, length in enumerate(lengths[example].tolist()):
        row = self._first_row(n, len(examples)) + self.row[step, n, c]
        begin = self.column[step, n, c]
        parts.append(values[row, begin : begin + length])  # empty where there is no sequence
      unpacked.append(np.concatenate(parts))
    return unpacked

  def _first_row(self, n: int, count: int) -> int:
    """The first row of the group of example n of `count`."""
    return n // (count // self.groups) * self.rows


def _power_of_two(number: int) -> int:
  """The smallest power of two that is at least `number`."""
  return 1 << max(0, number - 1).bit_length()


def _first_fit_decreasing(
  lengths: np.ndarray, row_length: int
) -> tuple[np.ndarray, np.ndarray, int]:
  """Packs M batches, each on its own: the longest sequence first, into the first row with room.

  Returns (row [M, S], column [M, S], the most rows that any batch needs) of lengths [M, S].
  """
  M, S = lengths.shape
  # Stable, so that sequences of one length are placed alike whatever sort NumPy chooses.
  order = np.argsort(-lengths, axis=1, kind="stable")
  free = np.full((M, S), row_length, np.int32)
  row, column = np.zeros((2, M, S), np.int32)
  batch = np.arange(M)
  for i in range(S):
    sequence = order[:, i]
    needed = lengths[batch, sequence]
    if not needed.any():  # the rest are no sequences
      break
    # The first row with room, of each batch; i sequences fill at most i rows.
    place = np.argmax(free[:, : i + 1] >= needed[:, None], axis=1)
    row[batch, sequence] = place
    column[batch, sequence] = row_length - free[batch, place]
    free[batch, place] -= needed  # one row in each of the batches
  return row, column, int(row.max()) + 1
