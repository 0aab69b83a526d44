"""The pass before all others: finds duplicates and contaminated documents, writes the ledger."""

import collections
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpt_jax.data.contamination import index_rows
from gpt_jax.data.duplicates import require_datasketch
from gpt_jax.data.prints import PRINT
from gpt_jax.data.removal import LEDGER, Removal, removals, write_ledger
from gpt_jax.data.sources.source import Source
from gpt_jax.errors import InputError, counted
from gpt_jax.files import atomic_file
from gpt_jax.programs.preparing.evaluation_rows import EvaluationRow, evaluation_rows

PRINTS = "prints.bin"  # while they are needed
MakePrints = Callable[[str], Iterable[np.ndarray]]


class Removing:
  """The removal of documents, by the settings of a run.

  Attributes:
    near: whether near-duplicates are removed.
    active: whether any documents can be removed.
    digest: hash of the evaluation rows; "" without any.
  """

  def __init__(self, deduplicate: str, decontaminate: str, data: str):
    """Raises InputError for a missing package, or evaluation sets that cannot be read."""
    self.near = deduplicate == "near"
    self._exact = deduplicate != "none"
    if self.near:
      require_datasketch()
    self._rows: list[EvaluationRow] = evaluation_rows(decontaminate, data) if decontaminate else []
    self.index = index_rows(row.text for row in self._rows).save() if self._rows else b""
    self.active = self._exact or bool(self._rows)
    self.digest = hashlib.sha256(self.index).hexdigest()[:16] if self.index else ""

  def __call__(self, folder: str, sources: Sequence[Source], make_prints: MakePrints) -> np.ndarray:
    """Writes the ledger to a folder; returns which documents to remove.

    Args:
      make_prints: given the file of the evaluation rows or "", the records of all documents.

    Returns:
      int64 [R, 2], source and number in it, ascending.

    Raises:
      InputError: nothing would be left.
    """
    path = os.path.join(folder, PRINTS)
    # Workers keep what they read under a name, and another run may have other rows.
    rows = os.path.join(folder, f"rows-{self.digest}.npz") if self.index else ""
    if rows:
      with open(rows, "wb") as file:
        file.write(self.index)
    with open(path, "wb") as file:
      for records in make_prints(rows):
        file.write(records.tobytes())
    removed: list[Removal] = []
    places = np.empty((0, 2), np.int64)
    n_documents = os.path.getsize(path) // PRINT.itemsize
    if n_documents:
      prints = np.memmap(path, PRINT, "r")
      removed = removals(prints, self._exact, self.near)
      locations = [row.location for row in self._rows]
      with atomic_file(os.path.join(folder, LEDGER)) as ledger:
        write_ledger(ledger, removed, prints, sources, locations)
      chosen = prints[[removal.document for removal in removed]]
      places = np.stack([chosen["source"].astype(np.int64), chosen["number"]], axis=1)
      del prints
    os.remove(path)
    if rows:
      os.remove(rows)
    if n_documents and len(removed) == n_documents:
      raise InputError("every document is removed, as a duplicate or for evaluation rows in it")
    _report(removed, n_documents)
    return places


def _report(removed: Sequence[Removal], n_documents: int) -> None:
  rules = collections.Counter(removal.rule for removal in removed)
  counts = "".join(f"; {rule}: {count:,}" for rule, count in sorted(rules.items()))
  share = len(removed) / max(1, n_documents)
  print(f"removed {len(removed):,} of {counted(n_documents, 'document')} ({share:.2%}){counts}")
