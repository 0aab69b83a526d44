"""Tokenizers as a tokenizer.json of Hugging Face's `tokenizers`, each kind in a file."""

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gpt_jax.data.tokenizers.base import Tokenizer

TRAINED_IDS = "the ids with which the model was trained"


class TokenizerJson(Protocol):
  """The module interface by which `find` knows the files of this folder."""

  KINDS: tuple[str, ...]  # the values of `Tokenizer.kind` that `describe` takes
  IDS: str  # which ids its tokenizer.json gives, for a model card

  def describe(self, tokenizer: Tokenizer, of_parts: bool) -> dict[str, Any]:
    """The parts of a tokenizer.json.

    Special tokens inside the vocabulary may be left out of its added_tokens.

    Args:
      of_parts: whether what is decoded continues a text, so that its first space counts.
    """


def find(kind: str) -> TokenizerJson | None:
  """The file for a kind of tokenizer; None: it has no tokenizer.json."""
  for found in pkgutil.iter_modules(__path__):
    module = importlib.import_module(f"{__package__}.{found.name}")
    if kind in module.KINDS:
      return module
  return None


# ------------------------------------------------------- Parts: models of merges, and replacements


def byte_pairs(
  pieces: Iterable[str],
  merges: Iterable[Sequence[str]],
  unk_token: str | None = None,
  end_of_word_suffix: str | None = None,
  byte_fallback: bool = False,
) -> dict[str, Any]:
  return {
    "type": "BPE",
    "dropout": None,
    "unk_token": unk_token,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": end_of_word_suffix,
    "fuse_unk": False,
    "byte_fallback": byte_fallback,
    "ignore_merges": False,
    "vocab": {piece: i for i, piece in enumerate(pieces)},
    "merges": list(map(list, merges)),
  }


def replace(pattern: str, content: str) -> dict[str, Any]:
  return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def replace_matches(pattern: str, content: str) -> dict[str, Any]:
  r"""Replaces the matches of a regular expression in Oniguruma's syntax.

  content is taken literally, so what must stay is matched before `\K`, or by lookaround.
  """
  return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def sequence(normalizers: list[dict[str, Any]]) -> dict[str, Any]:
  return {"type": "Sequence", "normalizers": normalizers}


def character_class(characters: Iterable[str], begin: str = "") -> str:
  """A regular expression for any one of the characters, or with begin="^" for any other character;
  consecutive ones are a range.
  """
  ranges: list[list[int]] = []
  for code in sorted(map(ord, characters)):
    if ranges and code == ranges[-1][1] + 1:
      ranges[-1][1] = code
    else:
      ranges.append([code, code])
  content = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
  return f"[{begin}{content}]"
