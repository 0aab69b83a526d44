"""GPT-2's tokenizer, exactly as released (Radford et al. 2019, 2.2: byte-level BPE)."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpt_jax.data.tokenizers.added_tokens import add_tokens
from gpt_jax.data.tokenizers.base import AddedToken
from gpt_jax.data.tokenizers.openai_files import (
  BYTES,
  END_OF_TEXT,
  FILES,
  MergesTokenizer,
  has_prefix_space,
  read_files,
  released_as,
)
from gpt_jax.data.tokenizers.released import encode_all, has_no_letters, offsets_of, require

KINDS = ("openai-gpt2",)


@dataclasses.dataclass(frozen=True)
class GPT2Tokenizer(MergesTokenizer):
  """Bytes merged within words, which begin with their space; lossless, nothing is unknown.

  Attributes:
    prefix_space: whether a text gets a space in front, so that its first word is as any other.
  """

  prefix_space: bool = dataclasses.field(default=False, kw_only=True)
  spelled: tuple[AddedToken, ...] = dataclasses.field(default=(), kw_only=True)

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
    return np.array(["\ufffd" in content.decode(errors="replace") for content in self._contents])

  @functools.cached_property
  def begins_word(self) -> np.ndarray:
    texts = [content.decode(errors="replace") for content in self._contents]
    return np.array([text[:1] == " " or _is_punctuation(text) for text in texts])

  def encode_many(self, texts: list[str]) -> list[np.ndarray]:
    return encode_all(self._tokenizer, texts)

  def _offsets(self, word: str) -> list[tuple[int, int]]:
    return offsets_of(self._tokenizer, word)

  def encode_marked(self, text: str) -> np.ndarray:
    """As `encode`, with one id for each "<|endoftext|>" in the text, as transformers gives it.

    `encode` spells the characters out, so that no text can end a document by what it says.
    """
    return dataclasses.replace(self, spelled=(AddedToken(END_OF_TEXT),)).encode(text)

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


def _is_punctuation(text: str) -> bool:
  return has_no_letters(text) and "\ufffd" not in text  # which is a part of a character


def detect(folder: str) -> bool:
  return released_as(folder) == "gpt2"


def load(folder: str, metadata: dict[str, Any] | None) -> GPT2Tokenizer:
  return GPT2Tokenizer(*read_files(folder), prefix_space=has_prefix_space(folder, metadata))
