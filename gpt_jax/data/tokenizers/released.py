"""Shared by the readers of released tokenizers: their files, settings, and optional packages."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax import errors
from gpt_jax.data.tokenizers.base import MAX_FILE, TRANSFORMERS_CONFIG
from gpt_jax.errors import InputError
from gpt_jax.files import MAX_JSON, read_bytes, read_json


def read_file(path: str) -> bytes:
  """The content of a tokenizer's file. Raises InputError if it cannot be read."""
  try:
    return read_bytes(path, MAX_FILE)
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror}); copy the folder again") from error
  except ValueError as error:
    raise InputError(f"{path}: cannot be read ({error}); copy the folder again") from error


def read_settings(folder: str, allowed: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
  """The content of transformers' tokenizer_config.json; empty without one.

  Args:
    allowed: the values that a setting may have, by its name; others are not looked at.
  """
  path = os.path.join(folder, TRANSFORMERS_CONFIG)
  settings = read_optional_json(path)
  if settings is None:
    return {}
  if not isinstance(settings, dict):
    raise InputError(f"{path}: holds no JSON object; copy it again")
  for name, values in allowed.items():
    # By identity, since 1 equals True.
    if name in settings and not any(settings[name] is value for value in values):
      wanted = " or ".join(map(json.dumps, values))
      raise InputError(f"{path}: {name} = {settings[name]!r}: should be {wanted}")
  return settings


def class_of(folder: str) -> str:
  """The kind of transformers' tokenizer of a folder, such as "bert" for a BertTokenizerFast: as its
  settings name it, or by the class of the model; "" if nothing does.
  """
  config = read_optional_json(os.path.join(folder, "config.json"))
  config = config if isinstance(config, dict) else {}
  name = read_settings(folder, {}).get("tokenizer_class") or config.get("tokenizer_class")
  name = name or str(config.get("model_type") or "").replace("-", "")
  return re.sub("tokenizer(fast)?$", "", str(name).lower())


def require(package: str) -> Any:
  """Imports an optional package of the extra `released`; raises InputError if it is missing."""
  return errors.require(package, "text for this tokenizer", package, "released")


def encode_all(tokenizer: Any, texts: list[str]) -> list[np.ndarray]:
  """The ids of each text by a Tokenizer of the package `tokenizers`, int32 [n].

  A lone surrogate, which UTF-8 cannot encode, becomes "?".
  """
  results = []
  for text in texts:
    valid = text.encode(errors="replace").decode()
    encoding = tokenizer.encode(valid, add_special_tokens=False)
    results.append(np.array(encoding.ids, np.int32))
  return results


def offsets_of(tokenizer: Any, word: str) -> list[tuple[int, int]]:
  """See Tokenizer.offsets; by a Tokenizer of the package `tokenizers`."""
  valid = word.encode(errors="replace").decode()
  return tokenizer.encode(valid, add_special_tokens=False).offsets


def has_no_letters(piece: str) -> bool:
  """Whether a piece is punctuation, which is a word of its own, as in ALBERT's code."""
  return bool(piece) and not any(character.isalnum() for character in piece)


def read_optional_json(path: str, limit: int = MAX_JSON) -> Any:
  """The value in a JSON file of a folder that may lack it: None. Raises InputError if damaged."""
  try:
    return read_json(path, limit)
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error}); copy the folder again") from error
