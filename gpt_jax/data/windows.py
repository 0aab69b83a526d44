"""Training batches from a token file: rows are a pure function of (seed, step)."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np

from gpt_jax.config import option, register, validate
from gpt_jax.data.draws import hash64, permute
from gpt_jax.data.token_file import TokenFile
from gpt_jax.errors import InputError

PAD = -1  # in rows: past the end of a document


@register("windows")
@dataclasses.dataclass(frozen=True)
class WindowsConfig:
  """How a token file becomes rows."""

  batch_size: int = option(64, "rows in a batch", unit="rows", low=1)
  length: int = option(512, "tokens predicted in a row, T", unit="tokens", low=1)
  sampling: Literal["within_documents", "across_documents", "random_offset"] = option(
    "within_documents",
    "within_documents: shuffled spans that never cross a document; across_documents: the same over all the text as "
    "one; random_offset: any place in the text, with replacement",
  )

  def __post_init__(self):
    validate(self)


class Windows:
  """The training batches of a token file: step -> rows, int32 [B, T + 1], -1 past the end of a
  document.

  Each epoch cuts every document (or the whole text) into spans of T + 1 tokens at stride T, from a
  new random phase, so that neighbours share one token and each token but a document's first is a
  target in some epoch; the spans come in a new random order. A document shorter than T + 1 is one
  row, filled up with -1. Epochs follow each other without a gap: a batch may hold the end of one
  and the beginning of the next. The paper: "randomly sampled, contiguous sequences".
  """

  def __init__(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0):
    """Raises InputError where the text has no window."""
    self.tokens = tokens
    self.config = config
    self.seed = seed
    stride = config.length
    offsets = tokens.offsets
    if config.sampling != "within_documents":
      if tokens.n_tokens < stride + 1:
        raise InputError(
          f"{tokens.path}.bin: {tokens.n_tokens} tokens are less than one window of length + 1 = {stride + 1}; "
          "use a smaller length, more text or, of held-out text, a larger --valid_share when it is prepared"
        )
      offsets = np.array([0, tokens.n_tokens])
    self._begin = offsets[:-1]
    self._size = np.diff(offsets)
    spans = np.where(self._size >= 2, np.maximum(1, (self._size - 1) // stride), 0)
    self._last = np.cumsum(spans)  # the spans of documents 0 to d, added up
    self.spans_per_epoch = int(self._last[-1]) if len(spans) else 0
    if not self.spans_per_epoch:
      raise InputError(
        f"{tokens.path}.bin: no document has two tokens, so there is nothing to predict; use more text"
      )

  @property
  def steps_per_epoch(self) -> int:
    """Batches until every span was seen; the last one may begin the next epoch."""
    return -(-self.spans_per_epoch // self.config.batch_size)

  def __call__(self, step: int, rows: slice = slice(None)) -> np.ndarray:
    """The batch of a step, or only some of its rows (a host's share)."""
    numbers = (step * self.config.batch_size + np.arange(self.config.batch_size, dtype=np.int64))[
      rows
    ]
    if self.config.sampling == "random_offset":
      places = self.tokens.n_tokens - self.config.length
      begins = (hash64(numbers, self.seed) % np.uint64(places)).astype(np.int64)
      return self._read(begins, np.full(len(begins), self.config.length + 1))
    begins, counts = np.empty_like(numbers), np.empty_like(numbers)
    epochs = numbers // self.spans_per_epoch
    for epoch in np.unique(epochs):
      here = epochs == epoch
      begins[here], counts[here] = self._spans(int(epoch), numbers[here] % self.spans_per_epoch)
    return self._read(begins, counts)

  def _spans(self, epoch: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the spans at these places of an epoch's order begin, and how many tokens they have."""
    stride = self.config.length
    spans = permute(places, self.spans_per_epoch, self.seed, epoch)
    document = np.searchsorted(self._last, spans, side="right")
    size = self._size[document]
    before = np.where(document > 0, self._last[document - 1], 0)
    slack = np.maximum(0, (size - 1) - np.maximum(1, (size - 1) // stride) * stride)
    phase = (hash64(document, self.seed, epoch, 1) % (slack + 1).astype(np.uint64)).astype(np.int64)
    begin = phase + (spans - before) * stride
    return self._begin[document] + begin, np.minimum(stride + 1, size - begin)

  def _read(self, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    rows = np.full((len(begins), self.config.length + 1), PAD, np.int32)
    for row, begin, count in zip(rows, begins.tolist(), counts.tolist(), strict=True):
      row[:count] = self.tokens.read(begin, count)
    return rows

  def sequential(
    self, batch_size: int | None = None, rows: slice = slice(None)
  ) -> Iterator[np.ndarray]:
    """The whole file in order, for evaluation; every token but a document's first is a target
    exactly once.

    Rows as in training, but from the document's first token to its last; the last batch is filled
    up with rows of -1. With sampling other than within_documents the text is one document.
    """
    size, stride = batch_size or self.config.batch_size, self.config.length
    last = np.cumsum(-(-np.maximum(0, self._size - 1) // stride))
    total = int(last[-1])
    for first in range(0, total, size):
      spans = np.arange(first, first + size)[rows]
      document = np.minimum(np.searchsorted(last, spans, side="right"), len(last) - 1)
      begin = (spans - np.where(document > 0, last[document - 1], 0)) * stride
      count = np.where(spans < total, np.minimum(stride + 1, self._size[document] - begin), 0)
      yield self._read(self._begin[document] + begin, count)
