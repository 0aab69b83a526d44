"""Parts of a tokenizer.json: models of merges, and steps that replace characters."""

from collections.abc import Iterable
from typing import Any

from gpt_jax.data.tokenizers.openai_files import MergesTokenizer


def byte_pairs(
  tokenizer: MergesTokenizer, unk_token: str | None = None, end_of_word_suffix: str | None = None
) -> dict[str, Any]:
  """The model of a byte-pair encoding."""
  return {
    "type": "BPE",
    "dropout": None,
    "unk_token": unk_token,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": end_of_word_suffix,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
    "merges": list(map(list, tokenizer.merges)),
  }


def replace(pattern: str, content: str) -> dict[str, Any]:
  """Replaces a string."""
  return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def replace_matches(pattern: str, content: str) -> dict[str, Any]:
  r"""Replaces the matches of a regular expression in Oniguruma's syntax.

  content is taken literally, so what must stay is matched before `\K`, or by lookaround.
  """
  return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def sequence(normalizers: list[dict[str, Any]]) -> dict[str, Any]:
  return {"type": "Sequence", "normalizers": normalizers}


def character_class(characters: Iterable[str]) -> str:
  """A regular expression for any one of the characters; consecutive ones are a range."""
  return f"[{class_content(characters)}]"


def class_content(characters: Iterable[str]) -> str:
  """The characters as ranges, to put between the brackets of a character class."""
  ranges: list[list[int]] = []
  for code in sorted(map(ord, characters)):
    if ranges and code == ranges[-1][1] + 1:
      ranges[-1][1] = code
    else:
      ranges.append([code, code])
  return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
