"""The tokenizer of a transformers folder: tokenizer.json and tokenizer_config.json.

No text encodes to a special token: they are known to the template of a classifier's input only, and
transformers is told to read those it needs (the one it pads with) as ordinary text.
"""

import json
import os
from typing import Any

from gpt_jax.checkpoints.formats import openai_json, sentencepiece_json
from gpt_jax.data.tokenizers.base import METADATA, Tokenizer
from gpt_jax.data.tokenizers.gpt1 import GPT1Tokenizer
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import END_OF_TEXT
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.tokenizer_json import HuggingFaceTokenizer
from gpt_jax.files import write_json

CONFIG = "tokenizer_config.json"


def write_tokenizer(folder: str, tokenizer: Tokenizer, context: int, classifies: bool) -> None:
  """Writes both files, or for a kind of tokenizer without a tokenizer.json one that says so.

  Args:
    context: the longest sequence, in tokens.
    classifies: whether a text, or a pair of them, is to stand between the special tokens of a
      labeled example; else they are encoded as `tokenizer.encode` does.
  """
  # A pipeline that generates decodes the continuation alone.
  parts = _describe(tokenizer, of_parts=not classifies)
  if parts is None:
    # Without a class transformers would make up a tokenizer whose ids are all 0.
    absent = {"tokenizer_class": f"NotInTransformers: {tokenizer.kind}, see README.md"}
    write_json(os.path.join(folder, CONFIG), absent)
    return
  content = {"version": "1.0", **parts, "truncation": None, "padding": None}
  content["post_processor"] = _template(tokenizer) if classifies else None
  with open(os.path.join(folder, METADATA), "w", encoding="utf-8") as file:
    json.dump(content, file, ensure_ascii=False)
  config: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    # Without it the models would add embeddings of token types, and were trained without them.
    "model_input_names": ["input_ids", "attention_mask"],
    "model_max_length": context,
    "padding_side": "right",
    "truncation_side": "right",
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,
  }
  if padding := padding_token(tokenizer):
    config["pad_token"] = padding[0]
  write_json(os.path.join(folder, CONFIG), config)


def padding_token(tokenizer: Tokenizer) -> tuple[str, int] | None:
  """A piece that no text ends with, and its id, to pad with; None if there is none."""
  if isinstance(tokenizer, GPT2Tokenizer):
    if END_OF_TEXT not in tokenizer.pieces:
      return None
    return END_OF_TEXT, tokenizer.pieces.index(END_OF_TEXT)
  if isinstance(tokenizer, (SentencePieceTokenizer, GPT1Tokenizer)):
    return tokenizer.piece(tokenizer.unknown_id), tokenizer.unknown_id
  return None


def _describe(tokenizer: Tokenizer, of_parts: bool) -> dict[str, Any] | None:
  """The parts of tokenizer.json; None for a kind that has none."""
  if isinstance(tokenizer, SentencePieceTokenizer):
    return sentencepiece_json.describe(tokenizer, of_parts)
  if isinstance(tokenizer, GPT2Tokenizer):
    return openai_json.describe_gpt2(tokenizer)
  if isinstance(tokenizer, GPT1Tokenizer):
    return openai_json.describe_gpt1(tokenizer, of_parts)
  if isinstance(tokenizer, HuggingFaceTokenizer):
    return json.loads(tokenizer.content)
  return None


def _template(tokenizer: Tokenizer) -> dict[str, Any]:
  """What tasks.formats.GPTFormat puts around one text, and around two."""
  special = tokenizer.special
  spelling = {name: tokenizer.spelling(i) for name, i in special.items()}

  def token(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": spelling[name], "type_id": 0}}

  first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
  tokens = {}
  for name in ("start", "delimiter", "extract"):
    tokens[spelling[name]] = {
      "id": spelling[name],
      "ids": [special[name]],
      "tokens": [spelling[name]],
    }
  return {
    "type": "TemplateProcessing",
    "single": [token("start"), first, token("extract")],
    "pair": [token("start"), first, token("delimiter"), second, token("extract")],
    "special_tokens": tokens,
  }
