"""Byte-level BPE as a tokenizer.json, with equal ids for every text."""

from typing import Any

from gpt_jax.apps.interop.tokenizer_json import TRAINED_IDS, byte_pairs
from gpt_jax.data.tokenizers import gpt2

KINDS = gpt2.KINDS
IDS = TRAINED_IDS


def describe(tokenizer: gpt2.GPT2Tokenizer, of_parts: bool) -> dict[str, Any]:
  del of_parts  # decoding keeps every space
  byte_level = {
    "type": "ByteLevel",
    "add_prefix_space": tokenizer.prefix_space,
    "trim_offsets": True,
    "use_regex": True,
  }
  return {
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": byte_level,
    "decoder": byte_level,
    "model": byte_pairs(tokenizer.pieces, tokenizer.merges),
  }
