"""The vocabulary of a transformers folder, in and out."""

import dataclasses
import os
from collections.abc import Callable

from gpt_jax.apps.interop.formats.hf.fields import TOKENIZER_FIELDS
from gpt_jax.apps.interop.formats.hf_tokenizer import Template, write_tokenizer
from gpt_jax.apps.interop.tokenizers.tokenizer_json import SAVED, check_pieces
from gpt_jax.checkpoints.formats.folder import TOKENIZER
from gpt_jax.data.tokenizers.base import (
  METADATA,
  TRANSFORMERS_CONFIG,
  Tokenizer,
  load_released,
  load_tokenizer,
)
from gpt_jax.data.tokenizers.released import class_of, read_settings, spelled_tokens
from gpt_jax.errors import InputError

# Kinds of tokenizers that the files of a vocabulary alone decide; see class_of.
_CLASSES = "pretrained bert distilbert electra roberta gpt2 openaigpt albert t5".split()


def read_vocabulary(
  folder: str, vocab_size: int, load: Callable[[str], Tokenizer] = load_released
) -> Tokenizer:
  """Our vocabulary if there is one, since it names the word splitter; else that of transformers, in
  which a text may spell the special tokens that the folder's tokenizer reads.

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
  path = os.path.join(folder, TRANSFORMERS_CONFIG)
  if reason := TOKENIZER_FIELDS.unsupported(path, read_settings(folder, {})):
    raise InputError(f"{path}: {reason}")
  kind = class_of(folder)
  if kind and kind not in _CLASSES and not os.path.isfile(os.path.join(folder, METADATA)):
    raise InputError(
      f"{path}: tokenizer_class is that of {kind!r}: without a {METADATA} only one of "
      f"{', '.join(_CLASSES[1:])} is supported"
    )
  tokenizer = load(folder)
  if "spelled" not in {field.name for field in dataclasses.fields(tokenizer)}:
    return tokenizer  # of a kind of ours
  return dataclasses.replace(tokenizer, spelled=spelled_tokens(folder, tokenizer))


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
