"""Models of transformers: of a folder, or drawn by torch."""

import re
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
