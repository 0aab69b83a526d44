"""A tokenizer.json as it came."""

import json
from typing import Any

from gpt_jax.apps.interop.tokenizer_json import TRAINED_IDS
from gpt_jax.apps.interop.tokenizers import tokenizer_json

KINDS = tokenizer_json.KINDS
IDS = TRAINED_IDS


def describe(tokenizer: tokenizer_json.HuggingFaceTokenizer, of_parts: bool) -> dict[str, Any]:
  return json.loads(tokenizer.content)
