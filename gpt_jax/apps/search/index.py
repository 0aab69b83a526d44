"""An index on disk: texts, where they are from, and their vectors by one model."""

import contextlib
import fcntl
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gpt_jax import files
from gpt_jax.errors import InputError

ROWS = "index.json"
# Queries compared at a time: fewer where that makes more cosines than this.
_QUERIES, _COSINES = 256, 1 << 24
_SAVED = 1 << 15  # texts that are embedded before the index is written
_MAX_BYTES = 1 << 33  # of index.json
_VECTORS = re.compile(r"vectors-[0-9a-f]{16}\.npy")
_UNFINISHED = re.compile(rf"{_VECTORS.pattern}(\.partial-\d+)?|index\.json\.partial-\d+")


class Index(NamedTuple):
  """Texts and their vectors."""

  model: str  # digest of the weights and the vocabulary that made the vectors
  places: list[str]  # where each text is from, "FILE:NUMBER"; the first text of a file is number 1
  texts: list[str]
  vectors: np.ndarray  # float32 [N, D], of length 1

  def nearest(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The texts with the highest cosines, exactly: their numbers and cosines, [Q, K] each.

    Of equal cosines the earlier text comes first.

    Args:
      queries: [Q, D], of any length.
      count: K, at most N.
    """
    _check_width(self.vectors, queries)
    numbers, cosines = [], []
    # In blocks, so that memory does not grow with the number of queries.
    at_once = min(_QUERIES, 1 + _COSINES // (1 + len(self.vectors)))
    blocks = max(1, math.ceil(len(queries) / at_once))
    for block in np.array_split(normalized(queries), blocks):
      of_block = block @ self.vectors.T
      # A copy: a view would keep the numbers of all texts.
      best = np.argsort(-of_block, axis=1, kind="stable")[:, :count].copy()
      numbers.append(best)
      cosines.append(np.take_along_axis(of_block, best, axis=1))
    return np.concatenate(numbers), np.concatenate(cosines)


def _check_width(vectors: np.ndarray, others: np.ndarray) -> None:
  if vectors.shape[1] != others.shape[1]:
    raise InputError(
      f"an index with vectors of {vectors.shape[1]} numbers, where the model's have "
      f"{others.shape[1]}; remove its folder to make it anew"
    )


def normalized(vectors: np.ndarray) -> np.ndarray:
  """Vectors [N, D] of length 1; zeros stay."""
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def read_index(folder: str) -> Index | None:
  """The index in a folder; None: there is none, or one whose first write was cut off."""
  path = os.path.join(folder, ROWS)
  other = InputError(f"--index={folder}: is something else than an index; use a new folder")
  try:
    if files.exists(path):
      return _read(folder)
    names = files.list_folder(folder) if files.exists(folder) else []
  except NotADirectoryError as error:
    raise other from error
  except PermissionError as error:
    raise InputError(f"--index={folder}: cannot be read ({error.strerror})") from error
  except (OSError, ValueError, MemoryError) as error:
    raise InputError(
      f"{path}: cannot be read ({error}); remove the folder to make it anew"
    ) from error

  if not all(map(_UNFINISHED.fullmatch, names)):
    raise other
  return None


def _read(folder: str, gone: str = "") -> Index:
  """The index that index.json names. Raises OSError or ValueError.

  gone: vectors that it named before, and that are not there.
  """
  tree = files.read_json(os.path.join(folder, ROWS), _MAX_BYTES)
  if isinstance(tree, dict) and "checksum" in tree:  # earlier versions wrote none
    tree = files.verified(tree)
  if not isinstance(tree, dict) or tree.keys() != {"model", "vectors", "places", "texts"}:
    raise ValueError("should have model, vectors, places and texts")
  for name in ("places", "texts"):
    if not isinstance(tree[name], list) or not all(isinstance(x, str) for x in tree[name]):
      raise ValueError(f"{name} should be a list of strings")
  name = tree["vectors"]
  if not isinstance(tree["model"], str) or not _VECTORS.fullmatch(str(name)):
    raise ValueError("model or vectors is no name of ours")
  try:
    vectors = _read_vectors(os.path.join(folder, name))
  except FileNotFoundError:
    if name == gone:
      raise
    return _read(folder, name)  # an update removes the old vectors once index.json names others
  if not len(tree["places"]) == len(tree["texts"]) == len(vectors) or _name(vectors) != name:
    raise ValueError("damaged, its vectors are not those it was written with")
  return Index(tree["model"], tree["places"], tree["texts"], vectors)


def _read_vectors(path: str) -> np.ndarray:
  """float32 [N, D], each of length 1, or zeros. Raises OSError or ValueError."""
  with files.open_regular(path) as file:
    try:
      np.lib.format.read_magic(file)
      shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # NumPy reads it as Python, whose errors are many
      raise ValueError(f"{os.path.basename(path)}: has no header of an array") from error
    # Before memory is taken: a header may promise any number of rows.
    size = os.fstat(file.fileno()).st_size - file.tell()
    if dtype != np.float32 or by_columns or len(shape) != 2 or 4 * math.prod(shape) != size:
      raise ValueError(f"{os.path.basename(path)}: damaged, holds no table of float32")
    vectors = np.frombuffer(file.read(), np.float32).reshape(shape)
  squares = np.einsum("nd,nd->n", vectors, vectors)
  if not ((np.abs(squares - 1) < 1e-3) | (squares == 0)).all():
    raise ValueError(f"{os.path.basename(path)}: holds vectors whose length is not 1")
  return vectors


def write_index(folder: str, index: Index) -> None:
  """Writes an index; one that was there stays whole until the new one is.

  Of two programs that write at once the second waits for the first; the last one's index stays.
  """
  name = _name(index.vectors)
  tree = {"model": index.model, "vectors": name, "places": index.places, "texts": index.texts}
  try:
    with _locked(folder):
      with files.atomic_file(os.path.join(folder, name), "wb") as file:
        np.save(file, index.vectors)
      # Last, since it names the vectors: an index that is read has both, or is the old one.
      files.write_json(os.path.join(folder, ROWS), files.with_checksum(tree))
      for old in files.list_folder(folder):
        if old != name and _is_ours(os.path.join(folder, old)):
          os.remove(os.path.join(folder, old))
  except OSError as error:
    raise InputError(f"--index={folder}: cannot be written ({error.strerror})") from error


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
  """Excludes other writers, where the file system can lock folders."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def _is_ours(path: str) -> bool:
  """Whether a file's name is the digest of its vectors, so that it is no file of the user's."""
  name = os.path.basename(path)
  try:
    return bool(_VECTORS.fullmatch(name)) and _name(_read_vectors(path)) == name
  except (OSError, ValueError):
    return False


def _name(vectors: np.ndarray) -> str:
  return f"vectors-{hashlib.sha256(vectors.tobytes()).hexdigest()[:16]}.npy"


def updates(
  old: Index | None, model: str, rows: Mapping[str, str], embed: Callable[[list[str]], np.ndarray]
) -> Iterator[Index]:
  """Indexes of these texts: of those embedded so far, and in the end of all.

  Args:
    old: vectors of texts that it has are taken from it, wherever they were.
    model: digest of what embeds.
    rows: place -> text.
    embed: embed(texts) -> [N, D].
  """
  # A text that moved to another file keeps its vector.
  known = {} if old is None else dict(zip(old.texts, old.vectors, strict=True))
  new = [text for text in dict.fromkeys(rows.values()) if text not in known]
  # At least once: places may have changed alone.
  for begin in range(0, max(1, len(new)), _SAVED):
    if part := new[begin : begin + _SAVED]:
      vectors = normalized(embed(part))
      if old is not None:
        _check_width(old.vectors, vectors)
      known |= dict(zip(part, vectors, strict=True))
    places = [place for place, text in rows.items() if text in known]
    texts = [rows[place] for place in places]
    yield Index(model, places, texts, np.stack([known[text] for text in texts]))
