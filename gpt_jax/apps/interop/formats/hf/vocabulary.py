"""The vocabulary of a transformers folder, in and out."""

import os
from collections.abc import Callable

from gpt_jax.apps.interop.formats.hf_tokenizer import Template, write_tokenizer
from gpt_jax.apps.interop.tokenizers.tokenizer_json import SAVED, check_pieces
from gpt_jax.checkpoints.formats.folder import TOKENIZER
from gpt_jax.data.tokenizers.base import METADATA, Tokenizer, load_released, load_tokenizer


def read_vocabulary(
  folder: str, vocab_size: int, load: Callable[[str], Tokenizer] = load_released
) -> Tokenizer:
  """Our vocabulary if there is one, since it names the word splitter; else that of transformers.

  Args:
    vocab_size: of config.json.
    load: reads transformers', of the folder.

  Raises:
    InputError: there is none, it is damaged, or a tokenizer.json has more pieces than vocab_size.
  """
  own = os.path.join(folder, TOKENIZER)
  if os.path.isdir(own):
    check_pieces(os.path.join(own, SAVED), vocab_size)
    return load_tokenizer(own)
  check_pieces(os.path.join(folder, METADATA), vocab_size)
  return load(folder)


def write_vocabulary(
  folder: str,
  tokenizer: Tokenizer,
  context: int,
  template: Template | None,
  fills_masks: bool = False,
) -> None:
  """Our vocabulary, and that of transformers; see write_tokenizer."""
  tokenizer.save(os.path.join(folder, TOKENIZER))
  write_tokenizer(folder, tokenizer, context, template, fills_masks)
  for name, content in tokenizer.transformers_files.items():
    with open(os.path.join(folder, name), "wb") as file:
      file.write(content)
