"""Windows of a token file as rows of ids; training rows are a pure function of (seed, step)."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.config import Config, option, register
from gpt_jax.data.draws import Draw, hash64, permute
from gpt_jax.data.token_file import TokenFile
from gpt_jax.errors import InputError

PAD = -1  # in rows: past the end of a document


@register("windows")
@dataclasses.dataclass(frozen=True)
class WindowsConfig(Config):
  """How a token file becomes rows."""

  batch_size: int = option(64, "rows in a batch", unit="rows", low=1, high=10**6)
  length: int = option(512, "tokens predicted in a row, T", unit="tokens", low=1, high=10**6)
  sampling: str = option(
    "within_documents",
    "within_documents: shuffled spans that never cross a document; across_documents: the same, "
    "with the whole text as one document",
    choices=("within_documents", "across_documents"),
  )
  weights: tuple[float, ...] = option(
    (),
    "of several texts: the share of rows from each, at a temperature of 1; empty: by their tokens",
  )
  temperature: float = option(
    1.0, "of several texts: above 1 their shares, to the power of 1/this, are more equal", low=1.0
  )


class Spans(NamedTuple):
  """The stretches of text of some rows; int64 [B] each."""

  begins: np.ndarray  # offset of the first token
  counts: np.ndarray  # tokens, at most T + 1
  numbers: np.ndarray  # index of the span in its epoch, before shuffling
  variants: np.ndarray  # the epoch or, with `copies`, the copy; decides where the spans begin


class Windows:
  """The rows of a token file by step: int32 [B, T + 1], padded with -1 after the end of a document.

  Each epoch cuts every document (or the whole text) into spans of T + 1 tokens with stride T, from
  a new random phase: neighbors share one token, and every token except a document's first is a
  target in some epoch. The spans come in a new random order. A document shorter than T + 1 is one
  padded row. A batch may hold the end of one epoch and the beginning of the next. The paper, 4.1:
  "randomly sampled, contiguous sequences".

  With `copies` each text is prepared so many times and no more, as by BERT's dupe_factor: from
  epoch `copies` on, the spans of an epoch and the noise of its rows are those of `copies` epochs
  before. Only their order is new.
  """

  def __init__(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0, copies: int = 0):
    self.tokens = tokens
    self.config = config
    self.seed = seed
    self.copies = copies
    # T inputs and T targets shifted by one: a row is T + 1 tokens, and neighbors overlap by one.
    stride = config.length
    offsets = tokens.offsets
    if config.sampling == "across_documents":
      if tokens.n_tokens < stride + 1:
        raise InputError(
          f"{tokens.path}.bin: {tokens.n_tokens} tokens are less than one window of length + 1 = "
          f"{stride + 1}; use a smaller length, more text or, for held-out text, prepare it with a "
          "larger valid_share"
        )
      offsets = np.array([0, tokens.n_tokens])
    self._begin = offsets[:-1]  # [documents], the first token of each
    self._size = np.diff(offsets)  # [documents], in tokens
    # A document of n tokens has n - 1 targets. What is left of a multiple of T is skipped in this
    # epoch, but the phase (see _located) differs in each, so no target is skipped in all of them.
    spans = np.where(self._size >= 2, np.maximum(1, (self._size - 1) // stride), 0)
    self._span_ends = np.cumsum(spans)  # one past the last span of each document
    self.spans_per_epoch = int(self._span_ends[-1]) if len(spans) else 0
    if not self.spans_per_epoch:
      raise InputError(
        f"{tokens.path}.bin: no document has two tokens, so there is nothing to predict; use more "
        "text"
      )

  @property
  def steps_per_epoch(self) -> int:
    """Batches until every span has been seen; the last one may reach into the next epoch."""
    return -(-self.spans_per_epoch // self.config.batch_size)

  def __call__(self, step: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """The rows of a step, or only some of them (a host's share)."""
    spans = self._spans(step, rows)
    return self._read(spans.begins, spans.counts)

  def draw(self, step: int, rows: np.ndarray) -> Draw:
    """The noise of these rows: by (seed, step, row) or, with `copies`, by span and copy."""
    if not self.copies:
      return Draw(self.seed, step, rows)
    # Without the step: a copy has the same masks whenever it returns.
    spans = self._spans(step, rows)
    return Draw(self.seed, 0, spans.numbers * self.copies + spans.variants)

  def _spans(self, step: int, rows: slice | np.ndarray) -> Spans:
    # Rows are numbered through the whole run. A row depends on its number and the seed alone: any
    # process can make any rows of any step, and a resumed run needs no iterator state.
    first = step * self.config.batch_size
    numbers = np.arange(first, first + self.config.batch_size, dtype=np.int64)[rows]
    epochs = numbers // self.spans_per_epoch  # one batch may reach into the next epoch
    begins, counts, spans = (np.empty_like(numbers) for _ in range(3))
    variants = epochs % self.copies if self.copies else epochs
    # One turn, or more where epochs meet in this batch: each has its own order and phases.
    for epoch in np.unique(epochs):
      mask = epochs == epoch
      ranks = numbers[mask] % self.spans_per_epoch
      # A permutation in constant memory, in place of a shuffled index of the whole text.
      spans[mask] = permute(ranks, self.spans_per_epoch, self.seed, int(epoch))
      variant = int(variants[mask][0])
      begins[mask], counts[mask] = self._located(spans[mask], variant)
    return Spans(begins, counts, spans, variants)

  def _located(self, spans: np.ndarray, variant: int) -> tuple[np.ndarray, np.ndarray]:
    """The offsets and lengths of spans."""
    stride = self.config.length
    # "right", because an end is the number of the next document's first span.
    document = np.searchsorted(self._span_ends, spans, side="right")
    size = self._size[document]
    first_span = np.where(document > 0, self._span_ends[document - 1], 0)
    # The spans of a document cover a multiple of stride targets; the phase says how many of the
    # remaining ones (the slack) come before the first span.
    predicted = np.maximum(1, (size - 1) // stride) * stride
    slack = np.maximum(0, (size - 1) - predicted)
    # One phase per document and epoch: its spans have to stay T apart.
    noise = hash64(document, self.seed, variant, 1)
    phase = (noise % (slack + 1).astype(np.uint64)).astype(np.int64)
    begin = phase + (spans - first_span) * stride
    return self._begin[document] + begin, np.minimum(stride + 1, size - begin)  # fewer at its end

  def _read(self, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    rows = np.full((len(begins), self.config.length + 1), PAD, np.int32)
    self.tokens.fetch(zip(begins.tolist(), (begins + counts).tolist(), strict=True))
    for row, begin, count in zip(rows, begins.tolist(), counts.tolist(), strict=True):
      row[:count] = self.tokens.read(begin, count)  # the rest stays PAD
    return rows

  def sequential(self, rows: slice | np.ndarray = slice(None)) -> Iterator[np.ndarray]:
    """The file in order, for evaluation: every token except a document's first is a target once.

    Rows are as in training, but cover each document completely. The last batch is padded with rows
    of -1. With sampling across_documents the text is one document.
    """
    size, stride = self.config.batch_size, self.config.length
    # Rounded up and without a phase: a document's last row may be short, but no token is skipped.
    span_ends = np.cumsum(-(-np.maximum(0, self._size - 1) // stride))
    total = int(span_ends[-1])  # rows of the whole file
    for first in range(0, total, size):
      spans = np.arange(first, first + size)[rows]
      document = np.searchsorted(span_ends, spans, side="right")
      document = np.minimum(document, len(span_ends) - 1)  # for the padding of the last batch
      first_span = np.where(document > 0, span_ends[document - 1], 0)
      begin = (spans - first_span) * stride
      count = np.where(spans < total, np.minimum(stride + 1, self._size[document] - begin), 0)
      yield self._read(self._begin[document] + begin, count)

  def shuffled(self, rows: slice | np.ndarray = slice(None)) -> Iterator[np.ndarray]:
    """The full batches of the first epoch, for a loss that compares the texts of a batch.

    In the file's order they would be of one document. Without a full batch: as `sequential`.
    """
    if self.spans_per_epoch < self.config.batch_size:  # too few texts to fill one batch
      yield from self.sequential(rows)
    for step in range(self.spans_per_epoch // self.config.batch_size):
      yield self(step, rows)
