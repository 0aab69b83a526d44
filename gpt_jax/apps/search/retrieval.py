"""Measures of a ranking beside judgments, as pytrec_eval and so mteb defines them, and the files of
judged queries in BEIR's layout (Thakur et al. 2021).
"""

import io
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpt_jax.errors import InputError
from gpt_jax.files import open_regular, parse_json


class Judged(NamedTuple):
  """Queries with judgments."""

  corpus: dict[str, str]  # id -> title and text
  queries: dict[str, str]  # id -> text, of those with judgments
  # Id of a query -> id of a text -> how relevant it is; 0 or less: not
  relevance: dict[str, dict[str, int]]


def read_judged(folder: str, split: str) -> Judged:
  """The queries of a split, the texts and the judgments in a folder."""
  rows = _rows(os.path.join(folder, "corpus.jsonl"))
  corpus = {i: f"{row.get('title') or ''} {row['text']}".strip() for i, row in rows.items()}
  queries = _rows(os.path.join(folder, "queries.jsonl"))
  path = os.path.join(folder, "qrels", f"{split}.tsv")
  relevance: dict[str, dict[str, int]] = {}
  for number, line in _lines(path):
    query, text, score = (*line.split("\t"), "", "")[:3]
    is_number = re.fullmatch(r"-?\d{1,9}", score.strip(), re.ASCII)
    if number == 1 and query not in queries and not is_number:
      continue  # the names of the columns, which some files lack
    if query not in queries or text not in corpus or not is_number:
      raise InputError(
        f"{path}:{number}: should have the id of a query, that of a text and a whole number "
        "below 10^9, separated by tabs"
      )
    relevance.setdefault(query, {})[text] = int(score)
  if not relevance:
    raise InputError(f"{path}: has no judgments")
  return Judged(corpus, {query: queries[query]["text"] for query in relevance}, relevance)


def _rows(path: str) -> dict[str, dict[str, str]]:
  """The rows of a file by their ids."""
  rows: dict[str, dict[str, str]] = {}
  for number, line in _lines(path):
    try:
      row = parse_json(line)
      is_row = isinstance(row["_id"], str) and isinstance(row["text"], str)
    except (ValueError, KeyError, TypeError):
      is_row = False
    if not is_row:
      raise InputError(f'{path}:{number}: should be {{"_id": "…", "text": "…"}}')
    if row["_id"] in rows:
      raise InputError(f"{path}:{number}: has the _id of an earlier line, {row['_id']!r}")
    rows[row["_id"]] = row
  if not rows:
    raise InputError(f"{path}: is empty; it should have a row a line")
  return rows


def _lines(path: str) -> list[tuple[int, str]]:
  """The lines that are not blank, with their numbers."""
  try:
    with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
      numbered = enumerate(file, start=1)
      return [(number, line.rstrip("\n")) for number, line in numbered if line.strip()]
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def measure(
  ranked: Mapping[str, Sequence[str]], relevance: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
  """Means over the queries; gains are linear, of judgments below 0 they are 0.

  Args:
    ranked: id of a query -> ids of texts, the best first.
    relevance: see Judged.
  """
  measures: dict[str, list[float]] = {}
  for query, judgments in relevance.items():
    gain_of = {text: max(0, judgment) for text, judgment in judgments.items()}
    gains = [gain_of.get(text, 0) for text in ranked[query]]
    relevant = sum(gain > 0 for gain in gain_of.values())
    ideal = _discounted(sorted(gain_of.values(), reverse=True)[:10])
    # Only what is among the first ten counts, but all that is relevant divides.
    ranks = [rank for rank, gain in enumerate(gains[:10], start=1) if gain > 0]
    precisions = [hits / rank for hits, rank in enumerate(ranks, start=1)]
    of_query = {
      "ndcg@10": _discounted(gains[:10]) / ideal if ideal else 0.0,
      "map@10": sum(precisions) / relevant if relevant else 0.0,
      "mrr@10": 1 / ranks[0] if ranks else 0.0,
      "recall@100": sum(gain > 0 for gain in gains[:100]) / relevant if relevant else 0.0,
    }
    for name, value in of_query.items():
      measures.setdefault(name, []).append(value)
  return {name: statistics.fmean(values) for name, values in measures.items()}


def _discounted(gains: Sequence[int]) -> float:
  return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
