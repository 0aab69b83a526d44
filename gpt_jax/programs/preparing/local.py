"""The passes over a corpus on this machine, by a pool of processes."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.data import hold_out
from gpt_jax.data.pieces import Piece, batched
from gpt_jax.data.prints import prints
from gpt_jax.data.removal import Corpus
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.workers import Pool, map_in_order
from gpt_jax.programs.preparing.passes import Batch, Encoded, count_words, encode

Sizes = list[tuple[int, bool]]  # of pieces: characters, and whether they end their documents
Progress = Callable[[int, int], None]


class EncodedPiece(NamedTuple):
  """A piece of a document.

  Attributes:
    document: its number.
    piece: without its text.
    characters: of its text.
    encoded: its ids.
  """

  document: int
  piece: Piece
  characters: int
  encoded: Encoded


class LocalPasses:
  """The passes of prepare, each in the order of the documents."""

  def __init__(self, pool: Pool | None):
    self._pool = pool

  def prints(self, corpus: Corpus, near: bool, rows: str, add: Progress) -> Iterator[np.ndarray]:
    """See prints.prints; nothing has been removed from the corpus yet."""
    yield from prints(enumerate(corpus.sources), corpus.field, near, rows, self._pool, add)

  def words(
    self, corpus: Corpus, kind: str, share: float
  ) -> Iterator[tuple[Sizes, dict[str, int]]]:
    """The sizes and words of each batch; words are counted only if `kind` is set."""
    batches = batched(corpus.pieces())
    count: Callable[[Batch], dict[str, int]]
    count = functools.partial(count_words, kind, share) if kind else lambda batch: {}
    for batch, words in map_in_order(self._pool if kind else None, count, batches):
      yield [(len(piece.text), piece.last) for _, piece in batch], words

  def encoded(
    self, corpus: Corpus, folder: str, tokenizer: Tokenizer, sentences: bool, limit: float | None
  ) -> Iterator[EncodedPiece]:
    """The ids of all pieces.

    Args:
      folder: of the tokenizer.
      limit: where a single document is split into 0 and 1, in characters; None: it is not.
    """
    pieces = corpus.pieces()
    if limit is not None:
      pieces = hold_out.split_document(pieces, limit)
    work = functools.partial(encode, folder, tokenizer.hash, sentences)
    for batch, results in map_in_order(self._pool, work, batched(pieces)):
      for (document, piece), result in zip(batch, results, strict=True):
        yield EncodedPiece(document, piece._replace(text=""), len(piece.text), result)
