"""The passes over a corpus: counting its words, then encoding it, by a pool of processes, in order
and in bounded memory; and where sentences end in cleaned text.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt_jax.data.cleaning import clean_piece
from gpt_jax.data.pieces import Corpus, Piece, batched, split_document
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources.source import Source, plain_size, total_size
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified, with_checksum, write_json

TRAINED: dict[str, Any] = {  # the kinds of vocabulary that can be trained
  "sentencepiece": SentencePieceTokenizer,
  "wordpiece": WordPieceTokenizer,
  "bytes": ByteBPETokenizer,
}

Batch = list[tuple[int, Piece]]  # document number, piece
Sizes = list[tuple[int, bool]]  # of pieces: characters, and whether they end their documents
LEDGER = "removed.jsonl"
SURVEY = "survey.json"
FEW = 10_000  # documents; up to this many are held out by their size, more by their draw alone
SMALL = 4 << 20  # bytes; for less text, starting workers takes longer than they save
MAX_WORKERS = 6  # a single process reads for all, and each takes about 100 MB

Pool = concurrent.futures.ProcessPoolExecutor
Task = TypeVar("Task")
Result = TypeVar("Result")


class Encoded(NamedTuple):
  """The ids of a piece, the bytes and words of its cleaned text, and where its sentences end."""

  ids: np.ndarray
  n_bytes: int
  n_words: int
  sentence_ends: np.ndarray | None = None


class EncodedPiece(NamedTuple):
  """A piece of a document, of which this is the number, without its text."""

  document: int
  piece: Piece
  characters: int  # of its text
  encoded: Encoded


@dataclasses.dataclass
class Survey:
  """Sizes and words of the documents."""

  n_documents: int = 0
  n_characters: int = 0  # of all documents, before cleaning
  sizes: list[int] = dataclasses.field(default_factory=list)  # characters of the first FEW
  words: WordCounts = dataclasses.field(default_factory=WordCounts)  # not saved
  _size: int = 0  # of the current document

  def add(self, characters: int, last: bool) -> None:
    """Adds a piece of the current document; `last` ends it."""
    self.n_characters += characters
    self._size += characters
    if last:
      if self.n_documents < FEW:  # of many documents a draw alone decides, without sizes
        self.sizes.append(self._size)
      self.n_documents += 1
      self._size = 0

  def save(self, folder: str) -> None:
    """Writes its sizes to a folder, beside the vocabulary that was learned from its words."""
    sizes = {name: vars(self)[name] for name in ("n_documents", "n_characters", "sizes")}
    write_json(os.path.join(folder, SURVEY), with_checksum(sizes))

  @classmethod
  def read(cls, folder: str) -> "Survey":
    """The sizes saved in a folder. Raises OSError or ValueError: nothing, or it is damaged."""
    return cls(**verified(read_json(os.path.join(folder, SURVEY))))


class Passes:
  """The passes over a corpus on this machine, each in the order of the documents."""

  def __init__(self, pool: Pool | None):
    self._pool = pool

  def removed(self, corpus: Corpus, folder: str) -> np.ndarray:
    """The documents to leave out, here none; see Corpus. LEDGER in `folder` may say why."""
    return np.empty((0, 2), np.int64)

  def words(
    self, corpus: Corpus, kind: str, share: float
  ) -> Iterator[tuple[Sizes, dict[str, int]]]:
    """The sizes and words of each batch; words are counted only if `kind` is set."""
    batches = batched(corpus.pieces())
    count: Callable[[Batch], dict[str, int]]
    count = functools.partial(count_words, kind, share) if kind else lambda batch: {}
    # Sizes alone are not worth sending the texts to other processes.
    for batch, words in map_in_order(self._pool if kind else None, count, batches):
      yield [(len(piece.text), piece.last) for _, piece in batch], words

  def encoded(
    self,
    corpus: Corpus,
    folder: str,
    tokenizer: Tokenizer,
    sentences: bool,
    split: tuple[float, float] | None,
  ) -> Iterator[EncodedPiece]:
    """The ids of all pieces, by the tokenizer in `folder`.

    `split`: where a single document becomes 0 and 1, see split_document; None: it does not.
    """
    pieces = corpus.pieces()
    if split is not None:
      pieces = split_document(pieces, *split)
    work = functools.partial(encode, folder, tokenizer.hash, sentences)
    for batch, results in map_in_order(self._pool, work, batched(pieces)):
      for (document, piece), result in zip(batch, results, strict=True):
        yield EncodedPiece(document, piece._replace(text=""), len(piece.text), result)


def take_survey(corpus: Corpus, passes: Passes, kind: str, share: float) -> Survey:
  """Reads everything once: its size and, to train a vocabulary of a kind, its words."""
  survey = Survey()
  label = "counting words" if kind else "reading"
  with Progress(label, plain_size(corpus.sources), "characters") as progress:
    for sizes, words in passes.words(corpus, kind, share):
      survey.words.add(words)
      for characters, last in sizes:
        survey.add(characters, last)
        progress.add(characters)
  return survey


def local_pool(sources: Sequence[Source]) -> contextlib.AbstractContextManager[Pool | None]:
  """The processes that the size of the sources is worth; None: this process alone."""
  size = total_size(sources)
  is_small = size is not None and size < SMALL  # None: a source that does not tell its size
  return worker_pool(1 if is_small else min(MAX_WORKERS, os.cpu_count() or 1))


@contextlib.contextmanager
def worker_pool(count: int) -> Iterator[Pool | None]:
  """A pool of `count` processes; None, for this one, if that is enough or no others can be."""
  pool = None
  if count > 1:
    try:
      pool = spawned_pool(count)
    except InputError as error:
      warnings.warn(f"one process does the work: {error}", stacklevel=3)
  try:
    yield pool
  finally:
    if pool is not None:
      pool.shutdown(cancel_futures=True)


def spawned_pool(count: int) -> Pool:
  """A pool of fresh processes, which end when this one is gone."""
  spawn = multiprocessing.get_context("spawn")  # forking a process that runs JAX's threads can hang
  try:
    return Pool(count, mp_context=spawn, initializer=_exit_with_parent)
  except (OSError, ImportError, NotImplementedError) as error:
    raise InputError(f"there can be no other processes: {error}; is /dev/shm writable?") from error


def map_in_order(
  pool: Pool | None, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[tuple[Task, Result]]:
  """Yields (task, function(task)) for each task, in order; few tasks are held at a time."""
  if pool is None:
    for task in tasks:
      yield task, function(task)
    return
  waiting: collections.deque[tuple[Task, concurrent.futures.Future[Result]]] = collections.deque()
  for task in tasks:
    # This may start a worker, which inherits the signal mask: only the parent handles an interrupt.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting.append((task, pool.submit(function, task)))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Results come in order: without a bound, those behind a slow task would pile up.
    if len(waiting) > 2 * MAX_WORKERS:
      task, future = waiting.popleft()
      yield task, future.result()
  for task, future in waiting:
    yield task, future.result()


def _exit_with_parent() -> None:
  """Ends a worker when its parent is gone, even if that was killed."""
  parent = multiprocessing.parent_process()
  assert parent, "runs in workers only"

  def watch():
    parent.join()
    # Not sys.exit, which would end this thread alone.
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def in_sample(document: int, share: float) -> bool:
  """Whether a vocabulary is learned from a document: a share of them, by a hash of the number."""
  digest = hashlib.sha256(b"vocabulary %d" % document).digest()
  return int.from_bytes(digest[:8], "big") < share * 2**64


def count_words(kind: str, share: float, batch: Batch) -> dict[str, int]:
  """The words of a batch, for a vocabulary of a kind from a share of the documents."""
  counts, words_of = WordCounts(), TRAINED[kind].training_words
  for document, piece in batch:
    if share == 1 or in_sample(document, share):
      counts.add(collections.Counter(words_of(clean_piece(piece.text, piece.width))))
  return counts.words


def encode(
  folder: str, hash: str, sentences: bool, batch: list[tuple[Any, Piece]]
) -> list[Encoded]:
  """The pieces of a batch, by the tokenizer in a folder."""
  texts = [clean_piece(piece.text, piece.width) for _, piece in batch]
  tokenizer = _tokenizer(folder, hash)
  ids_and_ends: list[tuple[np.ndarray, np.ndarray | None]]
  if sentences:
    ids_and_ends = [*encode_sentences(tokenizer, texts)]
  else:
    ids_and_ends = [(ids, None) for ids in tokenizer.encode_many(texts)]
  return [
    Encoded(ids, len(text.encode()), len(text.split()), ends)
    for (ids, ends), text in zip(ids_and_ends, texts, strict=True)
  ]


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: str, hash: str) -> Tokenizer:
  """Loads a tokenizer once per process; once per hash, as a later run may write another there."""
  return load_tokenizer(folder)


# Words whose full stop ends no sentence, besides initials ("J. K. Jerome"); the second ones where a
# number follows.
TITLES = frozenset(
  "mr mrs ms messrs dr st mt prof rev gen col capt lieut lt sergt sgt maj gov sen rep hon pres "
  "supt vs viz cf i.e e.g".split()
)
BEFORE_NUMBERS = frozenset(
  "no nos vol fig ch chap sec art p pp jan feb mar apr jun jul aug sep sept oct nov dec".split()
)

# A stop with the quotes and brackets that close after it. The space belongs to what follows.
_STOPS = re.compile(r"""[.!?…؟।]["'”’»)\]*_]*(?=\s)|[。！？]["'”’」』）]*(?!$)""")
_LAST_WORD = re.compile(r"""[^\s"'“”‘’(\[—-]+$""")
_OPENING = re.compile(r"""[\s"'“‘«(\[*_-]*""")


def split_sentences(line: str, has_case: bool = True) -> list[str]:
  """The sentences of a paragraph. Joined, they are the paragraph: each begins with its space.

  A sentence ends after ".", "!", "?" or "…" with any closing quotes, where a space and no
  lower-case letter follow, and also after "。", "！" and "？". The full stop of an abbreviation or
  of an initial ends none. In a text without capitals (`has_case` false) lower-case letters begin
  sentences. The rule is for languages that mark sentences as English does; it is applied before a
  vocabulary folds case.
  """
  ends = []
  for stop in _STOPS.finditer(line):
    begin, end = stop.span()
    opening = _OPENING.match(line, end)
    following = line[opening.end() if opening else end :][:1]
    if not following or (has_case and following.islower()):
      continue
    if line[begin] == "." and _is_abbreviation(line[max(0, begin - 20) : begin], following):
      continue
    ends.append(end)
  return [line[begin:end] for begin, end in itertools.pairwise([0, *ends, len(line)])]


def _is_abbreviation(before: str, following: str) -> bool:
  """Whether the full stop after a text is that of its last word."""
  match = _LAST_WORD.search(before)
  if not match:
    return False
  word = match[0]
  if len(word) == 1 and word.isupper() and word != "I":
    return True
  word = word.lower()
  return word in TITLES or (following.isdigit() and word in BEFORE_NUMBERS)


def encode_sentences(
  tokenizer: Tokenizer, texts: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
  """The ids of each text, int32 [n], and where its sentences end, int64 [k] in 1..n.

  Each sentence is encoded by itself, so that no token lies in two. A line break ends a sentence,
  and its own token, in vocabularies that have one, begins the next.
  """
  sentences: list[str] = []
  lengths: list[list[int]] = []  # sentences in each line of each text
  for text in texts:
    has_case = text != text.lower()
    lines = [split_sentences(line, has_case) for line in text.split("\n")]
    lengths.append(list(map(len, lines)))
    sentences.extend(itertools.chain.from_iterable(lines))
  encoded = iter(tokenizer.encode_many(sentences))
  line_break = np.array([] if tokenizer.line_id is None else [tokenizer.line_id], np.int32)
  results = []
  for counts in lengths:
    parts = [np.empty(0, np.int32)]
    for number, count in enumerate(counts):
      for first in range(count):
        ids = next(encoded)
        parts.append(np.concatenate([line_break, ids]) if number and not first else ids)
    sizes = np.array(list(map(len, parts)), np.int64)
    # A sentence whose text the tokenizer drops ends nowhere.
    results.append((np.concatenate(parts), np.cumsum(sizes)[sizes > 0]))
  return results
