"""Prepares a text without duplicates and evaluation rows, also by runners of Apache Beam.

On a runner a pass is a pipeline with an element per source, whose result is a file in the folder
`stages`; the launching process joins them in the order of the sources, so that the result is that
without a runner. What a killed run has finished is not done again. All workers must see the folder,
which may be on a store.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.corpus.removal import PRINT, Removing, RemovingPasses
from gpt_jax.config import option, register
from gpt_jax.data import pieces
from gpt_jax.data.passes import (
  Encoded,
  EncodedPiece,
  Passes,
  Sizes,
  encode,
  in_sample,
  local_pool,
  piece_words,
)
from gpt_jax.data.pieces import Corpus, Piece, batched
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources.source import Source
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.errors import InputError, require
from gpt_jax.files import (
  atomic_file,
  exists,
  list_folder,
  local_copy,
  make_folders,
  parse_json,
  read_json,
  remove_folder,
  write_json,
)
from gpt_jax.programs import prepare

RUNNERS = ("direct", "dataflow", "flink", "spark")


@register("corpus")
@dataclasses.dataclass(frozen=True)
class CorpusConfig(prepare.PrepareConfig):
  """A preparation of text, what to remove from it, and who does the work."""

  deduplicate: str = option(
    "none",
    "documents to remove: exact duplicates of earlier ones, or near-duplicates too (MinHash); "
    "removed.jsonl says which and why",
    choices=("none", "exact", "near"),
  )
  decontaminate: str = option(
    "",
    "files of evaluation rows (text, JSON lines, tables) and names of tasks, separated by commas; "
    "documents with a row in them are removed",
  )
  data: str = option("", "folder of the tasks named by --decontaminate")
  runner: str = option(
    "",
    "Apache Beam's runner that shares the work: direct (this machine), dataflow, flink or spark; "
    "without one, processes of this machine do it. The result is the same",
    choices=("", *RUNNERS),
  )
  beam_options: str = option("", "options for --runner, such as '--project=P --region=R'")


def run(config: CorpusConfig, out: str) -> None:
  """Makes the folder `out`, as `prepare.run` does, with removed.jsonl if documents are removed.

  The config's runner, beam_options and data change nothing in the result.
  """
  if config.runner:
    require_beam(config.runner, config.beam_options)
  removing = Removing(config.deduplicate, config.decontaminate, config.data)

  @contextlib.contextmanager
  def passes(sources: Sequence[Source], folder: str, key: dict[str, Any]) -> Iterator[Passes]:
    if config.runner:
      yield BeamPasses(removing, config.runner, config.beam_options, folder, key)
      remove_folder(folder)
    else:
      with local_pool(sources) as pool:
        yield RemovingPasses(removing, pool)

  prepare.run(config, out, passes, removing.settings)


class Work(NamedTuple):
  """One source in one pass; what a runner sends to its workers."""

  path: str  # of the file to write
  number: int  # of the source
  corpus: Corpus  # of this source alone
  options: tuple[Any, ...]  # of the pass


def do(make: Callable[..., Iterable[Any]], work: Work) -> None:
  """Writes JSON lines of a source, or beside them the message of its InputError."""
  try:
    with atomic_file(work.path) as file:
      for entry in make(work, *work.options):
        file.write(json.dumps(entry) + "\n")
  except InputError as error:
    write_json(f"{work.path}.error", str(error))


def prints_of(work: Work, near: bool, rows: str) -> Iterator[str]:
  """A record for each document, in hexadecimal digits."""
  removing = Removing("near" if near else "exact", "", "")
  for record in RemovingPasses(removing, None).prints(work.corpus, rows, Progress("")):
    record["source"] = work.number
    yield record.tobytes().hex()


def words_of(work: Work, kind: str, first: int, share: float) -> Iterator[tuple[Any, ...]]:
  """The sizes and words of pieces. `first` is the number of the source's first document."""
  for document, piece in work.corpus.pieces():
    chosen = kind and (share == 1 or in_sample(first + document, share))
    yield len(piece.text), piece.last, piece_words(kind, piece) if chosen else {}


def tokens_of(work: Work, folder: str, hash: str, sentences: bool) -> Iterator[tuple[Any, ...]]:
  """The sizes of pieces, their ids and where their sentences end."""
  for batch in batched(work.corpus.pieces()):
    encoded = encode(folder, hash, sentences, batch)
    for (_, piece), item in zip(batch, encoded, strict=True):
      ends = None if item.sentence_ends is None else item.sentence_ends.tolist()
      sizes = len(piece.text), item.n_bytes, item.n_words
      yield piece.joint, piece.last, *sizes, item.ids.tolist(), ends


class BeamPasses(RemovingPasses):
  """The passes by a runner of Beam."""

  def __init__(
    self, removing: Removing, runner: str, options: str, folder: str, key: dict[str, Any]
  ):
    """`options` are Beam's, as in a shell; `folder`, for results that depend on `key`, may hold
    those of a killed run.
    """
    super().__init__(removing, pool=None)
    self._pipeline = functools.partial(make_pipeline, runner, options)
    self._folder = folder
    if not prepare.has_key(folder, key):
      if exists(folder):  # of a killed run with other settings
        remove_folder(folder)
      make_folders(folder)
      write_json(os.path.join(folder, prepare.KEY), key)

  def prints(self, corpus: Corpus, rows: str, progress: Progress) -> Iterator[np.ndarray]:
    """See RemovingPasses."""
    if rows:  # to where all workers see it
      shared = os.path.join(self._folder, os.path.basename(rows))
      with open(rows, "rb") as local, atomic_file(shared, "wb") as file:
        file.write(local.read())
      rows = shared
    progress.begin("", unit="documents")  # the workers do not tell characters
    for _, record in self._numbered("prints", prints_of, corpus, (self._removing.near, rows)):
      progress.add(1)
      yield np.frombuffer(bytes.fromhex(record), PRINT)

  def words(
    self, corpus: Corpus, kind: str, share: float
  ) -> Iterator[tuple[Sizes, dict[str, int]]]:
    """The same batches as without a runner, since the rarest words are dropped between them."""
    counts = np.zeros(len(corpus.sources), int)
    if share != 1:
      for number, (_, last, _) in self._numbered("sizes", words_of, corpus, ("", 0, 1.0)):
        counts[number] += last
    options = [(kind, first, share) for first in (np.cumsum(counts) - counts).tolist()]
    sizes: Sizes = []
    words, total = WordCounts(), 0
    for _, (characters, last, counted) in self._numbered("words", words_of, corpus, options):
      sizes.append((characters, last))
      words.add(counted)
      total += characters + pieces.OVERHEAD
      if total >= pieces.PIECE_SIZE:
        yield sizes, words.words
        sizes, words, total = [], WordCounts(), 0
    if sizes:
      yield sizes, words.words

  def encoded(
    self, corpus: Corpus, folder: str, tokenizer: Tokenizer, sentences: bool, limit: float | None
  ) -> Iterator[EncodedPiece]:
    """The ids of all pieces. This process encodes a single document."""
    if limit is not None:
      yield from super().encoded(corpus, folder, tokenizer, sentences, limit)
      return
    document, name = 0, tokenizer.hash[:8]
    vocabulary = os.path.join(self._folder, f"tokenizer-{name}")  # where all workers see it
    tokenizer.save(vocabulary)
    options = (vocabulary, tokenizer.hash, sentences)
    for _, entry in self._numbered(f"tokens-{name}", tokens_of, corpus, options):
      joint, last, characters, n_bytes, n_words, ids, ends = entry
      sentence_ends = None if ends is None else np.array(ends, np.int64)
      encoded = Encoded(np.array(ids, np.int32), n_bytes, n_words, sentence_ends)
      yield EncodedPiece(document, Piece("", None, joint, last), characters, encoded)
      document += last

  def _numbered(
    self,
    name: str,
    make: Callable[..., Iterable[Any]],
    corpus: Corpus,
    options: tuple[Any, ...] | list[tuple[Any, ...]],
  ) -> Iterator[tuple[int, Any]]:
    """Runs a pass over the sources not done yet; yields what all gave, with their sources."""
    tasks = []
    for number, source in enumerate(corpus.sources):
      path = os.path.join(self._folder, f"{name}-{number:06}.jsonl")
      first, end = np.searchsorted(corpus.removed[:, 0], (number, number + 1))
      alone = Corpus([source], corpus.field, corpus.removed[first:end] - [number, 0])
      of_source = options[number] if isinstance(options, list) else options
      tasks.append(Work(path, number, alone, of_source))
    done = set(list_folder(self._folder))
    missing = [task for task in tasks if os.path.basename(task.path) not in done]
    if missing:
      self._pipeline(functools.partial(do, make), missing)
    done = set(list_folder(self._folder))
    for task in tasks:
      name = os.path.basename(task.path)
      if name not in done and f"{name}.error" in done:
        raise InputError(str(read_json(f"{task.path}.error")))
      if name not in done:
        raise InputError(
          f"{corpus.sources[task.number].name}: no worker left a result in {self._folder}, which "
          "all of them must see"
        )
      with local_copy(task.path) as copy, open(copy, encoding="ascii") as file:
        for line in file:
          yield task.number, parse_json(line)


def make_pipeline(
  runner: str, options: str, function: Callable[[Work], None], tasks: Sequence[Work]
) -> None:
  """Runs the function on every task."""
  beam, pipeline_options = require_beam(runner, options)
  chosen: Any = f"{runner.capitalize()}Runner"
  if runner == "direct":
    # Of this process: Beam's default for one machine, Prism, is a program that it downloads.
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    chosen = FnApiRunner()
  try:
    with beam.Pipeline(runner=chosen, options=pipeline_options) as pipeline:
      made = pipeline | beam.Create(list(tasks)) | beam.Reshuffle()
      made | beam.Map(function)
  except Exception as error:  # a runner's own kinds
    message = " ".join(str(error).split())[:300]
    raise InputError(f"--runner={runner}: the pipeline failed: {message}") from error


def require_beam(runner: str, options: str) -> tuple[Any, Any]:
  """The package and the options for a pipeline; InputError if either cannot be used."""
  beam = require("apache_beam", f"--runner={runner}", "apache-beam", "beam")
  from apache_beam.options.pipeline_options import PipelineOptions

  if runner == "dataflow" and importlib.util.find_spec("google_auth_httplib2") is None:
    raise InputError("--runner=dataflow needs Google's packages: pip install 'apache-beam[gcp]'")
  try:
    words = shlex.split(options)
  except ValueError as error:
    raise InputError(f"--beam_options: {options!r}: {error}") from error
  if wrong := next((word for word in words if not word.startswith("--")), ""):
    raise InputError(f"--beam_options: {wrong!r} should be --NAME=VALUE, as for Beam")
  return beam, PipelineOptions(words)
