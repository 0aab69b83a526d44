"""Prepares text for pre-training: cleans it, trains or reuses a tokenizer, writes token files."""

import contextlib
import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpt_jax import files
from gpt_jax.config import Config, option, register
from gpt_jax.data import splits
from gpt_jax.data.cleaning import cleaner
from gpt_jax.data.passes import LEDGER, TRAINED, Passes, Pool, Survey, local_pool, take_survey
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.progress import Progress
from gpt_jax.data.sources.source import MANY, Source, as_json, find_all, usage
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.tokenizers.released import require
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.errors import InputError, counted
from gpt_jax.parallel.memory import peak_with_workers
from gpt_jax.programs.outputs import check_writable

SETTINGS = "prepare.json"
DEFAULT_VOCAB_SIZE = 40_000
NOTHING_REMOVED = {"deduplicate": "none", "decontaminate": "", "evaluation_rows": ""}
# Settings of folders made before these options.
OLD_SETTINGS = {
  "vocabulary": "sentencepiece",
  "sentences": False,
  "shard_tokens": 0,
  "vocabulary_share": 1.0,
  **NOTHING_REMOVED,
}

# What is finished is kept in a folder, where the run after a kill or Ctrl-C finds it.
STAGES = "stages"
KEY = "key.json"  # everything that it depends on
_FEW = 100  # sources that are asked when they were modified: on a store each is a request
TOKENIZER = "tokenizer"
NUMBERS = "removed.npy"


@register("prepare")
@dataclasses.dataclass(frozen=True)
class PrepareConfig(Config):
  """A preparation of text: its sources, vocabulary and token files."""

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
  vocabulary_share: float = option(
    1.0,
    "share of the documents, drawn by number, that a vocabulary is learned from",
    low=1e-6,
    high=1.0,
  )
  shard_tokens: int = option(
    0, "ids in one file of a split, which may have several; 0: all in one", unit="ids", low=0
  )


def run(
  config: PrepareConfig,
  out: str,
  make_passes: Callable[[Pool | None], Passes] = Passes,
  removal: dict[str, str] | None = None,
) -> None:
  """Makes the folder `out` with tokenizer/, train.* and valid.* (see TokenFile) and prepare.json.

  The folder appears complete or not at all. If it was made with the same settings before, nothing
  is done. A run that was killed or interrupted after its first pass leaves the vocabulary, which
  the next one with the same settings and files takes over.

  Args:
    make_passes: gives the passes over the text by a pool of processes; by default they remove no
      document.
    removal: settings of the documents that these passes remove, those of NOTHING_REMOVED.
  """
  sources = find_all(config.source)
  tokenizer = _load_tokenizer(config)
  settings = _settings(config, sources, tokenizer) | (removal or NOTHING_REMOVED)
  place = files.disk_folder(out, "prepare")
  if place == out:
    out = place = os.path.realpath(out)  # a link must not be replaced by the folder
  if _is_prepared(out, settings):
    print(f"{out}: already prepared with these settings")
    then = files.read_json(os.path.join(out, SETTINGS)).get("modified", math.inf)
    if len(sources) <= _FEW and max(_modified(sources)) > then:
      print(f"{out}: a source was modified since; delete the folder to prepare the text again")
    return
  # Not only the settings: what a killed run has finished must be of the same text, cleaned alike.
  modified = _modified(sources)
  key = {"settings": settings, "cleaner": cleaner(), "modified": modified, "format": 2}
  with _new_folder(out, key) if place == out else _folder_on_store(out, place) as folder:
    stages = os.path.join(folder, STAGES)
    os.makedirs(stages, exist_ok=True)
    files.write_json(os.path.join(stages, KEY), key)
    with local_pool(sources) as pool:
      passes = make_passes(pool)
      corpus, survey, tokenizer = _first_pass(sources, config, tokenizer, stages, passes)
      report = _write_splits(corpus, config, tokenizer, survey, folder, passes)
      for name in (TOKENIZER, LEDGER):
        with contextlib.suppress(FileNotFoundError):  # no document was to be removed
          os.rename(os.path.join(stages, name), os.path.join(folder, name))
    shutil.rmtree(stages, ignore_errors=True)
    files.write_json(os.path.join(folder, SETTINGS), settings | {"modified": max(modified)})
  print(report)
  print(f"prepared {out}; the largest process held {peak_with_workers() / 1e6:.0f} MB of memory")


def _modified(sources: Sequence[Source]) -> list[int]:
  """When each file was modified; 0 for data sets, which have no size."""
  return [files.modified_ns(name) if size else 0 for name, size in sources]


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
  fields = dataclasses.fields(PrepareConfig)  # a subclass has others
  settings = {field.name: vars(config)[field.name] for field in fields}
  settings |= {"sources": as_json(sources)}
  if tokenizer is None:
    settings["vocab_size"] = config.vocab_size or DEFAULT_VOCAB_SIZE
  else:
    settings["vocab_size"] = tokenizer.vocab_size
    # What it is, not where: its folder may have moved.
    settings["tokenizer"] = tokenizer.hash
  return settings


def _is_prepared(out: str, settings: dict[str, Any]) -> bool:
  """Whether `out` holds the result of these settings; InputError if it holds anything else."""
  if files.exists(out) and not files.is_folder(out):
    raise InputError(f"{out}: is a file; --out names the folder to make")
  if not files.is_folder(out) or not files.list_folder(out) or files.is_uploading(out):
    return False
  try:
    earlier = files.read_json(os.path.join(out, SETTINGS))
    earlier.setdefault("text_column", earlier.get("field"))  # its name before 0.3
    earlier = OLD_SETTINGS | earlier
    if len(listed := earlier.get("sources", [])) > MANY:  # as earlier versions listed them
      earlier["sources"] = as_json([Source(*source) for source in listed])
  except (AttributeError, OSError, TypeError, ValueError) as error:
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
def _new_folder(out: str, key: dict[str, Any]) -> Iterator[str]:
  """A folder to fill, which becomes `out` at the end of the block, and disappears if that fails.

  It holds the stages that a killed run with this key has finished.
  """
  if os.path.ismount(out):
    raise InputError(
      f"--out={out}: is a mounted folder, which a finished one cannot replace; name a new folder "
      "inside it"
    )
  partial = f"{out}.partial"
  stages = os.path.join(partial, STAGES)
  try:
    files.make_folders(partial)
    is_ours = os.path.exists(os.path.join(stages, KEY)) or {*os.listdir(partial)} <= {"lock"}
  except OSError as error:
    raise InputError(f"--out={out}: cannot be made ({error.strerror})") from error
  if os.path.islink(partial) or not is_ours:
    raise InputError(
      f"{partial}: is not of a killed prepare, and would be filled; move it, or take another --out"
    )
  with files.lock_folder(partial, f"another prepare is making {out}; wait until it ends") as lock:
    _remove_all_but({lock.name, stages if _has_key(stages, key) else ""}, partial)
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
      os.remove(os.path.join(out, "lock"))  # now that no other can lock it
    except BaseException as error:
      # Not after a kill, which leaves everything for the next run to look through.
      finished = set(os.listdir(stages)) if os.path.isdir(stages) else set()
      if isinstance(error, KeyboardInterrupt) and finished - {KEY, LEDGER, NUMBERS}:
        _remove_all_but({lock.name, stages}, partial)  # token files that are not complete
        print("the vocabulary is kept; the same command uses it", file=sys.stderr)
      else:
        # The lock last: another prepare works here as soon as it is gone.
        _remove_all_but({lock.name}, partial)
        with contextlib.suppress(OSError):
          os.remove(lock.name)
          os.rmdir(partial)
      raise


def _remove_all_but(kept: set[str], folder: str) -> None:
  with contextlib.suppress(FileNotFoundError):  # it became `out` before the error
    for entry in os.scandir(folder):
      if entry.path not in kept:
        remove = shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.remove
        remove(entry.path)


@contextlib.contextmanager
def _folder_on_store(out: str, folder: str) -> Iterator[str]:
  """A local folder to fill, which is uploaded at the end of the block, and kept if that fails."""
  check_writable(out, out)
  with contextlib.ExitStack() as after:
    os.mkdir(folder, 0o700)
    after.callback(shutil.rmtree, folder, ignore_errors=True)
    yield folder
    try:
      with files.atomic_folder(out) as upload:
        # Links, so that the upload needs no second copy on this disk.
        shutil.copytree(folder, upload, copy_function=os.link, dirs_exist_ok=True)
    except BaseException as error:
      after.pop_all()
      kept = f"what should be there is kept in {folder}"
      if not isinstance(error, InputError):
        print(kept, file=sys.stderr)
        raise
      raise InputError(f"{error}; {kept}") from error


def _has_key(stages: str, key: dict[str, Any]) -> bool:
  """Whether what is finished in a folder depends on the same settings and files."""
  try:
    return bool(files.read_json(os.path.join(stages, KEY)) == key)
  except (OSError, ValueError):
    return False


def _first_pass(
  sources: Sequence[Source],
  config: PrepareConfig,
  tokenizer: Tokenizer | None,
  stages: str,
  passes: Passes,
) -> tuple[Corpus, Survey, Tokenizer]:
  """Reads everything once and, without a tokenizer, trains a vocabulary; or takes them over."""
  corpus = Corpus(sources, config.text_column, np.empty((0, 2), np.int64))
  if kept := _kept_first_pass(stages):
    removed, survey, tokenizer = kept
    print(f"taking over the vocabulary of {tokenizer.vocab_size:,} ids of the run before")
    return corpus._replace(removed=removed), survey, tokenizer
  corpus = corpus._replace(removed=passes.removed(corpus, stages))
  np.save(os.path.join(stages, NUMBERS), corpus.removed, allow_pickle=False)
  kind = config.vocabulary if tokenizer is None else ""
  survey = take_survey(corpus, passes, kind, config.vocabulary_share)
  if not survey.n_documents:
    raise InputError(f"{config.source}: there is no text in it")
  if tokenizer is None:
    if not survey.words.words and config.vocabulary_share < 1:
      raise InputError(
        f"--vocabulary_share={config.vocabulary_share}: draws no words from "
        f"{counted(survey.n_documents, 'document')}; use a larger share"
      )
    words, vocab_size = survey.words.words, config.vocab_size or DEFAULT_VOCAB_SIZE
    print(f"training a vocabulary of {vocab_size} on {len(words)} distinct words", flush=True)
    survey.words = WordCounts()  # frees the memory
    tokenizer = TRAINED[kind].train(words, vocab_size)
  tokenizer.save(os.path.join(stages, TOKENIZER))
  survey.save(stages)  # the last, so that where it is all are
  return corpus, survey, tokenizer


def _kept_first_pass(stages: str) -> tuple[np.ndarray, Survey, Tokenizer] | None:
  """Removed documents, survey and tokenizer of a killed run; None if it did not come so far."""
  try:
    survey = Survey.read(stages)
    removed = np.load(os.path.join(stages, NUMBERS), allow_pickle=False)
    return removed, survey, load_tokenizer(os.path.join(stages, TOKENIZER))
  except (InputError, OSError, ValueError):  # or they are damaged
    return None


def _write_splits(
  corpus: Corpus,
  config: PrepareConfig,
  tokenizer: Tokenizer,
  survey: Survey,
  folder: str,
  passes: Passes,
) -> str:
  """Reads everything again, writes both token files and returns the closing table."""
  cut = None
  is_valid: Callable[[int], bool]
  if survey.n_documents == 1:
    print("one document only: its end is held out for validation", flush=True)
    valid_size = survey.n_characters * config.valid_share
    cut = survey.n_characters - valid_size, valid_size / 2
    is_valid = bool  # the document numbered 1
  else:
    is_valid = splits.held_out(survey.sizes, survey.n_documents, config.valid_share)
    valid_size = sum(size for number, size in enumerate(survey.sizes) if is_valid(number))
    share = valid_size / max(1, sum(survey.sizes))
    all_sizes_known = len(survey.sizes) == survey.n_documents
    if all_sizes_known and not 0.5 < share / config.valid_share < 2:
      print(
        f"held out for validation: {share:.3g} of the text, not {config.valid_share:g} as "
        f"--valid_share says: of {survey.n_documents:,} documents none is cut; smaller ones, such "
        "as the chapters of a book, come nearer to it",
        flush=True,
      )
  writers = {}
  for split in ("train", "valid"):
    options = tokenizer, config.sentences, config.shard_tokens
    writers[split] = splits.SplitWriter(folder, split, *options)
  vocabulary = os.path.join(folder, STAGES, TOKENIZER)
  with Progress("writing tokens", survey.n_characters, "characters") as progress:
    for item in passes.encoded(corpus, vocabulary, tokenizer, config.sentences, cut):
      split = "valid" if is_valid(item.document) else "train"
      writers[split].add(item.piece, item.encoded)
      progress.add(item.characters)
  headers = {}
  for split, writer in writers.items():
    if not writer.tokens.n_tokens:
      raise InputError(
        f"{config.source}: nothing is left for the {split} split; use more text or another "
        "--valid_share"
      )
    headers[split] = writer.close(corpus.sources)
  if warning := splits.describe_repeated(writers):
    print(warning, flush=True)
  return splits.table(headers)
