"""SentencePiece BPE vocabularies: train, load, encode, decode (the paper, 4.1, uses a BPE of
40,000 merges).
"""

import collections
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import sentencepiece

from gpt_jax.data.tokenizers import openai_bpe
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError

KIND = "sentencepiece-bpe"
RULE = "nmt_nfkc_cf"  # SentencePiece's: NFKC and case folding, since GPT-1 is lower-case
NORMALIZER = f"plain punctuation, {RULE}"
LINE = "<line>"
TRAINING_THREADS = 2  # fixed: another count of threads trains another model


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer(Tokenizer):
  """A trained vocabulary; `load` also reads those of other kinds.

  A newline is the id `line_id`; each line is encoded by itself. Bytes spell what no piece covers,
  so that nothing is lost but case, compatibility forms and repeated spaces.

  Attributes:
    model: the serialized SentencePiece model.
    kind: the algorithm.
    normalizer: what happens to text first: `plain`, then SentencePiece's normalization rule.
  """

  model: bytes = dataclasses.field(repr=False)
  kind: str = KIND
  normalizer: str = NORMALIZER

  unknown_id = 0
  line_id = 1

  @classmethod
  def train(cls, words: Mapping[str, int] | Iterable[str], vocab_size: int) -> "Tokenizer":
    """Trains on counted words, or on texts whose words are then counted.

    BPE never merges across spaces, so the counts give the same model as the text, in memory bounded
    by the number of distinct words and without SentencePiece's silent skipping of lines above 4192
    bytes.

    Raises:
      InputError: no text, or a vocabulary larger or smaller than the text supports.
    """
    if not isinstance(words, Mapping):
      words = count_words(words)
    if not words:
      raise InputError("there is no text to train a vocabulary on")
    table = (
      f"{word}\t{count}" for word, count in words.items()
    )  # SentencePiece sorts, so their order is no matter
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=table,
        input_format="tsv",
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        character_coverage=1.0,
        normalization_rule_name=RULE,
        byte_fallback=True,
        unk_id=cls.unknown_id,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        control_symbols=[
          LINE
        ],  # not user-defined: a text that contains "<line>" must not become the id
        max_sentence_length=1 << 16,  # bytes; longer words are skipped
        num_threads=TRAINING_THREADS,
        minloglevel=2,
      )
    except RuntimeError as error:
      raise InputError(_explain(str(error), vocab_size)) from error
    return cls(model.getvalue())

  @classmethod
  def load(cls, folder: str) -> Tokenizer:
    """The vocabulary in a folder, of whatever kind: as `save` wrote it, or as OpenAI released it
    (openai_bpe.read).

    Raises:
      InputError: there is none, or its files do not agree.
    """
    metadata = _metadata(folder)
    kind = metadata.get("kind")
    if kind is None and openai_bpe.is_release(
      folder
    ):  # a tokenizer.json without a kind is transformers'
      return openai_bpe.read(folder)
    if kind == KIND:
      tokenizer = cls(_read(folder, "tokenizer.model"), normalizer=metadata.get("normalizer"))
    elif kind in openai_bpe.KINDS:
      tokenizer = openai_bpe.read(folder, metadata)
    else:
      known = ", ".join((KIND, *openai_bpe.KINDS))
      raise InputError(
        f"{folder}/tokenizer.json: kind {kind!r} is not known; should be one of {known}"
      )
    if tokenizer.hash != metadata.get("hash"):
      raise InputError(
        f"{folder}/{', '.join(tokenizer.files)}: damaged, the hash is not the one in tokenizer.json; "
        "copy the folder again"
      )
    return tokenizer

  @functools.cached_property
  def processor(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=self.model)

  @functools.cached_property
  def hash(self) -> str:
    """sha256 of what decides the ids: the model, the kind, the normalizer."""
    return hashlib.sha256(f"{self.kind}\n{self.normalizer}\n".encode() + self.model).hexdigest()

  @functools.cached_property
  def vocab_size(self) -> int:
    return self.processor.vocab_size()

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    ids = range(self.vocab_size)
    return np.array([self.processor.is_byte(i) or self.processor.is_unknown(i) for i in ids])

  @property
  def files(self) -> dict[str, bytes]:
    return {"tokenizer.model": self.model}

  @property
  def record(self) -> dict[str, str]:
    return {"sentencepiece": sentencepiece.__version__}

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    lines = [plain(text).split("\n") for text in texts]
    encoded = iter(self.processor.encode([line for text in lines for line in text], out_type=int))
    results = []
    for text in lines:
      ids = next(encoded)
      for _ in text[1:]:
        ids.append(self.line_id)
        ids.extend(next(encoded))
      results.append(np.array(ids, np.int32))
    return results

  def decode(self, ids: Iterable[int]) -> str:
    lines = [[]]
    for i in np.asarray(ids).tolist():
      if i == self.line_id:
        lines.append([])
      else:
        lines[-1].append(i)
    return "\n".join(self.processor.decode(lines))

  def piece(self, i: int) -> str:
    """A space is "▁", a byte such as "<0xF0>"."""
    return self.processor.id_to_piece(i)


def _metadata(folder: str) -> dict:
  """What tokenizer.json says; nothing where OpenAI's files stand alone."""
  if openai_bpe.is_release(folder) and not os.path.exists(os.path.join(folder, "tokenizer.json")):
    return {}
  content = _read(folder, "tokenizer.json")
  try:
    metadata = json.loads(content)
  except ValueError as error:
    raise InputError(
      f"{folder}/tokenizer.json: not JSON ({error}); copy the folder again"
    ) from error
  if not isinstance(metadata, dict):
    raise InputError(f"{folder}/tokenizer.json: holds no JSON object; copy the folder again")
  return metadata


def _read(folder: str, name: str) -> bytes:
  try:
    with open(os.path.join(folder, name), "rb") as file:
      return file.read()
  except OSError as error:
    raise InputError(
      f"{folder}: no tokenizer here ({error}); give a folder that has tokenizer.json and its vocabulary's files, or "
      "OpenAI's"
    ) from error


def plain(text: str) -> str:
  """Typewriter punctuation, as the paper standardizes it: straight quotes, " - " for the several
  long dashes.

  Half of a surrogate pair, which stands for a byte of a command line that is no UTF-8, becomes "?".
  """
  if not text.isascii():
    text = text.encode(errors="replace").decode().translate(_PLAIN)
  return re.sub(" *-{2,} *", " - ", text) if "--" in text else text


_PLAIN = str.maketrans(
  dict.fromkeys("‘’‚‛´", "'") | dict.fromkeys("“”„‟«»", '"') | {"–": "-", "—": "--", "―": "--"}
)


def count_words(texts: Iterable[str]) -> dict[str, int]:
  """The words of texts and how often each comes, see WordCounts."""
  counts = WordCounts()
  for text in texts:
    counts.add(collections.Counter(plain(text).split()))
  return counts.words


class WordCounts:
  """Counts of words that take bounded memory: beyond `most` characters of distinct words the rarest
  are forgotten.

  The bound keeps SentencePiece's own memory below 600 MB. Among equally rare words a checksum
  decides, so that of a text without spaces, whose words are its sentences, a fair sample stays.
  """

  def __init__(self, most: int = 6_000_000):
    self.most = most
    self.words: dict[str, int] = {}
    self._characters = 0

  def add(self, counts: Mapping[str, int]) -> None:
    words = self.words
    for word, count in counts.items():
      if word in words:
        words[word] += count
      else:
        words[word] = count
        self._characters += len(word)
    if self._characters > self.most:
      self._forget()

  def _forget(self) -> None:
    kept, self._characters = {}, 0
    for word in sorted(self.words, key=lambda word: (-self.words[word], zlib.crc32(word.encode()))):
      self._characters += len(word)
      if self._characters > self.most // 2:
        self._characters -= len(word)
        break
      kept[word] = self.words[word]
    self.words = kept


def _explain(error: str, vocab_size: int) -> str:
  """What SentencePiece's error means to the user."""
  if most := re.search(r"value <= (\d+)", error):
    return (
      f"vocab_size {vocab_size} is more than this text supports; the largest possible is {most[1]}"
    )
  if least := re.search(r"(?:required_chars|too small)\D*(\d+) vs (\d+)", error):
    return f"vocab_size {vocab_size} is too small for the characters of this text; at least {least[2]} is needed"
  return f"SentencePiece could not train a vocabulary of {vocab_size}: {' '.join(error.split())}"
