"""Our own exports: a folder of weights, config, tokenizer and checksums.

Reading one needs neither JAX nor this package. The arrays are in `weights.npz` or
`weights.safetensors` (float32; an array's name is its path, e.g. `trunk/block_0/mlp/in/kernel`),
beside `config.json`, `tokenizer/`, and the checksums of all files in `sha256.json`. The embedding
table is complete: the vocabulary, the special tokens, then unused rows.
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


def detect_export(path: str, weights: str) -> bool:
  """Whether path is an export with this weights file, perhaps damaged: its folder, or the file."""
  if os.path.isfile(path):
    return os.path.basename(path) == weights
  if os.path.isfile(os.path.join(path, weights)):
    return True
  try:
    with open(os.path.join(path, SUMS), encoding="utf-8") as file:
      return weights in file.read()
  except (OSError, ValueError):
    return False


def save_export(
  folder: str,
  weights: str,
  write: Callable[[str, Arrays, dict], None],
  params: Any,
  meta: dict,
  step: int,
  tokenizer: Tokenizer,
) -> None:
  """Writes an export atomically; keeps the export that exists if it is the same.

  Args:
    weights: name of the weights file.
    write: write(path, arrays by name, config.json) writes the weights file.

  Raises:
    InputError: the folder exists and holds something else.
  """
  exists = detect_export(folder, weights)
  if os.path.lexists(folder) and not exists:
    raise InputError(
      f"{folder} is there already and holds no {weights} that we exported; choose another place"
    )
  config = {"format": _format(weights), "step": step, **meta}
  with atomic_folder(folder, _check_same if exists else None) as partial:
    arrays = {}
    for name, array in flatten_dict(params, sep="/").items():
      arrays[name] = np.ascontiguousarray(array, np.float32)
    write(os.path.join(partial, weights), arrays, config)
    write_json(os.path.join(partial, CONFIG), config)
    tokenizer.save(os.path.join(partial, TOKENIZER))
    tokenizer_files = [f"{TOKENIZER}/{name}" for name in ("tokenizer.json", *tokenizer.files)]
    sums = {name: _sha256(partial, name) for name in (weights, CONFIG, *tokenizer_files)}
    write_json(os.path.join(partial, SUMS), sums)


def load_export(
  folder: str, weights: str, read: Callable[[str], Arrays], damage: type[Exception]
) -> tuple[dict, dict, int, Tokenizer]:
  """Reads and verifies an export.

  Args:
    folder: the folder, or the weights file in it.
    read: read(path of the weights file) -> arrays by name.
    damage: exception that `read` raises for a damaged file, besides OSError and ValueError.

  Returns:
    params as float32 NumPy arrays, meta, step, tokenizer.

  Raises:
    InputError: a file is missing, damaged or not from the export.
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
  except InputError:
    raise
  except (OSError, ValueError, damage) as error:
    raise InputError(
      f"{folder}: not a complete exported model ({error}); copy or export it again"
    ) from error
  if meta.pop("format", None) != _format(weights):
    raise InputError(
      f"{folder}/{CONFIG}: format is not {_format(weights)!r}; export the model with "
      "launch/export.py"
    )
  return params, meta, meta.pop("step"), load_tokenizer(os.path.join(folder, TOKENIZER))


def read_json(path: str) -> dict:
  """The JSON object in a file. Raises OSError or ValueError."""
  with open(path, encoding="utf-8") as file:
    value = json.load(file)
  if not isinstance(value, dict):
    raise ValueError(f"{os.path.basename(path)} holds no JSON object")
  return value


def _format(weights: str) -> str:
  return f"gpt_jax{os.path.splitext(weights)[1]}"


def _check_same(partial: str, folder: str) -> None:
  """Raises InputError unless the export in folder equals the one just written, undamaged."""
  try:
    sums = read_json(os.path.join(folder, SUMS))
    same = sums == read_json(os.path.join(partial, SUMS))
    intact = all(_sha256(folder, name) == sums[name] for name in sums)
  except (OSError, ValueError):
    same = intact = False
  if not (same and intact):
    raise InputError(
      f"{folder} is the export of another model, or damaged; remove it, or choose another place"
    )


def _sha256(folder: str, name: str) -> str:
  with open(os.path.join(folder, name), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
