"""Byte-level BPE with RoBERTa's special tokens among its ids: read from its files, or trained.

Words are split and merged as in GPT-2's, whose pieces RoBERTa's vocabulary has in another order.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import (
  FILES,
  ROBERTA,
  UNKNOWN,
  has_prefix_space,
  read_files,
  released_as,
)
from gpt_jax.data.tokenizers.released import require
from gpt_jax.data.tokenizers.wordpiece import check_size, ids_of, repeated
from gpt_jax.data.word_counts import counts_of

KINDS = ("byte-bpe",)


@dataclasses.dataclass(frozen=True)
class ByteBPETokenizer(GPT2Tokenizer):
  """As GPT2Tokenizer, with <s> as `cls` and </s> as `sep`."""

  special_names: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

  kind = KINDS[0]
  file_names = FILES[2]
  special_pieces = ROBERTA

  @staticmethod
  def training_words(text: str) -> list[str]:
    """The words of a text that `train` counts."""
    return text.split()

  @classmethod
  def train(cls, words: Mapping[str, int] | Iterable[str], vocab_size: int) -> "ByteBPETokenizer":
    """Trains on word counts, or on texts, whose words are then counted.

    The ids are as in RoBERTa: <s> 0, <pad> 1, </s> 2, <unk> 3, then the bytes and merges, <mask>
    last.
    """
    counts = counts_of(words, cls.training_words)
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
    tokenizer.train_from_iterator(repeated(counts, space=" "), trainer)
    ids = tokenizer.get_vocab()
    check_size(len(ids) + 1, vocab_size)
    # The package's models give no access to their merges but in JSON.
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return cls((*sorted(ids, key=lambda piece: ids[piece]), mask), tuple(map(tuple, merges)))

  @functools.cached_property
  def special_inside(self) -> dict[str, int]:
    return ids_of(self.special_pieces, self.pieces)

  @functools.cached_property
  def unknown_id(self) -> int | None:
    return self.pieces.index(UNKNOWN) if UNKNOWN in self.pieces else None

  @functools.cached_property
  def byte_fallback(self) -> np.ndarray:
    mask = super().byte_fallback
    return mask if self.unknown_id is None else mask | (np.arange(len(mask)) == self.unknown_id)


def detect(folder: str) -> bool:
  return released_as(folder) == "roberta"


def load(folder: str, metadata: dict[str, Any] | None) -> ByteBPETokenizer:
  return ByteBPETokenizer(*read_files(folder), prefix_space=has_prefix_space(folder, metadata))
