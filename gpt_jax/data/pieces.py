"""Documents in pieces, so that memory does not grow with their length."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from gpt_jax.data.cleaning import continues, wrap_width
from gpt_jax.data.sources.source import Source, chunked_documents

OVERHEAD = 100  # characters of a piece in a batch, so that short ones make finite batches
PIECE_SIZE = 1 << 19  # characters; longer documents are read in pieces of about this size
Place = TypeVar("Place")


class Piece(NamedTuple):
  """A stretch of a document."""

  text: str  # as read, with "\n" for every line end
  width: int | None  # at which its lines are wrapped, see cleaning.wrap_width
  # What separates it, once clean, from the document's next piece: "\n" between paragraphs, " "
  # between words, "" within a word.
  joint: str
  last: bool  # whether it ends its document


class Corpus(NamedTuple):
  """The documents of all sources without those that are left out."""

  sources: Sequence[Source]
  field: str  # for sources of rows, the one that holds the text
  removed: np.ndarray  # int64 [R, 2], source and number in it of those left out, ascending

  def pieces(self) -> Iterator[tuple[int, Piece]]:
    """The pieces of all documents, each with the number of its document among those kept."""
    document = skipped = 0
    for source_number, source in enumerate(self.sources):
      number = 0  # in its source
      for piece in read_pieces(source.name, field=self.field):
        place = (source_number, number)
        leave_out = skipped < len(self.removed) and (*self.removed[skipped],) == place
        if not leave_out:
          yield document, piece
          document += piece.last
        elif piece.last:
          skipped += 1
        number += piece.last


def read_pieces(name: str, *, field: str = "text") -> Iterator[Piece]:
  """The pieces of the documents of one Source; blank documents have none."""
  for chunks in chunked_documents(name, field):
    rest, begun = "", False
    for chunk in _split(chunks):
      if len(rest) >= PIECE_SIZE:
        width = wrap_width(rest)  # per piece, because a file may hold several books
        end, joint = cut(rest, PIECE_SIZE, width)
        yield Piece(rest[:end], width, joint, last=False)
        rest, begun = rest[end:], True
      rest += chunk if begun or rest else chunk.lstrip("\ufeff \t\r\n")
    if begun or rest.strip():  # also without form feeds and other white space
      yield Piece(rest.rstrip(), wrap_width(rest), joint="", last=True)


def batched(pieces: Iterable[tuple[Place, Piece]]) -> Iterator[list[tuple[Place, Piece]]]:
  """Pieces in lists of about PIECE_SIZE characters, worth sending to another process."""
  batch, size = [], 0
  for document, piece in pieces:
    batch.append((document, piece))
    size += len(piece.text) + OVERHEAD
    if size >= PIECE_SIZE:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def cut(text: str, limit: int, width: int | None, lowest: int = 0) -> tuple[int, str]:
  """The last position up to `limit` where a paragraph ends, or else a word; and the joint there.

  A paragraph that ends at `lowest` or before is too far away.
  """
  end = text.rfind("\n", 0, limit)
  for _ in range(1000):  # lines; a longer paragraph is cut between words
    if end <= lowest:
      break
    begin = text.rfind("\n", 0, end)
    following = text[end + 1 : end + 1000].partition("\n")[0]
    if width is None or not continues(text[begin + 1 : end], following, width):
      return end + 1, "\n"
    end = begin
  space = max(text.rfind(" ", 0, limit), text.rfind("\n", 0, limit), text.rfind("\t", 0, limit))
  return (space + 1, " ") if space > 0 else (limit, "")


def split_document(
  pieces: Iterable[tuple[int, Piece]], limit: float, slack: float = math.inf
) -> Iterator[tuple[int, Piece]]:
  """A single document as two, 0 and 1, split after the last paragraph before character `limit`, or
  after the last word if none ends in the `slack` characters before it.
  """
  offset, number = 0, 0
  for _, piece in pieces:
    if number == 0 and offset + len(piece.text) > limit:
      lowest = int(max(0, limit - offset - slack))
      end, _ = cut(piece.text, max(1, int(limit - offset)), piece.width, lowest)
      yield 0, piece._replace(text=piece.text[:end], joint="", last=True)
      piece, number = piece._replace(text=piece.text[end:]), 1
    offset += len(piece.text)
    yield number, piece


def _split(chunks: Iterable[str]) -> Iterator[str]:
  """The chunks, none longer than PIECE_SIZE."""
  for chunk in chunks:
    for begin in range(0, len(chunk), PIECE_SIZE):
      yield chunk[begin : begin + PIECE_SIZE]
