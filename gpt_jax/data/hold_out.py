"""The validation split: documents drawn by a hash of their number, or the end of a single one."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpt_jax.data.pieces import Piece, cut

FEW = 10_000  # documents; up to this many are chosen by size, more by their draw alone


def held_out(sizes: Sequence[int], n_documents: int, share: float) -> Callable[[int], bool]:
  """Chooses the validation documents, at least one and never all; a predicate on their numbers.

  Args:
    sizes: characters of the first FEW documents.
    n_documents: at least two.
    share: share of the characters to hold out.
  """
  if n_documents > FEW:
    first = min(range(FEW), key=_draw)
    return lambda document: document == first or _draw(document) < share
  target = share * sum(sizes)
  chosen, size = set(), 0
  for document in sorted(range(n_documents), key=_draw):
    if size + sizes[document] <= target:
      chosen.add(document)
      size += sizes[document]
  if not chosen:
    chosen.add(min(range(n_documents), key=lambda document: abs(sizes[document] - target)))
  return chosen.__contains__


def share_of(sizes: Sequence[int], is_valid: Callable[[int], bool]) -> float:
  """The share of the characters that is in documents for validation."""
  held_out = sum(size for document, size in enumerate(sizes) if is_valid(document))
  return held_out / max(1, sum(sizes))


def split_document(
  pieces: Iterable[tuple[int, Piece]], limit: float
) -> Iterator[tuple[int, Piece]]:
  """A single document as two, 0 and 1, split after the last paragraph before character `limit`."""
  offset, number = 0, 0
  for _, piece in pieces:
    if number == 0 and offset + len(piece.text) > limit:
      end, _ = cut(piece.text, max(1, int(limit - offset)), piece.width)
      yield 0, piece._replace(text=piece.text[:end], joint="", last=True)
      piece, number = piece._replace(text=piece.text[end:]), 1
    offset += len(piece.text)
    yield number, piece


def _draw(document: int) -> float:
  """A random-looking number in [0, 1)."""
  return int.from_bytes(hashlib.sha256(b"%d" % document).digest()[:8], "big") / 2**64
