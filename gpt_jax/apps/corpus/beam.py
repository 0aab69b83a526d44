"""The passes over a corpus on a runner of Apache Beam.

A pass is a pipeline with an element per source, whose result is a file in the folder `stages`; the
launching process joins them in the order of the sources, so that the result is the one without a
runner. What a killed run has finished is not done again. All workers must see the folder, which may
be on a store.
"""

import functools
import importlib.util
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.corpus import stages
from gpt_jax.apps.corpus.removal import Removing, RemovingPasses
from gpt_jax.apps.corpus.stages import Frame, Work
from gpt_jax.data import pieces
from gpt_jax.data.passes import Encoded, EncodedPiece, Sizes
from gpt_jax.data.pieces import Corpus, Piece
from gpt_jax.data.progress import Progress
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.errors import InputError
from gpt_jax.files import (
  atomic_file,
  exists,
  list_folder,
  make_folders,
  parse_json,
  read_json,
  remove_folder,
  write_json,
)
from gpt_jax.programs.prepare import KEY, has_key

RUNNERS = {
  "direct": "",
  "dataflow": "DataflowRunner",
  "flink": "FlinkRunner",
  "spark": "SparkRunner",
}


class BeamPasses(RemovingPasses):
  """The passes by a runner of Beam."""

  def __init__(
    self, removing: Removing, runner: str, options: str, folder: str, key: dict[str, Any]
  ):
    """Args:
    removing: which documents to remove.
    runner: one of RUNNERS.
    options: of Beam, as in a shell.
    folder: for the results; it may hold those of a killed run.
    key: what the results depend on.
    """
    super().__init__(removing, pool=None)
    self._pipeline = functools.partial(make_pipeline, runner, options)
    self._folder = folder
    if not has_key(folder, key):
      if exists(folder):  # of a killed run with other settings
        remove_folder(folder)
      make_folders(folder)
      write_json(os.path.join(folder, KEY), key)

  def prints(
    self, corpus: Corpus, near: bool, rows: str, progress: Progress
  ) -> Iterator[np.ndarray]:
    """Arrays of records."""
    if rows:  # to where all workers see it
      shared = os.path.join(self._folder, os.path.basename(rows))
      with open(rows, "rb") as local, atomic_file(shared, "wb") as file:
        file.write(local.read())
      rows = shared
    progress.begin("", unit="documents")  # the workers do not tell characters
    for frame in self._run("prints", stages.prints_of, corpus, (near, rows)):
      progress.add(len(frame["prints"]))
      yield frame["prints"]

  def words(
    self, corpus: Corpus, kind: str, share: float
  ) -> Iterator[tuple[Sizes, dict[str, int]]]:
    """The same batches as without a runner, since the rarest words are dropped between them."""
    firsts: list[int] = [0] * len(corpus.sources)
    if share != 1:
      for number, frame in self._numbered("sizes", stages.words_of, corpus, ("", 0, 1.0)):
        firsts[number] += int(frame["last"].sum())
      firsts = [0, *np.cumsum(firsts)[:-1].tolist()]
    options = [(kind, first, share) for first in firsts]
    sizes: Sizes = []
    words, total = WordCounts(), 0
    for _, frame in self._numbered("words", stages.words_of, corpus, options):
      counts = parse_json(frame["words"].tobytes())
      of_pieces = zip(frame["characters"].tolist(), frame["last"].tolist(), counts, strict=True)
      for characters, last, counted in of_pieces:
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
    for frame in self._run(f"tokens-{name}", stages.tokens_of, corpus, options):
      ids = np.split(frame["ids"], np.cumsum(frame["sizes"])[:-1])
      ends = np.split(frame["ends"], np.cumsum(frame["n_ends"])[:-1])
      for index, last in enumerate(frame["last"].tolist()):
        encoded = Encoded(
          ids[index],
          int(frame["n_bytes"][index]),
          int(frame["n_words"][index]),
          ends[index] if sentences else None,
        )
        joint = stages.JOINTS[frame["joint"][index]]
        piece = Piece("", None, joint, last)
        yield EncodedPiece(document, piece, int(frame["characters"][index]), encoded)
        document += last

  def _run(self, *arguments: Any) -> Iterator[Frame]:
    return (frame for _, frame in self._numbered(*arguments))

  def _numbered(
    self,
    name: str,
    make: Callable[..., Iterable[Frame]],
    corpus: Corpus,
    options: tuple[Any, ...] | list[tuple[Any, ...]],
  ) -> Iterator[tuple[int, Frame]]:
    """Runs a pass over the sources not done yet; yields the frames of all, with their sources."""
    removed: list[list[int]] = [[] for _ in corpus.sources]
    for source_number, number in corpus.removed.tolist():
      removed[source_number].append(number)
    tasks = [
      Work(
        os.path.join(self._folder, f"{name}-{number:06}"),
        number,
        source.name,
        corpus.field,
        tuple(removed[number]),
        options[number] if isinstance(options, list) else options,
      )
      for number, source in enumerate(corpus.sources)
    ]
    done = self._done()
    missing = [task for task in tasks if os.path.basename(task.path) not in done]
    if missing:
      self._pipeline(functools.partial(stages.do, make), missing)
    done = self._done()
    for task in tasks:
      if os.path.basename(task.path) not in done:
        raise InputError(self._fault(task, done))
      for frame in stages.frames(task.path):
        yield task.number, frame

  def _fault(self, task: Work, done: set[str]) -> str:
    """Why there is no result of a task."""
    if f"{os.path.basename(task.path)}.error" in done:
      return str(read_json(f"{task.path}.error"))
    return f"{task.source}: no worker left a result in {self._folder}, which all of them must see"

  def _done(self) -> set[str]:
    """The names of what the workers have written so far."""
    return set(list_folder(self._folder))


def make_pipeline(
  runner: str, options: str, function: Callable[[Work], None], tasks: Sequence[Work]
) -> None:
  """Runs the function on every task.

  Raises:
    InputError: Beam is not installed, or the runner refuses its options or cannot be reached.
  """
  beam, pipeline_options = require_beam(runner, options)
  chosen: Any = RUNNERS[runner]
  if not chosen:
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
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
  except ImportError as error:
    raise InputError(f"--runner={runner} needs apache-beam: pip install 'gpt_jax[beam]'") from error
  if runner == "dataflow" and importlib.util.find_spec("google_auth_httplib2") is None:
    raise InputError("--runner=dataflow needs Google's packages: pip install 'apache-beam[gcp]'")
  try:
    words = shlex.split(options)
  except ValueError as error:
    raise InputError(f"--beam_options: {options!r}: {error}") from error
  if wrong := next((word for word in words if not word.startswith("--")), ""):
    raise InputError(f"--beam_options: {wrong!r} should be --NAME=VALUE, as for Beam")
  return beam, PipelineOptions(words)
