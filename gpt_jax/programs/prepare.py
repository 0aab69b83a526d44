"""Prepares text for pre-training: cleans it, trains or reuses a tokenizer, writes token files."""

import contextlib
import dataclasses
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.config import option, register, validate
from gpt_jax.data import splits
from gpt_jax.data.passes import TRAINED, LocalPasses
from gpt_jax.data.progress import progress
from gpt_jax.data.removal import LEDGER, NUMBERS, Corpus
from gpt_jax.data.sources.source import Source, find_all, is_plain_text, usage
from gpt_jax.data.survey import FILE as SURVEY
from gpt_jax.data.survey import Survey, read_survey
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer, require
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.data.workers import MAX_WORKERS, worker_pool
from gpt_jax.errors import InputError
from gpt_jax.files import (
  abandoned,
  atomic_folder,
  check_writable,
  exists,
  is_folder,
  is_uploading,
  is_url,
  list_folder,
  read_json,
  write_json,
)
from gpt_jax.parallel.memory import peak_with_workers
from gpt_jax.programs.preparing.beam import (
  RUNNERS,
  STAGES,
  BeamPasses,
  adopt_stages,
  require_beam,
  stages_folder,
  stages_key,
)
from gpt_jax.programs.preparing.removing import Removing

SETTINGS = "prepare.json"
DEFAULT_VOCAB_SIZE = 40_000
SMALL = 4 << 20  # bytes; for less text, starting workers takes longer than they save
NOBODY = 10**9  # no process has this number
HOW = ("runner", "beam_options", "data")  # change nothing in the result
# Settings of folders made before these options.
BEFORE_REMOVAL = {
  "shard_tokens": 0,
  "deduplicate": "none",
  "decontaminate": "",
  "evaluation_rows": "",
  "vocabulary_share": 1.0,
}

Passes = LocalPasses | BeamPasses


@register("prepare")
@dataclasses.dataclass(frozen=True)
class PrepareConfig:
  """A preparation of text: its sources, vocabulary, filters and runner."""

  source: str = option("embedded", f"{usage()}; several separated by commas")
  vocab_size: int = option(
    0,
    f"ids in the vocabulary to train; 0: {DEFAULT_VOCAB_SIZE:,}, or those of --tokenizer",
    unit="ids",
    low=0,
  )
  vocabulary: str = option(
    "sentencepiece",
    "kind of vocabulary to train: sentencepiece (GPT-1 and all others), wordpiece (BERT's, lower "
    "case) or bytes (RoBERTa's byte-level BPE)",
    choices=tuple(TRAINED),
  )
  tokenizer: str = option("", "folder of a tokenizer, ours or a released one, to use as it is")
  valid_share: float = option(
    0.01, "share of the text, by document, held out for validation", low=0.0001, high=0.5
  )
  text_column: str = option(
    "text", "column of tables, or field of JSON lines and TFDS rows, that holds the text"
  )
  sentences: bool = option(
    False, "record where sentences end, for objectives that pair or pack them, such as BERT's"
  )

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
  vocabulary_share: float = option(
    1.0,
    "share of the documents, drawn by number, that a vocabulary is learned from",
    low=1e-6,
    high=1.0,
  )
  data: str = option("", "folder of the tasks named by --decontaminate")
  runner: str = option(
    "",
    "Apache Beam's runner that shares the work: direct (this machine), dataflow, flink or spark; "
    "without one, processes of this machine do it. The result is the same",
    choices=("", *RUNNERS),
  )
  beam_options: str = option("", "options for --runner, such as '--project=P --region=R'")
  shard_tokens: int = option(
    0, "ids in one file of a split, which may have several; 0: all in one", unit="ids", low=0
  )

  def __post_init__(self):
    validate(self)


def run(config: PrepareConfig, out: str) -> None:
  """Makes the folder `out` with tokenizer/, train.* and valid.* (see TokenFile) and prepare.json.

  The folder appears complete or not at all. If it was made with the same settings before, nothing
  is done. A run that was killed or interrupted after its first pass leaves the vocabulary, which
  the next one with the same settings and files takes over.

  Raises:
    InputError: bad input, or `out` holds something else.
  """
  sources = find_all(config.source)
  tokenizer = _load_tokenizer(config)
  if config.runner:
    require_beam(config.runner, config.beam_options)
  removing = Removing(config.deduplicate, config.decontaminate, config.data)
  settings = _settings(config, sources, tokenizer) | {"evaluation_rows": removing.digest}
  if not is_url(out):
    out = os.path.realpath(out)  # a link must not be replaced by the folder
  if _is_prepared(out, settings):
    print(f"{out}: already prepared with these settings")
    return
  first_pass = None if is_url(out) else _kept_first_pass(out, settings, sources)
  key = stages_key(settings, sources)
  with _folder_on_store(out) if is_url(out) else _new_folder(out) as folder:
    if not is_url(out):
      _take_over(out, folder, key if config.runner else None)
    with _passes(config, sources, stages_folder(out, folder), key) as passes:
      if first_pass:
        survey, tokenizer, corpus = first_pass.restore(sources, config, folder)
      else:
        corpus = _remove(sources, config, removing, folder, passes)
        survey, tokenizer = _first_pass(corpus, config, settings, tokenizer, passes)
      tokenizer.save(os.path.join(folder, "tokenizer"))
      survey.save(folder, settings, sources)
      report = _write_splits(corpus, config, tokenizer, survey, folder, passes)
    for name in (SURVEY, NUMBERS):
      with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, name))
    write_json(os.path.join(folder, SETTINGS), settings)
  print(report)
  print(f"prepared {out}; the largest process held {peak_with_workers() / 1e6:.0f} MB of memory")


def _take_over(out: str, folder: str, key: dict[str, Any] | None) -> None:
  """Moves what killed runs have finished into this run's folder, and removes theirs.

  Args:
    key: see adopt_stages; None: nothing is moved.
  """
  if key is not None:
    adopt_stages(out, folder, key)
  for left in abandoned(out):
    if left != folder:
      shutil.rmtree(left, ignore_errors=True)


def _load_tokenizer(config: PrepareConfig) -> Tokenizer | None:
  """The tokenizer of --tokenizer, if one is given."""
  if not config.tokenizer:
    if config.vocabulary != "sentencepiece":
      require("tokenizers")
    return None
  if config.vocabulary != "sentencepiece":
    raise InputError(
      f"--vocabulary={config.vocabulary} is for a vocabulary to train; --tokenizer brings its own: "
      "leave one of them out"
    )
  tokenizer = load_tokenizer(config.tokenizer)
  if config.vocab_size not in (0, tokenizer.vocab_size):
    raise InputError(
      f"--vocab_size={config.vocab_size}: the tokenizer in {config.tokenizer} has "
      f"{tokenizer.vocab_size} ids; leave --vocab_size out, or --tokenizer to train a new one"
    )
  tokenizer.encode("")  # fails now if a package is missing
  return tokenizer


def _settings(
  config: PrepareConfig, sources: Sequence[Source], tokenizer: Tokenizer | None
) -> dict[str, Any]:
  """The JSON values that decide what is prepared."""
  settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in HOW}
  settings |= {"sources": [list(source) for source in sources]}
  if tokenizer is None:
    settings["vocab_size"] = config.vocab_size or DEFAULT_VOCAB_SIZE
  else:
    settings["vocab_size"] = tokenizer.vocab_size
    settings["tokenizer"] = tokenizer.hash
  return settings


def _is_prepared(out: str, settings: dict[str, Any]) -> bool:
  """Whether `out` holds the result of these settings; InputError if it holds anything else."""
  if exists(out) and not is_folder(out):
    raise InputError(f"{out}: is a file; --out names the folder to make")
  if not is_folder(out) or not list_folder(out) or is_uploading(out):
    return False
  try:
    earlier = read_json(os.path.join(out, SETTINGS))
    earlier.setdefault("text_column", earlier.get("field"))  # its name before 0.3
    earlier.setdefault("vocabulary", "sentencepiece")  # the only one before 0.3
    earlier.setdefault("sentences", False)
    for name, value in BEFORE_REMOVAL.items():
      earlier.setdefault(name, value)
  except (AttributeError, OSError, ValueError) as error:
    raise InputError(f"{out}: not empty, and not made by prepare; choose another --out") from error
  for name, value in settings.items():
    if earlier.get(name) != value:
      change = f"{name} {earlier.get(name)!r}, now {value!r}"
      if name == "sources":
        change = "its sources have changed"
      raise InputError(
        f"{out}: was prepared with other settings ({change}); choose another --out, or delete it "
        "first"
      )
  for split in ("train", "valid"):
    tokens = TokenFile(out, split)
    if not tokens.is_remote:  # from a store all would be transferred; header and size were checked
      tokens.verify()
  load_tokenizer(os.path.join(out, "tokenizer"))  # raises if it is damaged
  return True


@contextlib.contextmanager
def _new_folder(out: str) -> Iterator[str]:
  """A folder to fill, which becomes `out` at the end of the block, and disappears if that fails."""
  if os.path.ismount(out):
    raise InputError(
      f"--out={out}: is a mounted folder, which a finished one cannot replace; name a new folder "
      "inside it"
    )
  partial = f"{out}.partial-{os.getpid()}"
  try:
    if os.path.isdir(partial):  # of a killed process with this number: in containers all have 1
      shutil.rmtree(f"{out}.partial-{NOBODY}", ignore_errors=True)
      os.rename(partial, f"{out}.partial-{NOBODY}")
    os.makedirs(partial)
  except OSError as error:
    raise InputError(f"--out={out}: cannot be made ({error.strerror})") from error
  try:
    yield partial
    try:
      os.rename(partial, out)  # replaces an empty folder
    except OSError as error:
      if not os.path.isdir(out) or not os.listdir(out):
        raise
      raise InputError(
        f"--out={out}: another prepare has made it in the meantime; repeat the command to see "
        "whether it is the same"
      ) from error
  except BaseException as error:
    kept = any(os.path.exists(os.path.join(partial, name)) for name in (SURVEY, STAGES))
    if isinstance(error, KeyboardInterrupt) and kept:
      for path in glob.glob(f"{glob.escape(partial)}/*.*"):
        if os.path.basename(path) not in (SURVEY, LEDGER, NUMBERS):
          os.remove(path)
      print("the vocabulary is kept; the same command uses it", file=sys.stderr)
    else:
      shutil.rmtree(partial, ignore_errors=True)
    raise


@contextlib.contextmanager
def _folder_on_store(out: str) -> Iterator[str]:
  """A local folder to fill, which is uploaded at the end of the block, and kept if that fails."""
  check_writable(out, out)
  with contextlib.ExitStack() as after:
    folder = tempfile.mkdtemp(prefix="gpt_jax-prepare-")
    after.callback(shutil.rmtree, folder, ignore_errors=True)
    yield folder
    try:
      with atomic_folder(out) as upload:
        shutil.copytree(folder, upload, copy_function=os.link, dirs_exist_ok=True)
    except BaseException as error:
      after.pop_all()
      kept = f"what should be there is kept in {folder}"
      if not isinstance(error, InputError):
        print(kept, file=sys.stderr)
        raise
      raise InputError(f"{error}; {kept}") from error


class _FirstPass(NamedTuple):
  """The results of a killed run before its last pass; `files` has their content by name."""

  survey: Survey
  tokenizer: Tokenizer
  files: dict[str, bytes]

  def restore(
    self, sources: Sequence[Source], config: PrepareConfig, folder: str
  ) -> tuple[Survey, Tokenizer, Corpus]:
    """Writes the files of removed documents to the folder of this run."""
    for name, content in self.files.items():
      with open(os.path.join(folder, name), "wb") as file:
        file.write(content)
    removed = _read_numbers(folder)
    return self.survey, self.tokenizer, Corpus(sources, config.text_column, removed)


def _kept_first_pass(
  out: str, settings: dict[str, Any], sources: Sequence[Source]
) -> _FirstPass | None:
  """The first-pass results of a killed run; None if it did not end, or read other text."""
  for folder in abandoned(out):
    survey = read_survey(folder, settings, sources)
    if survey is None:
      continue
    with contextlib.suppress(InputError, OSError, ValueError):  # damaged: done again
      tokenizer = load_tokenizer(os.path.join(folder, "tokenizer"))
      _read_numbers(folder)
      files = {}
      for name in (LEDGER, NUMBERS):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as file:
          files[name] = file.read()
      print(f"taking over the vocabulary of {tokenizer.vocab_size:,} ids of the run before")
      return _FirstPass(survey, tokenizer, files)
  return None


def _read_numbers(folder: str) -> np.ndarray:
  """The removed documents, int64 [R, 2]: source, and number in it; empty if none were sought."""
  path = os.path.join(folder, NUMBERS)
  if not os.path.exists(path):
    return np.empty((0, 2), np.int64)
  return np.load(path, allow_pickle=False)


def _remove(
  sources: Sequence[Source],
  config: PrepareConfig,
  removing: Removing,
  folder: str,
  passes: Passes,
) -> Corpus:
  """The documents to prepare; the ledger of the others is in the folder."""
  field, numbers = config.text_column, np.empty((0, 2), np.int64)
  if removing.active:
    with progress("comparing documents", _plain_size(sources)) as add:
      everything = Corpus(sources, field, numbers)
      numbers = removing(
        folder, sources, lambda rows: passes.prints(everything, removing.near, rows, add)
      )
    np.save(os.path.join(folder, NUMBERS), numbers, allow_pickle=False)
  return Corpus(sources, field, numbers)


@contextlib.contextmanager
def _passes(
  config: PrepareConfig, sources: Sequence[Source], stages: str, key: dict[str, Any]
) -> Iterator[Passes]:
  """Who does the work: processes of this machine, or a runner of Beam, with a folder of stages."""
  if config.runner:
    passes = BeamPasses(config.runner, config.beam_options, stages, key)
    yield passes
    passes.close()
    return
  with worker_pool(_worker_count(sources)) as pool:
    yield LocalPasses(pool)


def _worker_count(sources: Sequence[Source]) -> int:
  total = _total_size(sources)
  if total is not None and total < SMALL:
    return 1
  return min(MAX_WORKERS, os.cpu_count() or 1)


def _total_size(sources: Sequence[Source]) -> int | None:
  """Bytes of all sources; None if unknown."""
  sizes = [source.size for source in sources]
  return sum(sizes) if all(sizes) else None


def _plain_size(sources: Sequence[Source]) -> int | None:
  """Bytes of all sources, if they are about as many characters."""
  is_text = all(is_plain_text(source.name) for source in sources)
  return _total_size(sources) if is_text else None


def _first_pass(
  corpus: Corpus,
  config: PrepareConfig,
  settings: dict[str, Any],
  tokenizer: Tokenizer | None,
  passes: Passes,
) -> tuple[Survey, Tokenizer]:
  """Reads everything once and, without a tokenizer, trains a vocabulary."""
  kind = config.vocabulary if tokenizer is None else ""
  survey = _survey(corpus, passes, kind, config.vocabulary_share)
  if not survey.n_documents:
    raise InputError(f"{config.source}: there is no text in it")
  return survey, tokenizer or _train_tokenizer(survey, kind, settings["vocab_size"])


def _survey(corpus: Corpus, passes: Passes, kind: str, share: float) -> Survey:
  """Reads everything once: its size and, to train a vocabulary of a kind, its words."""
  survey = Survey()
  label = "counting words" if kind else "reading"
  with progress(label, _plain_size(corpus.sources)) as add:
    for sizes, words in passes.words(corpus, kind, share):
      survey.words.add(words)
      for characters, last in sizes:
        survey.add(characters, last)
        add(characters, last)
  return survey


def _train_tokenizer(survey: Survey, kind: str, vocab_size: int) -> Tokenizer:
  words = survey.words.words
  print(f"training a vocabulary of {vocab_size} on {len(words)} distinct words", flush=True)
  survey.words = WordCounts()  # frees the memory
  return TRAINED[kind].train(words, vocab_size)


def _write_splits(
  corpus: Corpus,
  config: PrepareConfig,
  tokenizer: Tokenizer,
  survey: Survey,
  folder: str,
  passes: Passes,
) -> str:
  """Reads everything again, writes both token files and returns the closing table."""
  limit = None
  is_valid: Callable[[int], bool]
  if survey.n_documents == 1:
    print("one document only: its last paragraphs are held out for validation", flush=True)
    limit = survey.n_characters * (1 - config.valid_share)
    is_valid = bool  # the document numbered 1
  else:
    is_valid = splits.held_out(survey.sizes, survey.n_documents, config.valid_share)
    share = splits.share_of(survey.sizes, is_valid)
    all_sizes_known = len(survey.sizes) == survey.n_documents
    if all_sizes_known and not 0.5 < share / config.valid_share < 2:
      print(
        f"held out for validation: {share:.3g} of the text, not {config.valid_share:g} as "
        f"--valid_share says: of {survey.n_documents:,} documents none is cut; smaller ones, such "
        "as the chapters of a book, come nearer to it",
        flush=True,
      )
  writers = {
    split: splits.SplitWriter(folder, split, tokenizer, config.sentences, config.shard_tokens)
    for split in ("train", "valid")
  }
  vocabulary = os.path.join(folder, "tokenizer")
  with progress("writing tokens", survey.n_characters) as add:
    for item in passes.encoded(corpus, vocabulary, tokenizer, config.sentences, limit):
      split = "valid" if is_valid(item.document) else "train"
      writers[split].add(item.piece, item.encoded)
      add(item.characters, item.piece.last)
  headers = {}
  for split, writer in writers.items():
    if not writer.tokens.n_tokens:
      raise InputError(
        f"{config.source}: nothing is left for the {split} split; use more text or another "
        "--valid_share"
      )
    headers[split] = writer.close(corpus.sources)
  return splits.table(headers, {split: writer.padding.share for split, writer in writers.items()})
