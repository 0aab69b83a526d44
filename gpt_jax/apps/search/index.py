"""An index on disk: texts, where they are from, and their vectors by one model."""

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, exists, is_folder, list_folder, read_json, write_json
from gpt_jax.packages import require

ROWS = "index.json"
_BLOCK = 1 << 16  # vectors that are compared at a time
_QUERIES = 256  # at a time
_MANY = 1_000_000  # from which on faiss is worth its installation
_LIMIT = 1 << 33  # bytes of index.json


class Index(NamedTuple):
  """Texts and their vectors.

  Attributes:
    model: digest of the weights and the vocabulary that made the vectors.
    places: where each text is from, "FILE:NUMBER".
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
    InputError: a damaged one, or a folder of something else.
  """
  path = os.path.join(folder, ROWS)
  if not exists(path):
    if is_folder(folder) and list_folder(folder):
      raise InputError(f"--index={folder}: holds something else than an index; use a new folder")
    return None
  try:
    tree = read_json(path, _LIMIT)
    vectors = np.load(os.path.join(folder, tree["vectors"]), allow_pickle=False)
    index = Index(tree["model"], tree["places"], tree["texts"], vectors)
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{path}: cannot be read ({error}); remove the folder to make it anew"
    ) from error
  if not len(index.places) == len(index.texts) == len(vectors) or _name(vectors) != tree["vectors"]:
    raise InputError(f"{path}: damaged, its vectors are not those it was written with")
  return index


def write_index(folder: str, index: Index) -> None:
  """Writes an index; one that was there stays whole until the new one is."""
  os.makedirs(folder, exist_ok=True)
  name = _name(index.vectors)
  with atomic_file(os.path.join(folder, name), "wb") as file:
    np.save(file, index.vectors)
  # Last, since it names the vectors: an index that is read has both, or is the old one.
  tree = {"model": index.model, "vectors": name, "places": index.places, "texts": index.texts}
  write_json(os.path.join(folder, ROWS), tree)
  for old in list_folder(folder):
    if old.startswith("vectors-") and old.endswith(".npy") and old != name:
      os.remove(os.path.join(folder, old))


def _name(vectors: np.ndarray) -> str:
  return f"vectors-{hashlib.sha256(vectors.tobytes()).hexdigest()[:16]}.npy"


def updated(
  old: Index | None,
  model: str,
  places: Sequence[str],
  texts: Sequence[str],
  embed: Callable[[list[str]], np.ndarray],
) -> tuple[Index, int]:
  """An index of these texts, and how many were embedded; vectors of texts that the old one has are
  taken from it, wherever they were.
  """
  known: dict[str, np.ndarray] = {}  # a text that moved to another file keeps its vector
  if old is not None:
    known = dict(zip(old.texts, old.vectors, strict=True))
  new = [text for text in dict.fromkeys(texts) if text not in known]
  if new:
    known |= dict(zip(new, normalized(embed(new)), strict=True))
  vectors = np.stack([known[text] for text in texts])
  return Index(model, list(places), list(texts), vectors), len(new)
