"""Trunks of about one size for the rows that are systems, and pairs of texts to translate."""

import dataclasses
import os
from typing import Any

from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.files import atomic_file, atomic_folder, is_folder
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.encoding import Example

PAIR_LENGTH = 16  # tokens of a text to translate
DEV_PAIRS = 64
_UNITS = range(8, 4096, 8)


def resized(trunk: Any, like: TransformerConfig) -> Any:
  """An LSTM's config at the context, width and type of a Transformer, with the units by which its
  layers have about as many parameters; without the tables of a vocabulary, which has none yet.
  """
  wanted = dataclasses.replace(like, pooler=False).parameter_count()

  fields = {field.name for field in dataclasses.fields(trunk)}

  def with_units(units: int) -> Any:
    sizes: dict[str, Any] = {"units": units}
    sizes |= {name: like.width for name in ("width", "embedding_width") if name in fields}
    if "projection" in fields and trunk.projection:
      sizes["projection"] = like.width
    if isinstance(trunk.units, tuple):  # of a stack; the last layer of a tied one is as wide as x
      sizes["units"] = (units,) * (len(trunk.units) - trunk.tied) + (like.width,) * trunk.tied
    return dataclasses.replace(trunk, context=like.context, dtype=like.dtype, **sizes)

  # A few hundred configs, which costs less than to solve for the units of each kind of trunk.
  sizes = ((abs(with_units(units).parameter_count() - wanted), units) for units in _UNITS)
  return with_units(min(sizes)[1])


def write_pairs(folder: str, text: str, count: int) -> None:
  """Writes pairs of a text and the same text with its words reversed, which stand for translations
  where there is one language only. Does nothing if the folder exists.

  Args:
    text: a prepared folder.
    count: most training pairs.
  """
  if is_folder(folder):
    return
  tokenizer = load_tokenizer(os.path.join(text, "tokenizer"))
  with atomic_folder(folder) as partial:
    for split, name, most in (("train", "train", count), ("valid", "val", DEV_PAIRS)):
      tokens = TokenFile(text, split)
      firsts = range(0, tokens.n_tokens - PAIR_LENGTH, PAIR_LENGTH)[:most]
      texts, backwards = (os.path.join(partial, f"{name}.{side}") for side in ("text", "back"))
      with (
        open(texts, "w", encoding="utf-8") as one,
        open(backwards, "w", encoding="utf-8") as other,
      ):
        for first in firsts:
          words = tokenizer.decode(tokens.read(first, PAIR_LENGTH).tolist()).split()
          if words:
            one.write(f"{' '.join(words)}\n")
            other.write(f"{' '.join(reversed(words))}\n")


def write_texts(path: str, examples: list[Example]) -> None:
  """The distinct texts of labeled examples, one a line."""
  texts = (" ".join(text.split()) for example in examples for text in example.texts)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with atomic_file(path) as file:
    file.write("".join(f"{text}\n" for text in dict.fromkeys(texts)))
