"""Byte-level BPE (Radford et al. 2019, 2.2): GPT-2's tokenizer, exactly as released, and RoBERTa's.

Words are split and merged alike; RoBERTa's vocabulary has the pieces in another order, and special
tokens among them. It is read from its files, or trained.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.openai_files import (
  BYTES,
  END_OF_TEXT,
  FILES,
  ROBERTA,
  UNKNOWN,
  MergesTokenizer,
  has_prefix_space,
  read_files,
  released_as,
)
from gpt_jax.data.tokenizers.released import PackageTokenizer, add_tokens, has_no_letters, require
from gpt_jax.data.tokenizers.wordpiece import train_pieces
from gpt_jax.data.word_counts import counts_of

KINDS = ("openai-gpt2", "byte-bpe")


@dataclasses.dataclass(frozen=True)
class GPT2Tokenizer(PackageTokenizer, MergesTokenizer):
  """Bytes merged within words, which begin with their space; lossless, nothing is unknown."""

  # Whether a text gets a space in front, so that its first word is as any other.
  prefix_space: bool = dataclasses.field(default=False, kw_only=True)

  kind = KINDS[0]
  normalizer = "none"
  file_names = FILES[1]

  @functools.cached_property
  def line_id(self) -> int:
    return self.pieces.index(BYTES[ord("\n")])

  @property
  def filler_id(self) -> int | None:
    return self.end_id

  @property
  def hashed(self) -> list:
    return [*super().hashed, "prefix_space"] if self.prefix_space else super().hashed

  @property
  def metadata(self) -> dict[str, bool]:
    return {"prefix_space": True} if self.prefix_space else {}

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    # U+FFFD: bytes that are only a part of a character.
    is_part = ["\ufffd" in content.decode(errors="replace") for content in self._contents]
    return np.array(is_part) | (np.arange(self.vocab_size) == self.unknown_id)

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    begins = []
    for content in self._contents:
      text = content.decode(errors="replace")
      is_whole = "\ufffd" not in text  # not a part of a character
      begins.append(text[:1] == " " or (is_whole and has_no_letters(text)))
    return np.array(begins)

  def decode(self, ids: Iterable[int]) -> str:
    return b"".join(self._contents[i] for i in np.asarray(ids).tolist()).decode(errors="replace")

  @functools.cached_property
  def _contents(self) -> list[bytes]:
    """The bytes of each piece."""
    values = {symbol: value for value, symbol in enumerate(BYTES)}
    contents = []
    for piece in self.pieces:
      is_bytes = piece != END_OF_TEXT and values.keys() >= set(piece)
      contents.append(bytes(map(values.__getitem__, piece)) if is_bytes else piece.encode())
    return contents

  @functools.cached_property
  def _tokenizer(self) -> Any:
    tokenizers = require("tokenizers")
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=list(self.merges)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=self.prefix_space
    )
    add_tokens(tokenizer, self.spelled)
    return tokenizer


@dataclasses.dataclass(frozen=True)
class ByteBPETokenizer(GPT2Tokenizer):
  """As GPT2Tokenizer, with <s> as `cls` and </s> as `sep`."""

  special_names: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

  kind = KINDS[1]
  file_names = FILES[2]
  special_pieces = ROBERTA
  unknown = UNKNOWN
  training_words = staticmethod(str.split)  # of a text, which `train` counts

  @classmethod
  def train(cls, words: Mapping[str, int] | Iterable[str], vocab_size: int) -> "ByteBPETokenizer":
    """Trains on word counts, or on texts, whose words are then counted.

    Ids as RoBERTa's: <s> 0, <pad> 1, </s> 2, <unk> 3, then the bytes and merges, <mask> last.
    """
    counts = counts_of(words)
    tokenizers = require("tokenizers")
    splitter = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = splitter
    mask = ROBERTA["mask"]
    trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size - 1,  # <mask> comes after the merges
      special_tokens=[ROBERTA["cls"], ROBERTA["pad"], ROBERTA["sep"], UNKNOWN],
      initial_alphabet=splitter.alphabet(),  # all 256 bytes, even those that the text lacks
      show_progress=False,
    )
    pieces = train_pieces(tokenizer, trainer, counts, vocab_size, space=" ", last=(mask,))
    # The package's models give no access to their merges but in JSON.
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return cls(pieces, tuple(map(tuple, merges)))


def detect(folder: str) -> bool:
  return released_as(folder) in ("gpt2", "roberta")


def load(folder: str, metadata: dict[str, Any] | None) -> GPT2Tokenizer:
  kinds = {"roberta": ByteBPETokenizer, KINDS[1]: ByteBPETokenizer}
  kind = kinds.get(metadata["kind"] if metadata else released_as(folder) or "", GPT2Tokenizer)
  return kind(*read_files(folder), prefix_space=has_prefix_space(folder, metadata))
