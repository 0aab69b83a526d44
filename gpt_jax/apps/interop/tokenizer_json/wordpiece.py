"""BERT's WordPiece as a tokenizer.json, with equal ids for every text."""

from typing import Any

from gpt_jax.apps.interop.tokenizer_json import TRAINED_IDS
from gpt_jax.data.tokenizers import wordpiece

KINDS = wordpiece.KINDS
IDS = TRAINED_IDS


def describe(tokenizer: wordpiece.WordPieceTokenizer, of_parts: bool) -> dict[str, Any]:
  return {
    "normalizer": {
      "type": "BertNormalizer",
      "clean_text": True,
      "handle_chinese_chars": True,
      "strip_accents": tokenizer.strip_accents,
      "lowercase": tokenizer.lower_case,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
      "type": "WordPiece",
      "unk_token": wordpiece.UNKNOWN,
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": wordpiece.MAX_WORD,
      "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
    },
  }
