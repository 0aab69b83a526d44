"""Models of transformers: of a folder, or drawn by torch."""

import re
from pathlib import Path
from typing import Any

from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer, GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer

WORDS = "the cat sat on the mat and the dog ran to the old red barn by the sea, that reads <[()]>"


def vocabulary_of(kind: str) -> Any:
  """A small vocabulary of the kind that a family was released with."""
  if kind in ("Bert", "Albert"):
    return WordPieceTokenizer.train([WORDS], 62)
  if kind == "Roberta":
    return ByteBPETokenizer.train([WORDS], 290)
  return GPT2Tokenizer((*BYTES, "<|endoftext|>"), ())


def load_theirs(name: str, folder: Any, complete: bool = False) -> Any:
  """The model of a class, read offline and quietly; complete: of whose arrays none is missing."""
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  model, report = getattr(transformers, name).from_pretrained(
    str(folder), local_files_only=True, output_loading_info=True
  )
  if complete:
    assert not any(report["missing_keys"]) and not any(report["unexpected_keys"]), report
  return model.eval()


def draw_theirs(name: str, **settings: Any) -> Any:
  """A model of a class with these settings, every parameter perturbed."""
  import torch
  import transformers

  kind = re.match("Bert|Roberta|XLMRoberta|Albert|GPT2|OpenAIGPT|T5", name)[0]
  torch.manual_seed(0)
  model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings))
  with torch.no_grad():
    for parameter in model.parameters():
      parameter += 0.1 * torch.randn_like(parameter)
  return model.eval()


def random_theirs(name: str, tokenizer: Any, **settings: Any) -> Any:
  """A small model of a class for a vocabulary, every parameter perturbed."""
  sizes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size + tokenizer.special.count}
  if "GPT" in name:
    sizes |= {"vocab_size": tokenizer.vocab_size, "n_embd": 32, "n_layer": 2, "n_head": 4}
    sizes |= {"n_positions": 48, "bos_token_id": None, "eos_token_id": None}
    return draw_theirs(name, **sizes | settings)
  padding = tokenizer.special.pad
  sizes |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
  sizes |= {"intermediate_size": 128, "max_position_embeddings": 48, "pad_token_id": padding}
  if "Roberta" in name:
    roberta = {"max_position_embeddings": 49 + padding, "type_vocab_size": 1}
    sizes |= {**roberta, "layer_norm_eps": 1e-5}
  if "Albert" in name:
    sizes["embedding_size"] = 16
  return draw_theirs(name, **sizes | settings)


def write_vocabulary(folder: Any, tokenizer: Any) -> None:
  """The vocabulary as it was released."""
  for name, content in tokenizer.transformers_files.items():
    (Path(folder) / name).write_bytes(content)
