"""Fingerprints of documents: fixed-size records from which it is decided which ones to remove."""

import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.apps.corpus.contamination import LONGEST, NOTHING, Overlap, best_overlap, load_rows
from gpt_jax.apps.corpus.duplicates import PERMUTATIONS, signature
from gpt_jax.apps.corpus.word_grams import normalized_words, word_hashes
from gpt_jax.data.cleaning import clean_piece
from gpt_jax.data.pieces import Piece, batched, read_pieces
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources.source import Source
from gpt_jax.data.workers import Pool, map_in_order

# rule, row and score: see contamination.Overlap.
PRINT = np.dtype(
  [
    ("source", "<i4"),
    ("number", "<i8"),  # in its source
    ("digest", "<u8", (2,)),  # of the cleaned text
    ("rule", "<i4"),
    ("row", "<i4"),
    ("score", "<f8"),
    ("signature", "<u4", (PERMUTATIONS,)),
  ]
)
_BEFORE = 2000  # characters in which the words are looked for that come before a piece


class _Place(NamedTuple):
  """Where a piece is: the numbers of its source and document, and the text before it."""

  source: int
  number: int
  before: str


class _PiecePrint(NamedTuple):
  digest: bytes
  signature: np.ndarray
  overlap: Overlap


def prints(
  sources: Iterable[tuple[int, Source]],
  field: str,
  near: bool,
  rows: str,
  pool: Pool | None,
  progress: Progress | None = None,
) -> Iterator[np.ndarray]:
  """A record of type PRINT for each document, in order.

  Args:
    sources: with their numbers.
    near: whether signatures are needed.
    rows: a file of evaluation rows, or "".
    progress: told the characters of each piece.
  """
  made: list[_PiecePrint] = []
  inspect = functools.partial(_inspect, near, rows)
  for batch, results in map_in_order(pool, inspect, batched(_placed(sources, field))):
    for (place, piece), result in zip(batch, results, strict=True):
      made.append(result)
      if progress:
        progress.add(len(piece.text))
      if piece.last:
        yield _joined(place, made)
        made = []


def _placed(sources: Iterable[tuple[int, Source]], field: str) -> Iterator[tuple[_Place, Piece]]:
  for source, (name, _) in sources:
    number, before = 0, ""
    for piece in read_pieces(name, field=field):
      yield _Place(source, number, before), piece
      before = "" if piece.last else piece.text[-_BEFORE:]
      number += piece.last


def _inspect(near: bool, rows: str, batch: list[tuple[_Place, Piece]]) -> list[_PiecePrint]:
  """The pieces of a batch, in a worker."""
  result = []
  for place, piece in batch:
    text = clean_piece(piece.text, piece.width)
    before = normalized_words(place.before)[-LONGEST:]
    hashes = word_hashes(before + normalized_words(text))
    result.append(
      _PiecePrint(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(),
        signature(hashes) if near else np.zeros(PERMUTATIONS, np.uint32),
        load_rows(rows).find(hashes) if rows else NOTHING,
      )
    )
  return result


def _joined(place: _Place, pieces: list[_PiecePrint]) -> np.ndarray:
  record = np.zeros((), PRINT)
  digests = b"".join(piece.digest for piece in pieces)
  overlap = functools.reduce(best_overlap, (piece.overlap for piece in pieces))
  record["source"], record["number"] = place.source, place.number
  digest = hashlib.blake2b(digests, digest_size=16).digest()
  record["digest"] = np.frombuffer(digest, "<u8")
  record["rule"], record["row"], record["score"] = overlap
  record["signature"] = functools.reduce(np.minimum, (piece.signature for piece in pieces))
  return record
