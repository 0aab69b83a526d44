"""An index on disk: texts, where they are from, and their vectors by one model."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gpt_jax import files
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, exists, is_folder, list_folder, read_json, write_json
from gpt_jax.packages import require

ROWS = "index.json"
_BLOCK = 1 << 16  # vectors that are compared at a time
_QUERIES = 256  # at a time
_SAVED = 1 << 15  # texts that are embedded before the index is written
_MANY = 1_000_000  # from which on faiss is worth its installation
_LIMIT = 1 << 33  # bytes of index.json


class Index(NamedTuple):
  """Texts and their vectors.

  Attributes:
    model: digest of the weights and the vocabulary that made the vectors.
    places: where each text is from, "FILE:NUMBER"; the first text of a file is number 1.
    texts: the texts themselves.
    vectors: float32 [N, D], of length 1.
  """

  model: str
  places: list[str]
  texts: list[str]
  vectors: np.ndarray

  def nearest(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The texts with the highest cosines, exactly: their numbers and cosines, [Q, K] each.

    Of equal cosines the earlier text comes first. Where several texts have the last one, faiss may
    leave out any of them.

    Args:
      queries: [Q, D], of any length.
      count: K, at most N.
    """
    queries = normalized(queries)
    count = min(count, len(self.vectors))
    if len(self.vectors) >= _MANY:
      return _by_faiss(self.vectors, queries, count)
    # Queries in blocks, too, so that memory does not grow with their number.
    parts = [
      self._nearest(part, count) for part in np.array_split(queries, -(-len(queries) // _QUERIES))
    ]
    numbers, cosines = (np.concatenate(x) for x in zip(*parts, strict=True))
    return numbers, cosines

  def _nearest(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers: np.ndarray = np.zeros((len(queries), 0), np.int64)
    cosines: np.ndarray = np.zeros((len(queries), 0), np.float32)
    for begin in range(0, len(self.vectors), _BLOCK):
      block = queries @ self.vectors[begin : begin + _BLOCK].T
      cosines = np.concatenate([cosines, block], axis=1)
      of_block = np.arange(begin, begin + block.shape[1])
      numbers = np.concatenate([numbers, np.broadcast_to(of_block, block.shape)], axis=1)
      # The best so far stand before the block, so that they win where cosines are equal.
      best = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
      cosines, numbers = (np.take_along_axis(x, best, axis=1) for x in (cosines, numbers))
    return numbers, cosines


def _by_faiss(
  vectors: np.ndarray, queries: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
  faiss = require("faiss", f"a search among {len(vectors):,} texts", "faiss-cpu", "search")
  flat = faiss.IndexFlatIP(vectors.shape[1])  # exact
  flat.add(vectors)
  cosines, numbers = flat.search(queries, count)
  order = np.lexsort((numbers, -cosines), axis=1)  # faiss orders equal ones at will
  return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(cosines, order, axis=1)


def normalized(vectors: np.ndarray) -> np.ndarray:
  """Vectors [N, D] of length 1; zeros stay."""
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def read_index(folder: str) -> Index | None:
  """The index in a folder; None: there is none.

  Raises:
    InputError: a damaged one, or something else.
  """
  path = os.path.join(folder, ROWS)
  if not exists(path):
    if exists(folder) and (not is_folder(folder) or list_folder(folder)):
      raise InputError(f"--index={folder}: is something else than an index; use a new folder")
    return None
  try:
    tree = read_json(path, _LIMIT)
    vectors = np.load(os.path.join(folder, tree["vectors"]), allow_pickle=False)
    index = Index(tree["model"], tree["places"], tree["texts"], vectors)
    lengths = {len(index.places), len(index.texts), len(vectors)}
  except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{path}: cannot be read ({error}); remove the folder to make it anew"
    ) from error
  if len(lengths) > 1 or _name(vectors) != tree["vectors"]:
    raise InputError(f"{path}: damaged, its vectors are not those it was written with")
  return index


def make_folder(folder: str) -> None:
  """Makes the folder of an index, if there is none. Raises InputError if that is refused."""
  try:
    files.make_folders(folder)
  except OSError as error:
    raise InputError(f"--index={folder}: cannot be made ({error.strerror})") from error


def write_index(folder: str, index: Index) -> None:
  """Writes an index; one that was there stays whole until the new one is.

  Raises:
    InputError: the folder cannot be written.
  """
  name = _name(index.vectors)
  tree = {"model": index.model, "vectors": name, "places": index.places, "texts": index.texts}
  try:
    with atomic_file(os.path.join(folder, name), "wb") as file:
      np.save(file, index.vectors)
    # Last, since it names the vectors: an index that is read has both, or is the old one.
    write_json(os.path.join(folder, ROWS), tree)
    for old in list_folder(folder):
      if old.startswith("vectors-") and old.endswith(".npy") and old != name:
        os.remove(os.path.join(folder, old))
  except OSError as error:
    raise InputError(f"--index={folder}: cannot be written ({error.strerror})") from error


def _name(vectors: np.ndarray) -> str:
  return f"vectors-{hashlib.sha256(vectors.tobytes()).hexdigest()[:16]}.npy"


def updates(
  old: Index | None,
  model: str,
  rows: Mapping[str, str],
  embed: Callable[[list[str]], np.ndarray],
) -> Iterator[Index]:
  """Indexes of these texts: of those embedded so far, and in the end of all.

  Args:
    old: vectors of texts that it has are taken from it, wherever they were.
    model: digest of what embeds.
    rows: place -> text.
    embed: embed(texts) -> [N, D].
  """
  known: dict[str, np.ndarray] = {}  # a text that moved to another file keeps its vector
  if old is not None:
    known = dict(zip(old.texts, old.vectors, strict=True))
  new = [text for text in dict.fromkeys(rows.values()) if text not in known]
  # At least once: places may have changed alone.
  for begin in range(0, max(1, len(new)), _SAVED):
    if part := new[begin : begin + _SAVED]:
      known |= dict(zip(part, normalized(embed(part)), strict=True))
    there = {place: text for place, text in rows.items() if text in known}
    vectors = np.stack([known[text] for text in there.values()])
    yield Index(model, list(there), list(there.values()), vectors)
