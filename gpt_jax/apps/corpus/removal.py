"""The pass before all others: which documents to remove, and the ledger that says why."""

import collections
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np

from gpt_jax.apps.corpus.contamination import RULES, index_rows
from gpt_jax.apps.corpus.duplicates import near_pairs, require_datasketch
from gpt_jax.apps.corpus.evaluation_rows import EvaluationRow, evaluation_rows
from gpt_jax.apps.corpus.prints import PRINT, prints
from gpt_jax.data.passes import LEDGER, Passes
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.sources.source import Source, plain_size
from gpt_jax.data.workers import Pool, progress
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file

Progress = Callable[[int, int], None]


class Removing:
  """The removal of documents, by the settings of a run.

  Attributes:
    near: whether near-duplicates are removed.
    active: whether any documents can be removed.
    settings: JSON values, among them a hash of the evaluation rows, that decide which ones.
  """

  def __init__(self, deduplicate: str, decontaminate: str, data: str):
    """Raises InputError for a missing package, or evaluation sets that cannot be read."""
    self.near = deduplicate == "near"
    self._exact = deduplicate != "none"
    if self.near:
      require_datasketch()
    self._rows: list[EvaluationRow] = evaluation_rows(decontaminate, data) if decontaminate else []
    self._index = index_rows(row.text for row in self._rows).save() if self._rows else b""
    self.active = self._exact or bool(self._rows)
    self.settings = {
      "deduplicate": deduplicate,
      "decontaminate": decontaminate,
      "evaluation_rows": hashlib.sha256(self._index).hexdigest()[:16] if self._index else "",
    }

  def __call__(
    self,
    folder: str,
    sources: Sequence[Source],
    make_prints: Callable[[str], Iterable[np.ndarray]],
  ) -> np.ndarray:
    """Writes the ledger to a folder; returns which documents to remove.

    Args:
      make_prints: given the file of the evaluation rows or "", the records of all documents.

    Returns:
      int64 [R, 2], source and number in it, ascending.

    Raises:
      InputError: nothing would be left.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
      rows = ""
      if self._index:
        # Workers keep what they read under a name, and another run may have other rows.
        rows = os.path.join(temporary, f"rows-{self.settings['evaluation_rows']}.npz")
        with open(rows, "wb") as file:
          file.write(self._index)
      path = os.path.join(temporary, "prints.bin")
      with open(path, "wb") as file:
        for record in make_prints(rows):
          file.write(record.tobytes())
      is_empty = not os.path.getsize(path)
      records = np.empty(0, PRINT) if is_empty else np.memmap(path, PRINT, "r")
      removed = removals(records, self._exact, self.near)
      locations = [row.location for row in self._rows]
      with atomic_file(os.path.join(folder, LEDGER)) as ledger:
        write_ledger(ledger, removed, records, sources, locations)
      chosen = records[[removal.document for removal in removed]]
      n_documents = len(records)
    if n_documents and len(removed) == n_documents:
      raise InputError("every document is removed, as a duplicate or for evaluation rows in it")
    _report(removed, n_documents)
    return np.stack([chosen["source"].astype(np.int64), chosen["number"]], axis=1)


class RemovingPasses(Passes):
  """The passes over the documents that are left once some are removed."""

  def __init__(self, removing: Removing, pool: Pool | None):
    super().__init__(pool)
    self._removing = removing

  def removed(self, corpus: Corpus, folder: str) -> np.ndarray:
    if not self._removing.active:
      return super().removed(corpus, folder)
    with progress("comparing documents", plain_size(corpus.sources)) as add:
      return self._removing(
        folder,
        corpus.sources,
        lambda rows: self.prints(corpus, self._removing.near, rows, add),
      )

  def prints(self, corpus: Corpus, near: bool, rows: str, add: Progress) -> Iterator[np.ndarray]:
    """See prints.prints; nothing has been removed from the corpus yet."""
    yield from prints(enumerate(corpus.sources), corpus.field, near, rows, self._pool, add)


class Removal(NamedTuple):
  """A document to remove.

  Attributes:
    document: its number among all.
    rule: "13-gram", "whole row", "exact duplicate" or "near-duplicate".
    other: number of the evaluation row or of the document that is kept.
    score: see contamination.Overlap; the estimated Jaccard similarity of near-duplicates.
  """

  document: int
  rule: str
  other: int
  score: float


def removals(prints: np.ndarray, exact: bool, near: bool) -> list[Removal]:
  """The documents to remove, in order: contaminated ones, and duplicates of earlier, kept ones.

  Args:
    prints: [N] of type PRINT, perhaps in a file.
    exact: whether to remove exact duplicates.
    near: whether to remove near-duplicates, too.
  """
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
    pairs, scores = near_pairs(prints["signature"], kept)
    order = np.lexsort((pairs[:, 0], -scores, pairs[:, 1]))  # by the later one, most similar first
    for (other, document), score in zip(pairs[order].tolist(), scores[order].tolist(), strict=True):
      if document not in result and other not in result:
        result[document] = Removal(document, "near-duplicate", other, float(score))
  return [result[document] for document in sorted(result)]


def write_ledger(
  file: IO[str],
  removals: Iterable[Removal],
  prints: np.ndarray,
  sources: Sequence[Source],
  rows: Sequence[str],
) -> None:
  """A JSON line for each removal; a document is SOURCE#N, the Nth of its source from 0.

  Args:
    rows: where each evaluation row comes from.
  """

  def name(document: int) -> str:
    record = prints[document]
    return f"{sources[int(record['source'])].name}#{int(record['number'])}"

  for removal in removals:
    by_row = removal.rule in RULES
    entry = {
      "document": name(removal.document),
      "rule": removal.rule,
      "with": rows[removal.other] if by_row else name(removal.other),
      "score": round(removal.score, 4),
    }
    file.write(json.dumps(entry) + "\n")


def _report(removed: Sequence[Removal], n_documents: int) -> None:
  rules = collections.Counter(removal.rule for removal in removed)
  counts = "".join(f"; {rule}: {count:,}" for rule, count in sorted(rules.items()))
  share = len(removed) / max(1, n_documents)
  print(f"removed {len(removed):,} of {counted(n_documents, 'document')} ({share:.2%}){counts}")
