"""The pass before all others: which documents to remove, and the ledger that says why."""

import collections
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.apps.corpus import duplicates
from gpt_jax.apps.corpus.contamination import (
  MAX_WORDS,
  NOTHING,
  RULES,
  Overlap,
  best_overlap,
  evaluation_rows,
  index_rows,
  load_rows,
)
from gpt_jax.data.cleaning import clean_piece
from gpt_jax.data.passes import LEDGER, Passes, Pool, map_in_order
from gpt_jax.data.pieces import Corpus, Piece, batched, read_pieces
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources.source import plain_size
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file

# rule, row and score: see contamination.Overlap.
PRINT = np.dtype(
  [
    ("source", "<i4"),
    ("number", "<i8"),  # in its source
    ("digest", "<u8", (2,)),  # of the cleaned text
    ("rule", "<i4"),
    ("row", "<i4"),
    ("score", "<f8"),
    ("signature", "<u4", (duplicates.PERMUTATIONS,)),
  ]
)
_BEFORE = 2000  # characters in which the words are looked for that come before a piece


class _Place(NamedTuple):
  source: int
  number: int
  before: str


def _placed(corpus: Corpus) -> Iterator[tuple[_Place, Piece]]:
  for source, (name, _) in enumerate(corpus.sources):
    number, before = 0, ""
    for piece in read_pieces(name, field=corpus.field):
      yield _Place(source, number, before), piece
      before = "" if piece.last else piece.text[-_BEFORE:]
      number += piece.last


def _inspect(near: bool, rows: str, batch: list[tuple[_Place, Piece]]) -> np.ndarray:
  """A record of type PRINT for each piece of a batch, in a worker."""
  records = np.zeros(len(batch), PRINT)
  for record, (place, piece) in zip(records, batch, strict=True):
    text = clean_piece(piece.text, piece.width)
    before = duplicates.normalized_words(place.before)[-MAX_WORDS:]
    hashes = duplicates.word_hashes(before + duplicates.normalized_words(text))
    record["digest"] = _digest(text.encode("utf-8", "surrogatepass"))
    if near:  # of texts without words, such as emoji, only equal ones are alike
      record["signature"] = duplicates.signature(hashes if len(hashes) else record["digest"])
    record["rule"], record["row"], record["score"] = (
      load_rows(rows).find(hashes) if rows else NOTHING
    )
  return records


def _digest(content: bytes) -> np.ndarray:
  return np.frombuffer(hashlib.blake2b(content, digest_size=16).digest(), "<u8")


class Removing:
  """What a run removes: evaluation rows with their saved index, and `settings`, the JSON with the
  index's hash by which the run knows which documents it removes.
  """

  def __init__(self, deduplicate: str, decontaminate: str, data: str):
    self.exact, self.near = deduplicate != "none", deduplicate == "near"
    if self.near:
      duplicates.new_minhash()
    self.rows = evaluation_rows(decontaminate, data)
    self.index = index_rows(row.text for row in self.rows).save() if self.rows else b""
    self.settings = {
      "deduplicate": deduplicate,
      "decontaminate": decontaminate,
      "evaluation_rows": hashlib.sha256(self.index).hexdigest()[:16] if self.index else "",
    }


class RemovingPasses(Passes):
  """The passes over the documents that are left once some are removed."""

  def __init__(self, removing: Removing, pool: Pool | None):
    super().__init__(pool)
    self._removing = removing

  def removed(self, corpus: Corpus, folder: str) -> np.ndarray:
    """Writes the ledger to a folder; returns which documents to remove, see Corpus."""
    removing = self._removing
    if not removing.exact and not removing.rows:
      return super().removed(corpus, folder)
    with (
      Progress("comparing documents", plain_size(corpus.sources), "characters") as progress,
      tempfile.TemporaryDirectory(dir=folder) as temporary,
    ):
      rows = ""
      if removing.index:
        # Workers keep what they read under a name, and another run may have other rows.
        rows = os.path.join(temporary, f"rows-{removing.settings['evaluation_rows']}.npz")
        with open(rows, "wb") as file:
          file.write(removing.index)
      path = os.path.join(temporary, "prints.bin")
      with open(path, "wb") as file:
        for record in self.prints(corpus, rows, progress):
          file.write(record.tobytes())
      is_empty = not os.path.getsize(path)
      records = np.empty(0, PRINT) if is_empty else np.memmap(path, PRINT, "r")
      removed = removals(records, removing.exact, removing.near)

      def name(document: int) -> str:  # SOURCE#N, the Nth, from 0, without blank ones
        record = records[document]
        return f"{corpus.sources[int(record['source'])].name}#{int(record['number'])}"

      with atomic_file(os.path.join(folder, LEDGER)) as ledger:
        for removal in removed:
          by_row, other = removal.rule in RULES, removal.other
          entry = {
            "document": name(removal.document),
            "rule": removal.rule,
            "with": removing.rows[other].location if by_row else name(other),
            "score": round(removal.score, 4),
          }
          ledger.write(json.dumps(entry) + "\n")
      chosen = records[[removal.document for removal in removed]]
      n_documents = len(records)
      if n_documents and len(removed) == n_documents:
        raise InputError("every document is removed, as a duplicate or for evaluation rows in it")
      rules = collections.Counter(removal.rule for removal in removed)
      counts = "".join(f"; {rule}: {count:,}" for rule, count in sorted(rules.items()))
      share = len(removed) / max(1, n_documents)
      print(f"removed {len(removed):,} of {counted(n_documents, 'document')} ({share:.2%}){counts}")
      return np.stack([chosen["source"].astype(np.int64), chosen["number"]], axis=1)

  def prints(self, corpus: Corpus, rows: str, progress: Progress) -> Iterator[np.ndarray]:
    """A record of type PRINT for each document, in order; `rows` is a file of evaluation rows, ""
    if there are none. Nothing has been removed from the corpus yet.
    """
    made: list[np.ndarray] = []
    inspect = functools.partial(_inspect, self._removing.near, rows)
    for batch, results in map_in_order(self._pool, inspect, batched(_placed(corpus))):
      for (place, piece), result in zip(batch, results, strict=True):
        made.append(result)
        progress.add(len(piece.text))
        if not piece.last:
          continue
        of_pieces, record = np.array(made, PRINT), np.zeros((), PRINT)
        record["source"], record["number"] = place.source, place.number
        record["digest"] = _digest(of_pieces["digest"].tobytes())
        overlaps = map(Overlap, *(of_pieces[name].tolist() for name in Overlap._fields))
        record["rule"], record["row"], record["score"] = functools.reduce(best_overlap, overlaps)
        record["signature"] = of_pieces["signature"].min(axis=0)
        yield record
        made = []


class Removal(NamedTuple):
  document: int  # its number among all
  rule: str  # "13-gram", "whole row", "exact duplicate" or "near-duplicate"
  other: int  # number of the evaluation row or of the document that is kept
  score: float  # see contamination.Overlap; the estimated Jaccard similarity of near-duplicates


def removals(prints: np.ndarray, exact: bool, near: bool) -> list[Removal]:
  """The documents to remove, in order: contaminated ones, and duplicates of earlier, kept ones."""
  result: dict[int, Removal] = {}
  for document in np.flatnonzero(prints["rule"]).tolist():
    record = prints[document]
    rule = RULES[int(record["rule"])]
    result[document] = Removal(document, rule, int(record["row"]), float(record["score"]))
  kept = np.flatnonzero(prints["rule"] == 0)
  if exact or near:
    digests = prints["digest"][kept]
    _, first, inverse = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    first_of = kept[first[inverse.ravel()]]
    for document, other in zip(kept.tolist(), first_of.tolist(), strict=True):
      if document != other:
        result[document] = Removal(document, "exact duplicate", other, 1.0)
    kept = kept[kept == first_of]
  if near:
    pairs, scores = duplicates.near_pairs(prints["signature"], kept)
    order = np.lexsort((pairs[:, 0], -scores, pairs[:, 1]))  # by the later one, most similar first
    for (other, document), score in zip(pairs[order].tolist(), scores[order].tolist(), strict=True):
      if document not in result and other not in result:
        result[document] = Removal(document, "near-duplicate", other, float(score))
  return [result[document] for document in sorted(result)]
