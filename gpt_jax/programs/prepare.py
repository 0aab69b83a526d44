"""Prepares text for training: cleans it, trains or reuses a vocabulary, writes train and valid
token files.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gpt_jax.config import option, register, validate
from gpt_jax.data import corpus
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer, plain
from gpt_jax.data.word_counts import WordCounts
from gpt_jax.errors import InputError

WINDOW = 512  # tokens, of the padding that the closing table tells
SMALL = 4 << 20  # bytes; below, starting workers takes longer than they save
MOST_WORKERS = 6  # one process reads for all, and each takes about 100 MB
FEW = (
  10_000  # documents; up to here the held-out ones are chosen by size, above by their draw alone
)


@register("prepare")
@dataclasses.dataclass(frozen=True)
class PrepareConfig:
  """What to prepare, and how."""

  source: str = option(
    "embedded",
    "file, glob or folder, of text or of JSON lines (.jsonl, .json), .gz too; tfds:NAME[/SPLIT]; embedded; several by "
    "commas",
  )
  vocab_size: int = option(40_000, "ids in the vocabulary", unit="ids", low=1)
  tokenizer: str = option(
    "", "folder of a vocabulary, ours or OpenAI's, to use instead of training one"
  )
  valid_share: float = option(
    0.01, "share of the text, by document, held out for validation", low=0.0001, high=0.5
  )
  field: str = option("text", "field of JSON lines or TFDS rows that holds the text")

  def __post_init__(self):
    validate(self)


@dataclasses.dataclass
class Survey:
  """What the first reading of the sources found.

  Attributes:
    documents: how many.
    characters: of all of them, as read.
    sizes: characters of each, as far as FEW.
    words: counts for the vocabulary.
  """

  documents: int = 0
  characters: int = 0
  sizes: list[int] = dataclasses.field(default_factory=list)
  words: WordCounts = dataclasses.field(default_factory=WordCounts)


def run(config: PrepareConfig, out: str) -> None:
  """Makes the folder `out`: tokenizer/, train.* and valid.* (TokenFile), prepare.json.

  The folder appears whole or not at all. If it is there already, made with the same settings,
  nothing is done.

  Raises:
    InputError: bad input, or an `out` that is something else.
  """
  sources = [found for source in config.source.split(",") for found in corpus.find(source.strip())]
  tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else None
  if tokenizer:
    tokenizer.encode("")  # the packages it needs are there
  settings = dataclasses.asdict(config) | {"sources": [list(source) for source in sources]}
  settings |= {"tokenizer": tokenizer.hash, "vocab_size": tokenizer.vocab_size} if tokenizer else {}
  out = os.path.realpath(out)  # what is renamed in the end must not be a link
  if _is_prepared(out, settings):
    print(f"{out}: already prepared with these settings")
    return
  _remove_stale(out)
  if os.path.ismount(out):
    raise InputError(
      f"--out={out}: is a mounted folder, which cannot be put in place whole; name a new one in it"
    )
  partial = f"{out}.partial-{os.getpid()}"
  try:
    os.makedirs(partial)
  except OSError as error:
    raise InputError(f"--out={out}: cannot be made ({error.strerror})") from error
  try:
    small = (
      all(source.size for source in sources) and sum(source.size for source in sources) < SMALL
    )
    with _workers(1 if small else min(MOST_WORKERS, os.cpu_count())) as pool:
      survey = _survey(sources, config.field, pool, count=tokenizer is None)
      if not survey.documents:
        raise InputError(f"{config.source}: there is no text in it")
      if tokenizer is None:
        print(
          f"training a vocabulary of {config.vocab_size} on {len(survey.words.words)} distinct words",
          flush=True,
        )
        tokenizer = SentencePieceTokenizer.train(survey.words.words, config.vocab_size)
        survey.words = WordCounts()
      tokenizer.save(os.path.join(partial, "tokenizer"))
      report = _write(sources, config, tokenizer, survey, partial, pool)
    with open(os.path.join(partial, "prepare.json"), "w", encoding="utf-8") as file:
      json.dump(settings, file, indent=2)
    os.rename(partial, out)  # fails if somebody else made it meanwhile; an empty folder gives way
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise
  print(report)
  print(f"prepared {out}")


def _is_prepared(out: str, settings: dict) -> bool:
  """Whether `out` holds the outcome of these settings; InputError if it holds anything else."""
  if not os.path.isdir(out) or not os.listdir(out):
    if os.path.exists(out) and not os.path.isdir(out):
      raise InputError(f"{out}: is a file; --out names the folder to make")
    return False
  try:
    with open(os.path.join(out, "prepare.json"), encoding="utf-8") as file:
      there = json.load(file)
  except (OSError, ValueError) as error:
    raise InputError(f"{out}: not empty, and not made by prepare; choose another --out") from error
  for name, value in settings.items():
    if there.get(name) != value:
      change = (
        "its sources have changed"
        if name == "sources"
        else f"{name} {there.get(name)!r}, now {value!r}"
      )
      raise InputError(
        f"{out}: was prepared with other settings ({change}); choose another --out, or delete it first"
      )
  for split in ("train", "valid"):
    TokenFile(out, split)
  return True


def _remove_stale(out: str) -> None:
  """Removes what killed runs for the same folder left behind."""
  folder, name = os.path.split(out)
  for entry in os.listdir(folder) if os.path.isdir(folder) else ():
    match = re.fullmatch(re.escape(name) + r"\.partial-(\d+)", entry)
    if match and not _is_running(int(match[1])):
      shutil.rmtree(os.path.join(folder, entry), ignore_errors=True)


def _is_running(process: int) -> bool:
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return process != os.getpid()


def _survey(sources, field: str, pool, count: bool) -> Survey:
  """Reads everything once: how much there is and, to train a vocabulary, its words."""
  survey = Survey()
  size = 0

  def batches():
    nonlocal size
    for batch in _batches(_read(sources, field)):
      for _, piece in batch:
        size += len(piece.text)
        survey.characters += len(piece.text)
        if piece.last:
          if survey.documents < FEW:
            survey.sizes.append(size)
          survey.documents += 1
          size = 0
      yield batch

  total = sum(source.size for source in sources) if all(source.size for source in sources) else None
  with _progress("counting words" if count else "reading", total) as progress:
    done = (
      _in_order(pool, _count_words, batches()) if count else ((batch, {}) for batch in batches())
    )
    for batch, words in done:
      survey.words.add(words)
      progress(sum(len(piece.text) for _, piece in batch))
  return survey


def _write(
  sources, config: PrepareConfig, tokenizer: Tokenizer, survey: Survey, folder: str, pool
) -> str:
  """Reads everything again, writes the token files and returns the closing table."""
  held_out = _held_out(survey, config.valid_share)
  stream = _read(sources, config.field)
  if survey.documents == 1:
    print("one document only: its last paragraphs are held out for validation", flush=True)
    stream = _divide(stream, survey.characters * (1 - config.valid_share))
  writers = {
    split: TokenWriter(folder, split, tokenizer.vocab_size) for split in ("train", "valid")
  }
  rows = {split: _Rows() for split in writers}
  encode = functools.partial(_encode, os.path.join(folder, "tokenizer"), tokenizer.hash)
  length, joint = 0, ""  # of the document so far
  with _progress("writing tokens", survey.characters) as progress:
    for batch, encoded in _in_order(pool, encode, _batches(stream)):
      for (document, piece), (ids, n_bytes, n_words) in zip(batch, encoded, strict=True):
        split = "valid" if held_out(document) else "train"
        if length and len(ids):
          ids = np.concatenate([[tokenizer.line_id], ids]) if joint == "\n" else ids
          n_bytes += len(joint)
        writers[split].add(ids, n_bytes, n_words, last=piece.last)
        if len(ids):
          length, joint = length + len(ids), piece.joint
        if piece.last:
          rows[split].add(length)
          length = 0
        progress(len(piece.text))
  headers = {}
  for split, writer in writers.items():
    if not writer.n_tokens:
      raise InputError(
        f"{config.source}: nothing is left for the {split} split; use more text or another --valid_share"
      )
    headers[split] = writer.close(
      unknown_share=float(writer.counts[tokenizer.byte_fallback].sum() / writer.n_tokens),
      tokenizer_hash=tokenizer.hash,
      normalizer=tokenizer.normalizer,
      cleaner=corpus.cleaner(),
      sources=[list(source) for source in sources],
    )
  return _table(headers, rows)


def _read(sources, field: str) -> Iterator[tuple[int, corpus.Piece]]:
  """All pieces of all sources, each with the number of its document."""
  document = 0
  for source in sources:
    for piece in corpus.pieces(source.name, field=field):
      yield document, piece
      document += piece.last


def _divide(stream, at: float) -> Iterator[tuple[int, corpus.Piece]]:
  """The only document as two, divided at the last end of a paragraph before character `at`."""
  place, second = 0, 0
  for _, piece in stream:
    if not second and place + len(piece.text) > at:
      end, _ = corpus.cut(piece.text, max(1, int(at - place)), piece.width)
      yield 0, piece._replace(text=piece.text[:end], joint="", last=True)
      piece, second = piece._replace(text=piece.text[end:]), 1
    place += len(piece.text)
    yield second, piece


def _held_out(survey: Survey, share: float) -> Callable[[int], bool]:
  """Which documents, by number, are for validation: drawn by the number's hash, at least one,
  never all.
  """
  if survey.documents == 1:
    return lambda document: document == 1  # see _divide
  if survey.documents > FEW:
    first = min(range(FEW), key=_draw)
    return lambda document: document == first or _draw(document) < share
  target, chosen, size = share * sum(survey.sizes), set(), 0
  for document in sorted(range(survey.documents), key=_draw):
    if size + survey.sizes[document] <= target:
      chosen.add(document)
      size += survey.sizes[document]
  if not chosen:
    chosen.add(
      min(range(survey.documents), key=lambda document: abs(survey.sizes[document] - target))
    )
  return chosen.__contains__


def _draw(document: int) -> float:
  """A number in [0, 1) that looks random."""
  return int.from_bytes(hashlib.sha256(b"%d" % document).digest()[:8], "big") / 2**64


def _batches(stream) -> Iterator[list[tuple[int, corpus.Piece]]]:
  """Pieces in lists of about PIECE characters, so that small documents are worth a worker's
  while.
  """
  batch, size = [], 0
  for document, piece in stream:
    batch.append((document, piece))
    size += len(piece.text) + 100
    if size >= corpus.PIECE:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def _count_words(batch) -> dict[str, int]:
  counts = WordCounts()
  for _, piece in batch:
    counts.add(collections.Counter(plain(corpus.clean_piece(piece.text, piece.width)).split()))
  return counts.words


def _encode(folder: str, hash: str, batch) -> list[tuple[np.ndarray, int, int]]:
  """Ids, bytes and words of each piece."""
  texts = [corpus.clean_piece(piece.text, piece.width) for _, piece in batch]
  encoded = _tokenizer(folder, hash).encode_many(texts)
  return [
    (ids, len(text.encode()), len(text.split())) for ids, text in zip(encoded, texts, strict=True)
  ]


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: str, hash: str) -> Tokenizer:
  """Loads it once a process; the hash is part of the key, since the next run may have another in
  the same folder.
  """
  return load_tokenizer(folder)


@contextlib.contextmanager
def _workers(count: int):
  """A pool of processes, or None, which stands for this one."""
  if count == 1:
    yield None
    return
  spawn = multiprocessing.get_context("spawn")  # forking a process that runs JAX's threads can hang
  pool = concurrent.futures.ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin_worker)
  try:
    yield pool
  finally:
    pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
  """Ends the worker when its parent is gone, even killed."""

  def follow():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=follow, daemon=True).start()


def _in_order(pool, function: Callable, tasks: Iterable) -> Iterator[tuple]:
  """(task, function(task)) for each task, in order; few are held at a time, so that memory is
  bounded.
  """
  if pool is None:
    yield from ((task, function(task)) for task in tasks)
    return
  waiting = collections.deque()
  for task in tasks:
    # This may start a worker, which inherits the mask: an interrupt is for the parent, from the
    # worker's first moment.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting.append((task, pool.submit(function, task)))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if len(waiting) > 2 * MOST_WORKERS:
      task, future = waiting.popleft()
      yield task, future.result()
  for task, future in waiting:
    yield task, future.result()


@contextlib.contextmanager
def _progress(label: str, total: int | None):
  """A function that adds characters to a progress bar; it does nothing where tqdm is missing or
  nobody watches.
  """
  try:
    import tqdm
  except ImportError:
    yield lambda count: None
    return
  with tqdm.tqdm(desc=label, total=total, unit="B", unit_scale=True, disable=None) as bar:
    yield bar.update


@dataclasses.dataclass
class _Rows:
  """Adds up how full the rows of WINDOW tokens would be that never cross a document."""

  cells: int = 0
  predicted: int = 0

  def add(self, length: int) -> None:
    if length > 1:
      rows = max(1, (length - 1) // WINDOW)
      self.cells += rows * WINDOW
      self.predicted += min(length - 1, rows * WINDOW)


def _table(headers: dict[str, dict], rows: dict[str, _Rows]) -> str:
  padding = {split: 1 - row.predicted / max(1, row.cells) for split, row in rows.items()}
  lines = [f"{'':34}{''.join(f'{split:>14}' for split in headers)}"]
  for label, cell in (
    ("documents", lambda split, header: f"{header['n_documents']:,}"),
    ("words", lambda split, header: f"{header['n_words']:,}"),
    ("tokens", lambda split, header: f"{header['n_tokens']:,}"),
    ("bytes per token", lambda split, header: f"{header['n_bytes'] / header['n_tokens']:.3f}"),
    (
      "tokens per word",
      lambda split, header: f"{header['n_tokens'] / max(1, header['n_words']):.3f}",
    ),
    ("unigram entropy, nats per token", lambda split, header: f"{header['unigram_entropy']:.3f}"),
    ("unknown or spelled in bytes", lambda split, header: f"{header['unknown_share']:.4%}"),
    (f"padding in rows of {WINDOW} tokens", lambda split, header: f"{padding[split]:.1%}"),
  ):
    lines.append(
      f"{label:34}{''.join(f'{cell(split, header):>14}' for split, header in headers.items())}"
    )
  if padding["train"] > 0.2:
    lines.append(
      "documents are short: a smaller length, or sampling = across_documents, wastes less"
    )
  return "\n".join(lines)
