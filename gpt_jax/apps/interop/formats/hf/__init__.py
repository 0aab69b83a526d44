"""transformers folders: config.json, weights, vocabulary; a file for each family of models.

Weights are model.safetensors or pytorch_model.bin. To add a family of the Transformer trunk, add a
file with FAMILIES (see family.Family), such as gpt.py; it edits no other. T5 has a trunk of its
own, and read.py and write.py call t5.py.

The search for registered names imports this file, so it imports JAX only where it is used.
"""

from typing import Any

from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.data.tokenizers.base import Tokenizer

HELP = "a transformers folder: openai-gpt, gpt2, bert, roberta, xlm-roberta, albert or t5"


def detect(path: str) -> bool:
  from gpt_jax.apps.interop.formats.hf import weights

  return weights.detect(path)


def load(path: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
  from gpt_jax.apps.interop.formats.hf import read

  return read.load(path, check)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  from gpt_jax.apps.interop.formats.hf import write

  write.save(folder, params, meta, step, tokenizer)
