"""Embeds texts, and finds the nearest ones to a query."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.file_kinds import write_table
from gpt_jax.data.sources.source import chunked_documents, find_all
from gpt_jax.errors import InputError, counted
from gpt_jax.inference.model import Model
from gpt_jax.parallel.processes import log
from gpt_jax.tasks.readers import read_lines

_PART = 1024  # texts that are embedded between two lines of progress
_NAMED = 5  # of the texts that are left out
_SURROGATES = re.compile("[\ud800-\udfff]")
# What ends a cell, or is no text.
_ESCAPED = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_SHOWN = 200  # characters of a text
# Queries compared at a time: fewer where that makes more cosines than this.
_QUERIES, _COSINES = 256, 1 << 24


def run(
  checkpoint: str,
  source: str,
  queries: Sequence[str],
  *,
  text_column: str = "text",
  count: int = 10,
) -> list[list[dict[str, Any]]]:
  """Finds the texts that are nearest to each query.

  Args:
    checkpoint: see load_model.
    source: texts to search: text files, one text each, or tables, one a row.
    queries: a text to search for.
    text_column: the text of a table.
    count: answers to each query.

  Returns:
    For each query the nearest texts: {"place", "cosine", "text"}; a place is FILE:NUMBER.
  """
  if count < 1:
    raise InputError(f"--count={count}: must be 1 or more")
  if broken := next(filter(_SURROGATES.search, queries), None):
    raise InputError(f"query={broken!a}: is no valid Unicode")
  texts = _read(source, text_column)
  model = Model(load_model(checkpoint))
  encoded = model.loaded.network.tokenizer.encode_many(list(queries))
  for query, ids in zip(queries, encoded, strict=True):
    if not len(ids):
      raise InputError(f"query={query!r}: has no token that the model knows")
  asked = _embed(model, queries)  # before the long part
  texts = _usable(model, texts)
  if not texts:
    raise InputError(f"--source={source}: has no text")
  places = list(texts)
  numbers, cosines = nearest(_embed(model, list(texts.values())), asked, count)
  answers: list[list[dict[str, Any]]] = [[] for _ in queries]
  for (query, rank), n in np.ndenumerate(numbers):
    cosine = round(float(cosines[query, rank]), 4)
    answers[query].append({"place": places[n], "cosine": cosine, "text": texts[places[n]]})
  return answers


def nearest(vectors: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """The vectors with the highest cosines, exactly: their numbers and cosines, [Q, K] each.

  Of equal cosines the earlier vector comes first.

  Args:
    vectors, queries: [N, D] and [Q, D], of any length.
    count: K, at most N.
  """
  vectors, queries = _normalized(vectors), _normalized(queries)
  numbers, cosines = [], []
  # In blocks, so that memory does not grow with the number of queries.
  at_once = min(_QUERIES, 1 + _COSINES // (1 + len(vectors)))
  for block in np.array_split(queries, max(1, math.ceil(len(queries) / at_once))):
    of_block = block @ vectors.T
    # A copy: a view would keep the numbers of all texts.
    best = np.argsort(-of_block, axis=1, kind="stable")[:, :count].copy()
    numbers.append(best)
    cosines.append(np.take_along_axis(of_block, best, axis=1))
  return np.concatenate(numbers), np.concatenate(cosines)


def _normalized(vectors: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def read_queries(path: str) -> list[str]:
  """The lines of a file that are not blank. Raises InputError if it has none."""
  queries = [line.strip() for _, line in read_lines(path)]
  if not queries:
    raise InputError(f"--queries={path}: has no query, one a line")
  return queries


def _read(source: str, column: str) -> dict[str, str]:
  """The texts that are not blank, by their places."""
  texts = {}
  for file in find_all(source):
    for number, chunks in enumerate(chunked_documents(file.name, column), start=1):
      if text := "".join(chunks).strip():
        texts[f"{file.name}:{number}"] = text
  return texts


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


def _embed(model: Model, texts: Sequence[str]) -> np.ndarray:
  """Vectors [N, D]; of a text longer than the context the mean over its windows."""
  parts = []
  for begin in range(0, len(texts), _PART):
    parts.append(model.embed(texts[begin : begin + _PART], windows="mean"))
    if len(texts) > _PART:
      log(f"{min(begin + _PART, len(texts)):,} of {len(texts):,} texts embedded")
  return np.concatenate(parts)


def show(queries: Sequence[str], answers: list[list[dict[str, Any]]]) -> None:
  rows: list[list[object]] = [["query", "rank", "cosine", "place", "text"]]
  for query, nearest in zip(queries, answers, strict=True):
    asked = " ".join(query.split())
    for rank, answer in enumerate(nearest, start=1):
      shown = " ".join(answer["text"].split())[:_SHOWN]
      cells = [asked, str(rank), f"{answer['cosine']:.4f}", answer["place"], shown]
      # A file's name may have tabs and line ends, or bytes that are no text.
      rows.append([_ESCAPED.sub(lambda match: ascii(match[0])[1:-1], cell) for cell in cells])
  write_table(sys.stdout, rows, "	")
