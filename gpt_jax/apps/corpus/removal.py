"""Choosing the documents to remove, and the ledger that says why."""

import json
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple

import numpy as np

from gpt_jax.apps.corpus.contamination import RULES
from gpt_jax.apps.corpus.duplicates import near_pairs
from gpt_jax.data.sources.source import Source


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
