"""Folders that are written whole or not at all, and our own exports: arrays, config and vocabulary
in such a folder.

An export needs neither JAX nor this package to be read. It holds its arrays in `weights.npz` or
`weights.safetensors` (float32; an array's name is its path, such as `trunk/block_0/mlp/in/kernel`),
`config.json`, `tokenizer/`, and `sha256.json` of all of them. The embedding table has all its rows:
the vocabulary, then start, delimiter and extract, then those that are never used.
"""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_folder, write_json

CONFIG, SUMS, TOKENIZER = "config.json", "sha256.json", "tokenizer"
Arrays = dict[str, np.ndarray]


def detect(path: str, weights: str) -> bool:
  """Whether a path is meant to be an export with this file of arrays: the folder, or the file in
  it.
  """
  if os.path.isfile(path):
    return os.path.basename(path) == weights
  if os.path.isfile(os.path.join(path, weights)):
    return True
  try:
    with open(os.path.join(path, SUMS), encoding="utf-8") as file:
      return weights in file.read()
  except (OSError, ValueError):
    return False


def save(
  folder: str,
  weights: str,
  write: Callable[[str, Arrays, dict], None],
  params: Any,
  meta: dict,
  step: int,
  tokenizer: Tokenizer,
) -> None:
  """Writes an export, whole or not at all. The same again changes nothing.

  Args:
    weights: name of the file of arrays.
    write: (its path, the arrays by name, what config.json says) -> None.

  Raises:
    InputError: the folder is there and holds something else.
  """
  again = detect(folder, weights)
  if os.path.lexists(folder) and not again:
    raise InputError(
      f"{folder} is there already and holds no {weights} that we exported; choose another place"
    )
  config = {"format": _format(weights), "step": step, **meta}
  with atomic_folder(folder, _unless_another if again else None) as partial:
    arrays = {
      name: np.ascontiguousarray(x, np.float32) for name, x in flatten_dict(params, sep="/").items()
    }
    write(os.path.join(partial, weights), arrays, config)
    write_json(os.path.join(partial, CONFIG), config)
    tokenizer.save(os.path.join(partial, TOKENIZER))
    files = (
      weights,
      CONFIG,
      *(f"{TOKENIZER}/{name}" for name in ("tokenizer.json", *tokenizer.files)),
    )
    write_json(os.path.join(partial, SUMS), {name: _sha256(partial, name) for name in files})


def load(
  folder: str, weights: str, read: Callable[[str], Arrays], damage: type[Exception]
) -> tuple[dict, dict, int, Tokenizer]:
  """Reads and verifies what `save` wrote: params as float32 NumPy arrays, meta, step, the
  vocabulary.

  Args:
    folder: or the file of arrays in it.
    read: (path of the file of arrays) -> the arrays by name.
    damage: what `read` raises at a damaged file, beside OSError and ValueError.

  Raises:
    InputError: a file is missing, damaged or not what was exported.
  """
  folder = os.path.dirname(folder) if os.path.isfile(folder) else folder
  try:
    sums = read_json(os.path.join(folder, SUMS))
    for name in dict.fromkeys((weights, CONFIG, f"{TOKENIZER}/tokenizer.json", *sums)):
      if _sha256(folder, name) != sums.get(name):
        raise InputError(
          f"{folder}/{name}: damaged, {SUMS} has another sum for it; copy or export the model again"
        )
    meta = read_json(os.path.join(folder, CONFIG))
    params = unflatten_dict(read(os.path.join(folder, weights)), sep="/")
  except (OSError, ValueError, damage) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(
      f"{folder}: not a whole exported model ({error}); copy or export it again"
    ) from error
  if meta.pop("format", None) != _format(weights):
    raise InputError(
      f"{folder}/{CONFIG}: format is not {_format(weights)!r}; export the model with launch/export.py"
    )
  return (
    params,
    meta,
    meta.pop("step"),
    load_tokenizer(os.path.join(folder, TOKENIZER)),
  )


def read_json(path: str) -> dict:
  """The object in a file. Raises OSError and ValueError."""
  with open(path, encoding="utf-8") as file:
    value = json.load(file)
  if not isinstance(value, dict):
    raise ValueError(f"{os.path.basename(path)} holds no JSON object")
  return value


def _format(weights: str) -> str:
  return f"gpt_jax{os.path.splitext(weights)[1]}"


def _unless_another(partial: str, folder: str) -> None:
  """Keeps the export that is there. Raises InputError where it is not, or no longer, the one
  just written.
  """
  try:
    sums = read_json(os.path.join(folder, SUMS))
    same = sums == read_json(os.path.join(partial, SUMS)) and all(
      _sha256(folder, name) == sums[name] for name in sums
    )
  except (OSError, ValueError):
    same = False
  if not same:
    raise InputError(
      f"{folder} is the export of another model, or damaged; remove it, or choose another place"
    )


def _sha256(folder: str, name: str) -> str:
  with open(os.path.join(folder, name), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
