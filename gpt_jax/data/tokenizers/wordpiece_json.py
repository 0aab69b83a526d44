"""BERT's WordPiece as a tokenizer.json, which runs what our tokenizer runs: the ids are equal."""

from typing import Any

from gpt_jax.data.tokenizers.wordpiece import MAX_WORD, UNKNOWN, WordPieceTokenizer


def describe(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
  """The parts of tokenizer.json."""
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
      "unk_token": UNKNOWN,
      "continuing_subword_prefix": "##",
      "max_input_chars_per_word": MAX_WORD,
      "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
    },
  }
