"""The train and valid splits: which documents are held out, and the token files of both."""

import array
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpt_jax.data import passes
from gpt_jax.data.cleaning import cleaner
from gpt_jax.data.passes import Encoded
from gpt_jax.data.pieces import Piece
from gpt_jax.data.sources.source import Source, as_json
from gpt_jax.data.token_file import TokenWriter
from gpt_jax.data.tokenizers.base import Tokenizer


def held_out(sizes: Sequence[int], n_documents: int, share: float) -> Callable[[int], bool]:
  """Chooses the validation documents, at least one and never all; a predicate on their numbers.

  `sizes`: characters of the first passes.FEW documents; `share`: of them, to hold out.
  """
  if n_documents > passes.FEW:
    # Only the first sizes are known, so each document is chosen by its own draw alone; one in any
    # case, so that the validation set is not empty.
    first = min(range(passes.FEW), key=_draw)
    return lambda document: document == first or _draw(document) < share
  target = share * sum(sizes)
  chosen, size = set(), 0
  # In random order every document that still fits, so that the share is not exceeded.
  for document in sorted(range(n_documents), key=_draw):
    if size + sizes[document] <= target:
      chosen.add(document)
      size += sizes[document]
  if size < target / 2:  # at most a stub of a few words fits: the nearest that leaves most of them
    possible = [n for n in range(n_documents) if sizes[n] <= sum(sizes) / 2]
    nearest = min(possible, key=lambda n: _times(sizes[n], target))
    if _times(sizes[nearest], target) < _times(size, target):
      chosen = {nearest}
  return chosen.__contains__


def _times(size: float, target: float) -> float:
  """How many times too large or too small a size is."""
  return max(size, target) / max(min(size, target), 1e-9)


def _draw(document: int) -> float:
  """A random-looking number in [0, 1)."""
  return int.from_bytes(hashlib.sha256(b"%d" % document).digest()[:8], "big") / 2**64


class SplitWriter:
  """Writes one split, putting the pieces of each document together again."""

  def __init__(
    self,
    folder: str,
    split: str,
    tokenizer: Tokenizer,
    sentences: bool = False,
    shard_tokens: int = 0,
  ):
    self.tokens = TokenWriter(folder, split, tokenizer.vocab_size, sentences, shard_tokens)
    self._tokenizer = tokenizer
    self._length = 0  # tokens of the current document
    self._joint = ""  # between its last piece that has tokens and the next
    self._digest = hashlib.blake2b(digest_size=8)  # of its ids
    self.digests = array.array("Q")  # of all documents with tokens

  def add(self, piece: Piece, encoded: Encoded) -> None:
    ids, n_bytes, n_words, ends = encoded
    if self._length and len(ids):
      # Pieces are encoded one by one: the line break between two of them is added here.
      line_id = self._tokenizer.line_id
      if self._joint == "\n" and line_id is not None:
        ids = np.concatenate([[line_id], ids])
        ends = None if ends is None else ends + 1
      n_bytes += len(self._joint)
    if ends is not None and piece.joint != "\n" and not piece.last:
      ends = ends[:-1]  # its last sentence goes on in the next piece
    self.tokens.add(ids, n_bytes, n_words, last=piece.last, sentence_ends=ends)
    if len(ids):
      self._length += len(ids)
      self._joint = piece.joint
      self._digest.update(np.asarray(ids, np.int32).tobytes())
    if piece.last:
      if self._length:
        self.digests.frombytes(self._digest.digest())
      self._length, self._digest = 0, hashlib.blake2b(digest_size=8)

  def close(self, sources: Sequence[Source]) -> dict[str, Any]:
    """Completes the files and returns the header."""
    unknown = self.tokens.counts[self._tokenizer.byte_fallback].sum()
    return self.tokens.close(
      unknown_share=float(unknown / self.tokens.n_tokens),
      tokenizer_hash=self._tokenizer.hash,
      normalizer=self._tokenizer.normalizer,
      cleaner=cleaner(),
      sources=as_json(sources),
    )


def describe_repeated(writers: dict[str, SplitWriter]) -> str:
  """A warning, with a remedy, if held-out documents are in the training text, too; else ""."""
  train, valid = (np.frombuffer(writers[split].digests, np.uint64) for split in ("train", "valid"))
  if not (repeated := int(np.isin(valid, train).sum())):
    return ""
  return (
    f"warning: held-out documents are in the training text, too: {repeated:,} of {len(valid):,}; "
    "the loss on held-out text flatters, and deduplicate=exact keeps one of equal documents"
  )


def table(headers: dict[str, dict[str, Any]]) -> str:
  """The closing table, one column per split."""
  columns = []
  for split, header in headers.items():
    n_tokens, n_words = header["n_tokens"], header["n_words"]
    columns.append(
      {
        "": split,
        "documents": f"{header['n_documents']:,}",
        "words": f"{n_words:,}",
        "tokens": f"{n_tokens:,}",
        **({"sentences": f"{header['n_sentences']:,}"} if "n_sentences" in header else {}),
        "bytes per token": f"{header['n_bytes'] / n_tokens:.3f}",
        "tokens per word": f"{n_tokens / max(1, n_words):.3f}",
        "unigram entropy, nats per token": f"{header['unigram_entropy']:.3f}",
        "unknown or spelled in bytes": f"{header['unknown_share']:.4%}",
      }
    )
  lines = []
  for label in columns[0]:
    lines.append(f"{label:34}" + "".join(f"{column[label]:>14}" for column in columns))
  return "\n".join(lines)
