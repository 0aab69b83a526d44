"""SentencePiece BPE: train, load, encode, decode (the paper, 4.1, uses a BPE of 40,000 merges)."""

import dataclasses
import functools
import hashlib
import io
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import sentencepiece

from gpt_jax.data.tokenizers.base import DEFAULT_SPECIAL, Tokenizer, sources
from gpt_jax.data.tokenizers.released import has_no_letters, read_file
from gpt_jax.data.word_counts import counts_of, wrong_size
from gpt_jax.errors import InputError

KINDS = ("sentencepiece-bpe",)

RULE = "nmt_nfkc_cf"  # SentencePiece's NFKC and case folding, because GPT-1 is lower-case
NORMALIZER = f"plain punctuation, {RULE}"
LINE = "<line>"
SPACE = "▁"  # how a piece spells the space before it
MODEL = "tokenizer.model"
_MAX_WORD = 1 << 16  # bytes
TRAINING_THREADS = 2  # fixed, because the model depends on it


@dataclasses.dataclass(frozen=True)
class SentencePieceModel(Tokenizer):
  """The pieces of a SentencePiece model."""

  model: bytes = dataclasses.field(repr=False)  # serialized

  @functools.cached_property
  def processor(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=self.model)

  @functools.cached_property
  def hash(self) -> str:
    return hashlib.sha256(f"{self.kind}\n{self.normalizer}\n".encode() + self.model).hexdigest()

  @functools.cached_property
  def vocab_size(self) -> int:
    return self.processor.vocab_size()

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    ids = range(self.vocab_size)
    return np.array([self.processor.is_byte(i) or self.processor.is_unknown(i) for i in ids])

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    pieces = map(self.piece, range(self.vocab_size))
    begins = np.array([piece[0] == SPACE or has_no_letters(piece) for piece in pieces])
    if self.line_id is not None:
      begins[self.line_id] = True
    return begins

  def _offsets(self, word: str) -> list[tuple[int, int]]:
    normalized, origins = sources(word, self._normalize)
    spans = self.processor.encode_as_offset_mapping(normalized)["offsets"]
    last = len(normalized) - 1
    # An empty one, of a byte that does not end its character, stays empty.
    return [
      (origins[min(begin, last)][0], origins[max(end, 1) - 1][1]) if end > begin else (0, 0)
      for begin, end in spans
    ]

  def _normalize(self, text: str) -> str:
    """The text as it is before the model's own normalization."""
    return text

  metadata = {"sentencepiece": sentencepiece.__version__}

  def piece(self, i: int) -> str:
    """The piece; a space is "▁", a byte looks like "<0xF0>"."""
    return self.processor.id_to_piece(i)


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer(SentencePieceModel):
  """A trained SentencePiece model.

  Lines are encoded separately, with `line_id` for each newline between them. Characters outside
  the vocabulary become bytes, so only case, compatibility forms and repeated spaces are lost.
  """

  normalizer: str = NORMALIZER  # `plain`, then SentencePiece's normalization rule
  special_names: tuple[str, ...] = DEFAULT_SPECIAL

  kind = KINDS[0]
  unknown_id = 0
  filler_id = 0
  line_id = 1

  @staticmethod
  def training_words(text: str) -> list[str]:
    """The words of a text that `train` counts."""
    return plain(text).split()

  @classmethod
  def train(
    cls, words: Mapping[str, int] | Iterable[str], vocab_size: int
  ) -> "SentencePieceTokenizer":
    """Trains on word counts, or on texts, whose words are then counted.

    BPE never merges across spaces, so the counts give the same model as the text. They take memory
    bounded by the distinct words, and SentencePiece would silently skip lines above 4192 bytes.
    """
    counts = counts_of(words, cls.training_words)
    # SentencePiece sorts the table, so the order of the words does not matter.
    table = (f"{word}\t{count}" for word, count in counts.items())
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=table,
        input_format="tsv",
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        character_coverage=1.0,  # the default, 0.9995, leaves rare characters out
        normalization_rule_name=RULE,
        byte_fallback=True,
        unk_id=cls.unknown_id,
        # No ids for begin, end and padding: our special tokens are above the vocabulary.
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        # A control symbol, not a user-defined one: the text "<line>" must not encode to it.
        control_symbols=[LINE],
        max_sentence_length=_MAX_WORD,  # longer words are skipped
        num_threads=TRAINING_THREADS,
        minloglevel=2,
      )
    except RuntimeError as error:
      raise _explain(str(error), vocab_size) from error
    return cls(model.getvalue())

  @property
  def files(self) -> dict[str, bytes]:
    return {MODEL: self.model}

  def _normalize(self, text: str) -> str:
    return plain(text)

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    lines_of_texts = [plain(text).split("\n") for text in texts]
    all_lines = list(itertools.chain.from_iterable(lines_of_texts))
    encoded = iter(self.processor.encode(all_lines, out_type=int))
    results = []
    for lines in lines_of_texts:
      ids = next(encoded)
      for _ in lines[1:]:
        ids.append(self.line_id)
        ids.extend(next(encoded))
      results.append(np.array(ids, np.int32))
    return results

  def decode(self, ids: Iterable[int]) -> str:
    lines: list[list[int]] = [[]]
    for i in np.asarray(ids).tolist():
      if i == self.line_id:
        lines.append([])
      else:
        lines[-1].append(i)
    return "\n".join(self.processor.decode(lines))


def detect(folder: str) -> bool:
  """A model alone does not tell how text was normalized, so only saved folders are read."""
  return False


def load(folder: str, metadata: dict[str, Any] | None) -> SentencePieceTokenizer:
  model = read_file(os.path.join(folder, MODEL))
  return SentencePieceTokenizer(model, str((metadata or {}).get("normalizer")))


def plain(text: str) -> str:
  """Typewriter punctuation, as in the paper: straight quotes, " - " for long dashes."""
  if not text.isascii():
    # A lone surrogate, a byte of the command line that is not UTF-8, becomes "?".
    text = text.encode(errors="replace").decode().translate(_PLAIN)
  return re.sub(" *-{2,} *", " - ", text) if "--" in text else text


_PLAIN = str.maketrans(
  dict.fromkeys("‘’‚‛´", "'") | dict.fromkeys("“”„‟«»", '"') | {"–": "-", "—": "--", "―": "--"}
)


def _explain(error: str, vocab_size: int) -> InputError:
  """SentencePiece's error as advice to the user."""
  if possible := re.search(r"value <= (\d+)|(?:required_chars|too small)\D*\d+ vs (\d+)", error):
    return wrong_size(vocab_size, int(possible[1] or possible[2]))
  if "sentences_.empty()" in error:
    return InputError(
      f"all words of this text are longer than {_MAX_WORD:,} bytes, which are left out; is it "
      "text, with spaces between the words?"
    )
  reason = " ".join(error.split())
  return InputError(f"SentencePiece could not train a vocabulary of {vocab_size}: {reason}")
