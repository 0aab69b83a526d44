"""Embeds texts, finds the nearest ones to a query, and measures that on judged queries."""

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.search.index import Index, normalized, read_index, updates, write_index
from gpt_jax.apps.search.retrieval import measure, read_judged
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.data.file_kinds import write_table
from gpt_jax.data.sources.source import chunked_documents, find_all
from gpt_jax.errors import InputError, counted
from gpt_jax.files import make_folders, refuse_url
from gpt_jax.inference.model import Model
from gpt_jax.parallel.processes import log

_PART = 1024  # texts that are embedded between two lines of progress
_NAMED = 5  # of the texts that are left out
_SURROGATES = re.compile("[\ud800-\udfff]")
# What ends a cell, or is no text.
_ESCAPED = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_SHOWN = 200  # characters of a text


def run(
  checkpoint: str,
  index: str,
  *,
  source: str = "",
  text_column: str = "text",
  queries: Sequence[str] = (),
  count: int = 10,
) -> list[list[dict[str, Any]]]:
  """Makes an index or brings it up to date, and answers queries from it.

  Args:
    checkpoint: see load_model; the one that the index was made with.
    index: folder of the index.
    source: texts to index: text files, one text each, or tables, one a row. Only texts that the
      index lacks are embedded, and those that are gone leave it; empty: the index as it is.
    text_column: the text of a table.
    queries: a text to search for.
    count: answers to each query.

  Returns:
    For each query the nearest texts: {"place", "cosine", "text"}.
  """
  refuse_url(index)
  if count < 1:
    raise InputError(f"--count={count}: must be 1 or more")
  if broken := next(filter(_SURROGATES.search, queries), None):
    raise InputError(f"query={broken!a}: is no valid Unicode")
  old = read_index(index)
  if old is None and not source:
    raise InputError(f"--index={index}: there is none; --source=FILES makes it")
  loaded = load_model(checkpoint)
  model = Model(loaded)
  # The same weights may be read in other ways: the mean of a text's tokens, or its first one.
  digest = f"{checksum(loaded.params)}-{loaded.tokenizer.hash}-{model.embedding.pooling}"
  if model.embedding.longest:  # of others it stays what earlier versions wrote
    digest += f"-{model.embedding.longest}"
  if old is not None and old.model != digest:
    raise InputError(
      f"--checkpoint={checkpoint}: {index} was made with another model; use that one, or a new "
      "folder"
    )
  current = _update(model, digest, old, source, text_column, index) if source else old
  assert current is not None
  if not queries:
    return []
  numbers, cosines = current.nearest(_embed(model, list(queries)), count)
  answers: list[list[dict[str, Any]]] = [[] for _ in queries]
  for (query, rank), n in np.ndenumerate(numbers):
    cosine = round(float(cosines[query, rank]), 4)
    answer = {"place": current.places[n], "cosine": cosine, "text": current.texts[n]}
    answers[query].append(answer)
  return answers


def evaluate(
  checkpoint: str, folder: str, split: str = "test", *, ignore_identical_ids: bool = False
) -> dict[str, float]:
  """nDCG@10, MAP@10, MRR@10 and recall@100 on judged queries, by mteb's definitions.

  Args:
    checkpoint: see load_model.
    folder: in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.
    split: of the judgments.
    ignore_identical_ids: whether a text with the id of a query is no answer to it.
  """
  judged = read_judged(folder, split)
  model = Model(load_model(checkpoint))
  # Of equal scores the last id comes first, as in trec_eval; nearest puts earlier texts first.
  texts = _usable(model, dict(sorted(judged.corpus.items(), reverse=True)))
  queries = _usable(model, judged.queries)
  if not texts or not queries:
    raise InputError(f"{folder}: no {'query' if texts else 'text'} has a word to search by")
  vectors = normalized(_embed(model, list(texts.values())))
  corpus = Index("", list(texts), list(texts.values()), vectors)
  # One more than the measure that looks furthest reads: a text may be the query itself.
  numbers, _ = corpus.nearest(_embed(model, list(queries.values())), 101)
  ranked: dict[str, list[str]] = dict.fromkeys(judged.queries, [])  # an unusable query finds none
  for query, row in zip(queries, numbers, strict=True):
    ignored = query if ignore_identical_ids else None
    places = [corpus.places[n] for n in row]
    ranked[query] = [place for place in places if place != ignored][:100]
  return measure(ranked, judged.relevance)


def read_queries(path: str) -> list[str]:
  """The lines of a file that are not blank. Raises InputError if it has none."""
  try:
    with open(path, encoding="utf-8-sig") as file:
      queries = [line.strip() for line in file if line.strip()]
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f"--queries={path}: cannot be read ({error})") from error
  if not queries:
    raise InputError(f"--queries={path}: has no query, one a line")
  return queries


def _update(
  model: Model, digest: str, old: Index | None, source: str, column: str, folder: str
) -> Index:
  texts = {}  # place, FILE:NUMBER -> text, if it is not blank
  for file in find_all(source):
    for number, chunks in enumerate(chunked_documents(file.name, column), start=1):
      if text := "".join(chunks).strip():
        texts[f"{file.name}:{number}"] = text
  known = set() if old is None else set(old.texts)
  new = _usable(model, {place: text for place, text in texts.items() if text not in known})
  rows = {place: text for place, text in texts.items() if text in known or place in new}
  if not rows:
    raise InputError(f"--source={source}: has no text")
  try:
    make_folders(folder)  # fail before the expensive part
  except OSError as error:
    raise InputError(f"--index={folder}: cannot be made ({error.strerror})") from error
  for index in updates(old, digest, rows, functools.partial(_embed, model)):
    write_index(folder, index)
  found = set(rows.values())
  log(
    f"{folder}: {len(rows):,} texts, {len(found - known):,} of them embedded now, "
    f"{len(known - found):,} removed"
  )
  return index


def _usable(model: Model, texts: Mapping[str, str]) -> dict[str, str]:
  """The texts, by their names, that have a token; names the others in the log."""
  tokenizer = model.loaded.tokenizer
  # JSON may hold half a surrogate pair, which is no text.
  valid = {name: text for name, text in texts.items() if not _SURROGATES.search(text)}
  ids = tokenizer.encode_many(list(valid.values()))
  usable = {name: valid[name] for name, own in zip(valid, ids, strict=True) if len(own)}
  others = [name for name in texts if name not in usable]
  if others:
    more = ", …" if len(others) > _NAMED else ""
    left_out = counted(len(others), "text")
    log(f"{left_out} without a token left out: {', '.join(others[:_NAMED])}{more}")
  return usable


def _embed(model: Model, texts: list[str]) -> np.ndarray:
  """Vectors [N, D]; of a text longer than the context the mean over its windows."""
  parts = []
  for begin in range(0, len(texts), _PART):
    parts.append(model.embed(texts[begin : begin + _PART], windows="mean"))
    if len(texts) > _PART:
      log(f"{min(begin + _PART, len(texts)):,} of {len(texts):,} texts embedded")
  return np.concatenate(parts)


def show(queries: Sequence[str], answers: list[list[dict[str, Any]]]) -> None:
  """Prints a table: query, rank, cosine, place, text."""
  rows: list[list[object]] = [["query", "rank", "cosine", "place", "text"]]
  for query, nearest in zip(queries, answers, strict=True):
    asked = " ".join(query.split())
    for rank, answer in enumerate(nearest, start=1):
      shown = " ".join(answer["text"].split())[:_SHOWN]
      cells = [asked, str(rank), f"{answer['cosine']:.4f}", answer["place"], shown]
      # A file's name may have tabs and line ends, or bytes that are no text.
      rows.append([_ESCAPED.sub(lambda match: ascii(match[0])[1:-1], cell) for cell in cells])
  write_table(sys.stdout, rows, "	")
