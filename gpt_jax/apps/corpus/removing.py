"""The pass before all others: finds duplicates and contaminated documents, writes the ledger."""

import collections
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gpt_jax.apps.corpus.contamination import index_rows
from gpt_jax.apps.corpus.duplicates import require_datasketch
from gpt_jax.apps.corpus.evaluation_rows import EvaluationRow, evaluation_rows
from gpt_jax.apps.corpus.prints import PRINT, prints
from gpt_jax.apps.corpus.removal import Removal, removals, write_ledger
from gpt_jax.data.passes import LEDGER, Passes
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.progress import progress
from gpt_jax.data.sources.source import Source, plain_size
from gpt_jax.data.workers import Pool
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file

Progress = Callable[[int, int], None]


class RemovingPasses(Passes):
  """The passes over the documents that are left once some are removed."""

  def __init__(self, removing: "Removing", pool: Pool | None):
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


def _report(removed: Sequence[Removal], n_documents: int) -> None:
  rules = collections.Counter(removal.rule for removal in removed)
  counts = "".join(f"; {rule}: {count:,}" for rule, count in sorted(rules.items()))
  share = len(removed) / max(1, n_documents)
  print(f"removed {len(removed):,} of {counted(n_documents, 'document')} ({share:.2%}){counts}")
