"""The work of a runner on one source in each pass, and the file that it writes.

A file is a sequence of frames: NumPy archives, each preceded by its size. It is written under
another name first, so a file that exists is complete.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.corpus.prints import PRINT, prints
from gpt_jax.data.passes import encode, in_sample, piece_words
from gpt_jax.data.pieces import Corpus, Piece, batched
from gpt_jax.data.sources.source import Source
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, local_copy, write_json

JOINTS = ("", " ", "\n")
Frame = dict[str, np.ndarray]


class Work(NamedTuple):
  """One source in one pass; what a runner sends to its workers.

  Attributes:
    path: of the file to write.
    number: of the source.
    source: its name.
    field: see Corpus.
    removed: the numbers of its documents to leave out.
    options: of the pass.
  """

  path: str
  number: int
  source: str
  field: str
  removed: tuple[int, ...]
  options: tuple[Any, ...]

  def corpus(self) -> Corpus:
    removed = np.array([(0, number) for number in self.removed], np.int64).reshape(-1, 2)
    return Corpus([Source(self.source, 0)], self.field, removed)


def do(make: Callable[..., Iterable[Frame]], work: Work) -> None:
  """Writes the frames of a source, or beside them the message of its InputError."""
  try:
    with atomic_file(work.path, "wb") as file:
      for frame in make(work, *work.options):
        content = io.BytesIO()
        np.savez(content, **frame)  # type: ignore[arg-type]  # of NumPy: a keyword for each array
        file.write(content.tell().to_bytes(8, "little") + content.getvalue())
  except InputError as error:
    write_json(f"{work.path}.error", str(error))


def frames(path: str) -> Iterator[Frame]:
  with local_copy(path) as copy, open(copy, "rb") as file:
    while size := file.read(8):
      with np.load(io.BytesIO(file.read(int.from_bytes(size, "little"))), allow_pickle=False) as a:
        yield dict(a)


def prints_of(work: Work, near: bool, rows: str) -> Iterator[Frame]:
  """Records of documents, a thousand in a frame."""
  source = (work.number, Source(work.source, 0))
  records: list[np.ndarray] = []
  for record in prints([source], work.field, near, rows, None):
    records.append(record)
    if len(records) == 1000:
      yield {"prints": np.array(records, PRINT)}
      records = []
  yield {"prints": np.array(records, PRINT)}


def words_of(work: Work, kind: str, first: int, share: float) -> Iterator[Frame]:
  """The sizes and words of pieces. `first` is the number of the source's first document."""
  for batch in batched(work.corpus().pieces()):
    words = []
    for document, piece in batch:
      chosen = kind and (share == 1 or in_sample(first + document, share))
      words.append(piece_words(kind, piece) if chosen else {})
    yield {
      **_sizes(batch),
      "words": np.frombuffer(json.dumps(words).encode(), np.uint8),
    }


def _sizes(batch: Iterable[tuple[int, Piece]]) -> Frame:
  """The characters of each piece, and whether it ends its document."""
  characters, last = [], []
  for _, piece in batch:
    characters.append(len(piece.text))
    last.append(piece.last)
  return {"characters": np.array(characters, np.int64), "last": np.array(last, bool)}


def tokens_of(work: Work, folder: str, hash: str, sentences: bool) -> Iterator[Frame]:
  """The ids of pieces."""
  for batch in batched(work.corpus().pieces()):
    encoded = encode(folder, hash, sentences, batch)
    none = np.empty(0, np.int64)
    ends = [none if item.sentence_ends is None else item.sentence_ends for item in encoded]
    yield {
      "ids": np.concatenate([item.ids for item in encoded]),
      "sizes": np.array([len(item.ids) for item in encoded], np.int64),
      "n_bytes": np.array([item.n_bytes for item in encoded], np.int64),
      "n_words": np.array([item.n_words for item in encoded], np.int64),
      "ends": np.concatenate(ends),
      "n_ends": np.array(list(map(len, ends)), np.int64),
      **_sizes(batch),
      "joint": np.array([JOINTS.index(piece.joint) for _, piece in batch], np.int8),
    }
