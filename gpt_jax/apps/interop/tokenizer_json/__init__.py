"""Tokenizers as a tokenizer.json of Hugging Face's `tokenizers`, each kind in a file."""

import importlib
import pkgutil
from typing import Any, Protocol

from gpt_jax.data.tokenizers.base import Tokenizer

TRAINED_IDS = "the ids with which the model was trained"


class TokenizerJson(Protocol):
  """The module interface by which `find` knows the files of this folder.

  Attributes:
    KINDS: the values of `Tokenizer.kind` that `describe` takes.
    IDS: which ids its tokenizer.json gives, for a model card.
  """

  KINDS: tuple[str, ...]
  IDS: str

  def describe(self, tokenizer: Tokenizer, of_parts: bool) -> dict[str, Any]:
    """The parts of a tokenizer.json.

    Special tokens inside the vocabulary may be left out of its added_tokens.

    Args:
      of_parts: whether what is decoded continues a text, so that its first space counts.

    Raises:
      InputError: a tokenizer.json cannot express it.
    """


def find(kind: str) -> TokenizerJson | None:
  """The file for a kind of tokenizer; None: it has no tokenizer.json."""
  for found in pkgutil.iter_modules(__path__):
    module = importlib.import_module(f"{__package__}.{found.name}")
    if kind in module.KINDS:
      return module
  return None
