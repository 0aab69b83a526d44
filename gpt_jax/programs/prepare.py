"""Prepares text for pre-training: cleans it, trains or reuses a tokenizer, writes token files."""

import collections
import contextlib
import dataclasses
import functools
import glob
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.config import option, register, validate
from gpt_jax.data import hold_out
from gpt_jax.data.cleaning import clean_piece, cleaner
from gpt_jax.data.pieces import Piece, batched, numbered_pieces
from gpt_jax.data.progress import progress
from gpt_jax.data.sentences import encode_sentences
from gpt_jax.data.sources.source import Source, find_all, is_plain_text, usage
from gpt_jax.data.survey import FILE as SURVEY
from gpt_jax.data.survey import Survey, read_survey
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer, require
from gpt_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.data.workers import MAX_WORKERS, Pool, map_in_order, worker_pool
from gpt_jax.errors import InputError
from gpt_jax.files import abandoned, read_json, refuse_url, write_json

SETTINGS = "prepare.json"
DEFAULT_VOCAB_SIZE = 40_000
SMALL = 4 << 20  # bytes; for less text, starting workers takes longer than they save
ROW_LENGTH = 512  # tokens; the closing table shows the padding of rows of this length

TRAINED: dict[str, Any] = {  # the kinds of vocabulary that can be trained
  "sentencepiece": SentencePieceTokenizer,
  "wordpiece": WordPieceTokenizer,
  "bytes": ByteBPETokenizer,
}

Batch = list[tuple[int, Piece]]  # document number, piece


@register("prepare")
@dataclasses.dataclass(frozen=True)
class PrepareConfig:
  """What to prepare, and how."""

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
  refuse_url(out)
  sources = find_all(config.source)
  tokenizer = _load_tokenizer(config)
  settings = _settings(config, sources, tokenizer)
  out = os.path.realpath(out)  # a link must not be replaced by the folder
  if _is_prepared(out, settings):
    print(f"{out}: already prepared with these settings")
    return
  first_pass = _kept_first_pass(out, settings, sources)
  with _new_folder(out) as folder:
    with worker_pool(_worker_count(sources)) as pool:
      survey, tokenizer = first_pass or _first_pass(sources, config, settings, tokenizer, pool)
      tokenizer.save(os.path.join(folder, "tokenizer"))
      survey.save(folder, settings, sources)
      report = _write_splits(sources, config, tokenizer, survey, folder, pool)
    os.remove(os.path.join(folder, SURVEY))
    write_json(os.path.join(folder, SETTINGS), settings)
  print(report)
  print(f"prepared {out}")


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
  settings = dataclasses.asdict(config) | {"sources": [list(source) for source in sources]}
  if tokenizer is None:
    settings["vocab_size"] = config.vocab_size or DEFAULT_VOCAB_SIZE
  else:
    settings["vocab_size"] = tokenizer.vocab_size
    settings["tokenizer"] = tokenizer.hash
  return settings


def _is_prepared(out: str, settings: dict[str, Any]) -> bool:
  """Whether `out` holds the result of these settings; InputError if it holds anything else."""
  if os.path.exists(out) and not os.path.isdir(out):
    raise InputError(f"{out}: is a file; --out names the folder to make")
  if not os.path.isdir(out) or not os.listdir(out):
    return False
  try:
    earlier = read_json(os.path.join(out, SETTINGS))
    earlier.setdefault("text_column", earlier.get("field"))  # its name before 0.3
    earlier.setdefault("vocabulary", "sentencepiece")  # the only one before 0.3
    earlier.setdefault("sentences", False)
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
    TokenFile(out, split).verify()
  load_tokenizer(os.path.join(out, "tokenizer"))  # raises if it is damaged
  return True


@contextlib.contextmanager
def _new_folder(out: str) -> Iterator[str]:
  """A folder to fill, which becomes `out` at the end of the block, and disappears if that fails."""
  for folder in abandoned(out):
    shutil.rmtree(folder, ignore_errors=True)
  if os.path.ismount(out):
    raise InputError(
      f"--out={out}: is a mounted folder, which a finished one cannot replace; name a new folder "
      "inside it"
    )
  partial = f"{out}.partial-{os.getpid()}"
  try:
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
    if isinstance(error, KeyboardInterrupt) and os.path.exists(os.path.join(partial, SURVEY)):
      for path in glob.glob(f"{glob.escape(partial)}/*.*"):
        if os.path.basename(path) != SURVEY:
          os.remove(path)
      print("the vocabulary is kept; the same command uses it", file=sys.stderr)
    else:
      shutil.rmtree(partial, ignore_errors=True)
    raise


def _kept_first_pass(
  out: str, settings: dict[str, Any], sources: Sequence[Source]
) -> tuple[Survey, Tokenizer] | None:
  """What the first pass of a killed run found and trained; None if none ended, or of other text."""
  for folder in abandoned(out):
    survey = read_survey(folder, settings, sources)
    if survey is None:
      continue
    with contextlib.suppress(InputError):  # damaged: trained again
      tokenizer = load_tokenizer(os.path.join(folder, "tokenizer"))
      print(f"taking over the vocabulary of {tokenizer.vocab_size:,} ids of the run before")
      return survey, tokenizer
  return None


def _worker_count(sources: Sequence[Source]) -> int:
  total = _total_size(sources)
  if total is not None and total < SMALL:
    return 1
  return min(MAX_WORKERS, os.cpu_count() or 1)


def _total_size(sources: Sequence[Source]) -> int | None:
  """Bytes of all sources; None if unknown."""
  sizes = [source.size for source in sources]
  return sum(sizes) if all(sizes) else None


def _first_pass(
  sources: Sequence[Source],
  config: PrepareConfig,
  settings: dict[str, Any],
  tokenizer: Tokenizer | None,
  pool: Pool | None,
) -> tuple[Survey, Tokenizer]:
  """Reads everything once and, without a tokenizer, trains a vocabulary."""
  kind = config.vocabulary if tokenizer is None else ""
  survey = _survey(sources, config.text_column, pool, kind)
  if not survey.n_documents:
    raise InputError(f"{config.source}: there is no text in it")
  return survey, tokenizer or _train_tokenizer(survey, kind, settings["vocab_size"])


def _survey(sources: Sequence[Source], field: str, pool: Pool | None, kind: str) -> Survey:
  """Reads everything once: its size and, to train a vocabulary of a kind, its words."""
  survey = Survey()
  batches = batched(numbered_pieces(sources, field))
  label = "counting words" if kind else "reading"
  is_text = all(is_plain_text(source.name) for source in sources)
  with progress(label, _total_size(sources) if is_text else None) as add:
    if kind:
      counted = map_in_order(pool, functools.partial(_count, kind), batches)
    else:
      counted = ((batch, {}) for batch in batches)
    for batch, words in counted:
      survey.words.add(words)
      for _, piece in batch:
        survey.add(piece)
        add(len(piece.text), piece.last)
  return survey


def _count(kind: str, batch: Batch) -> dict[str, int]:
  """The words of a batch, in a worker."""
  words_of = TRAINED[kind].training_words
  counts = WordCounts()
  for _, piece in batch:
    counts.add(collections.Counter(words_of(clean_piece(piece.text, piece.width))))
  return counts.words


def _train_tokenizer(survey: Survey, kind: str, vocab_size: int) -> Tokenizer:
  words = survey.words.words
  print(f"training a vocabulary of {vocab_size} on {len(words)} distinct words", flush=True)
  survey.words = WordCounts()  # frees the memory
  return TRAINED[kind].train(words, vocab_size)


def _write_splits(
  sources: Sequence[Source],
  config: PrepareConfig,
  tokenizer: Tokenizer,
  survey: Survey,
  folder: str,
  pool: Pool | None,
) -> str:
  """Reads everything again, writes both token files and returns the closing table."""
  pieces = numbered_pieces(sources, config.text_column)
  is_valid: Callable[[int], bool]
  if survey.n_documents == 1:
    print("one document only: its last paragraphs are held out for validation", flush=True)
    pieces = hold_out.split_document(pieces, survey.n_characters * (1 - config.valid_share))
    is_valid = bool  # the document numbered 1
  else:
    is_valid = hold_out.held_out(survey.sizes, survey.n_documents, config.valid_share)
  writers = {
    split: _SplitWriter(folder, split, tokenizer, config.sentences) for split in ("train", "valid")
  }
  encode = functools.partial(
    _encode, os.path.join(folder, "tokenizer"), tokenizer.hash, config.sentences
  )
  with progress("writing tokens", survey.n_characters) as add:
    for batch, encoded in map_in_order(pool, encode, batched(pieces)):
      for (document, piece), ids in zip(batch, encoded, strict=True):
        writers["valid" if is_valid(document) else "train"].add(piece, ids)
        add(len(piece.text), piece.last)
  headers = {}
  for split, writer in writers.items():
    if not writer.tokens.n_tokens:
      raise InputError(
        f"{config.source}: nothing is left for the {split} split; use more text or another "
        "--valid_share"
      )
    headers[split] = writer.close(sources)
  return _table(headers, {split: writer.padding.share for split, writer in writers.items()})


class _Encoded(NamedTuple):
  """The ids of a piece, the bytes and words of its cleaned text, and where its sentences end."""

  ids: np.ndarray
  n_bytes: int
  n_words: int
  sentence_ends: np.ndarray | None = None


def _encode(folder: str, hash: str, sentences: bool, batch: Batch) -> list[_Encoded]:
  """The pieces of a batch, in a worker."""
  texts = [clean_piece(piece.text, piece.width) for _, piece in batch]
  tokenizer = _worker_tokenizer(folder, hash)
  ids_and_ends: list[tuple[np.ndarray, np.ndarray | None]]
  if sentences:
    ids_and_ends = [*encode_sentences(tokenizer, texts)]
  else:
    ids_and_ends = [(ids, None) for ids in tokenizer.encode_many(texts)]
  return [
    _Encoded(ids, len(text.encode()), len(text.split()), ends)
    for (ids, ends), text in zip(ids_and_ends, texts, strict=True)
  ]


@functools.lru_cache(maxsize=1)
def _worker_tokenizer(folder: str, hash: str) -> Tokenizer:
  """Loads a tokenizer once per process. The hash is in the key because a later run may write
  another one to the same folder.
  """
  return load_tokenizer(folder)


class _SplitWriter:
  """Writes one split, putting the pieces of each document together again."""

  def __init__(self, folder: str, split: str, tokenizer: Tokenizer, sentences: bool = False):
    self.tokens = TokenWriter(folder, split, tokenizer.vocab_size, sentences)
    self.padding = _Padding()
    self._tokenizer = tokenizer
    self._length = 0  # tokens of the current document
    self._joint = ""  # between its last piece that has tokens and the next

  def add(self, piece: Piece, encoded: _Encoded) -> None:
    ids, n_bytes, n_words, ends = encoded
    if self._length and len(ids):
      line_id = self._tokenizer.line_id
      if self._joint == "\n" and line_id is not None:
        ids = np.concatenate([[line_id], ids])
        ends = None if ends is None else ends + 1
      n_bytes += len(self._joint)
    if ends is not None and piece.joint != "\n" and not piece.last:
      ends = ends[:-1]  # its last sentence goes on in the next piece
    self.tokens.add(ids, n_bytes, n_words, last=piece.last, sentence_ends=ends)
    if len(ids):
      self._length += len(ids)
      self._joint = piece.joint
    if piece.last:
      self.padding.add(self._length)
      self._length = 0

  def close(self, sources: Sequence[Source]) -> dict[str, Any]:
    """Completes the files and returns the header."""
    unknown = self.tokens.counts[self._tokenizer.byte_fallback].sum()
    return self.tokens.close(
      unknown_share=float(unknown / self.tokens.n_tokens),
      tokenizer_hash=self._tokenizer.hash,
      normalizer=self._tokenizer.normalizer,
      cleaner=cleaner(),
      sources=[list(source) for source in sources],
    )


@dataclasses.dataclass
class _Padding:
  """Counts how full rows of ROW_LENGTH tokens would be that never cross a document."""

  cells: int = 0
  predicted: int = 0

  def add(self, length: int) -> None:
    if length > 1:
      rows = max(1, (length - 1) // ROW_LENGTH)
      self.cells += rows * ROW_LENGTH
      self.predicted += min(length - 1, rows * ROW_LENGTH)

  @property
  def share(self) -> float:
    return 1 - self.predicted / max(1, self.cells)


def _table(headers: dict[str, dict[str, Any]], padding: dict[str, float]) -> str:
  """The closing table, one column per split."""
  columns = []
  for split, header in headers.items():
    n_tokens, n_words = header["n_tokens"], header["n_words"]
    columns.append(
      {
        "": split,
        "documents": f"{header['n_documents']:,}",
        "words": f"{n_words:,}",
        "tokens": f"{n_tokens:,}",
        **({"sentences": f"{header['n_sentences']:,}"} if "n_sentences" in header else {}),
        "bytes per token": f"{header['n_bytes'] / n_tokens:.3f}",
        "tokens per word": f"{n_tokens / max(1, n_words):.3f}",
        "unigram entropy, nats per token": f"{header['unigram_entropy']:.3f}",
        "unknown or spelled in bytes": f"{header['unknown_share']:.4%}",
        f"padding in rows of {ROW_LENGTH} tokens": f"{padding[split]:.1%}",
      }
    )
  lines = []
  for label in columns[0]:
    lines.append(f"{label:34}" + "".join(f"{column[label]:>14}" for column in columns))
  if padding["train"] > 0.2:
    lines.append(
      "documents are short: a smaller length, or sampling = across_documents, wastes less"
    )
  return "\n".join(lines)
