"""Measures of a ranking beside judgments, as pytrec_eval and so mteb defines them, and the files of
judged queries in BEIR's layout (Thakur et al. 2021).
"""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpt_jax.errors import InputError


class Judged(NamedTuple):
  """Queries with judgments.

  Attributes:
    corpus: id -> title and text.
    queries: id -> text, of those with judgments.
    relevance: id of a query -> id of a text -> how relevant it is, 0: not.
  """

  corpus: dict[str, str]
  queries: dict[str, str]
  relevance: dict[str, dict[str, int]]


def read_judged(folder: str, split: str) -> Judged:
  """Raises InputError, with file and line, for what is missing or malformed."""
  corpus = {
    row["_id"]: f"{row.get('title') or ''} {row['text']}".strip()
    for row in _rows(os.path.join(folder, "corpus.jsonl"))
  }
  texts = {row["_id"]: row["text"] for row in _rows(os.path.join(folder, "queries.jsonl"))}
  path = os.path.join(folder, "qrels", f"{split}.tsv")
  relevance: dict[str, dict[str, int]] = {}
  for number, line in enumerate(_lines(path)[1:], start=2):  # after the names of the columns
    query, text, score = (*line.split("\t"), "", "")[:3]
    if query not in texts or text not in corpus or not score.strip().isdigit():
      raise InputError(
        f"{path}:{number}: should have the id of a query, that of a text and a whole number, "
        "separated by tabs"
      )
    relevance.setdefault(query, {})[text] = int(score)
  if not relevance:
    raise InputError(f"{path}: has no judgments")
  return Judged(corpus, {query: texts[query] for query in relevance}, relevance)


def _rows(path: str) -> list[dict[str, str]]:
  rows = []
  for number, line in enumerate(_lines(path), start=1):
    try:
      row = json.loads(line)
      strings = {name: row[name] for name in ("_id", "text") if isinstance(row[name], str)}
    except (ValueError, KeyError, TypeError):
      strings = {}
    if len(strings) < 2:
      raise InputError(f'{path}:{number}: should be {{"_id": "…", "text": "…"}}')
    rows.append(row)
  return rows


def _lines(path: str) -> list[str]:
  try:
    with open(path, encoding="utf-8") as file:
      return [line.rstrip("\n") for line in file if line.strip()]
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def measure(
  ranked: Mapping[str, Sequence[str]], relevance: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
  """Means over the queries; gains are linear, and a text is relevant above 0.

  Args:
    ranked: id of a query -> ids of texts, the best first.
    relevance: see Judged.
  """
  measures: dict[str, list[float]] = {}
  for query, judgments in relevance.items():
    gains = [judgments.get(text, 0) for text in ranked[query]]
    relevant = sum(gain > 0 for gain in judgments.values())
    ideal = _discounted(sorted(judgments.values(), reverse=True)[:10])
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
