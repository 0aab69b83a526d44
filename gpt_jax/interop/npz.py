"""An exported model: NumPy arrays, config and vocabulary in one folder that needs neither JAX nor this package to read.

The folder holds `weights.npz` (float32; an array's name is its path, such as `trunk/block_0/mlp/in/kernel`),
`config.json`, `tokenizer/`, and `sha256.json` of all of them. The embedding table has all its rows: the vocabulary,
then start, delimiter and extract, then those that are never used.
"""

import hashlib
import json
import os
import shutil
import zipfile
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from gpt_jax.data.vocabulary import Vocabulary
from gpt_jax.errors import InputError

FORMAT = "gpt_jax.npz"
_WEIGHTS, _CONFIG, _SUMS = "weights.npz", "config.json", "sha256.json"
_FILES = (_WEIGHTS, _CONFIG, "tokenizer/tokenizer.json")  # and those of the vocabulary, whatever they are called


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Vocabulary) -> None:
  """Writes the folder, whole or not at all. The same export again changes nothing.

  Raises:
    InputError: the folder is there and holds something else.
  """
  folder = os.path.abspath(folder)
  partial = f"{folder}.partial-{os.getpid()}"
  if os.path.lexists(folder) and not is_export(folder):
    raise InputError(f"{folder} is there already and is no exported model; choose another place")
  try:
    os.makedirs(partial)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    np.savez(os.path.join(partial, _WEIGHTS), **{name: np.asarray(x, np.float32) for name, x in arrays.items()})
    _write_json(partial, _CONFIG, {"format": FORMAT, "step": step, **meta})
    tokenizer.save(os.path.join(partial, "tokenizer"))
    vocabulary = [f"tokenizer/{name}" for name in tokenizer.files]
    _write_json(partial, _SUMS, {name: _sha256(partial, name) for name in (*_FILES, *vocabulary)})
    if not os.path.lexists(folder):
      os.rename(partial, folder)
    elif _read_json(folder, _SUMS) != _read_json(partial, _SUMS):
      raise InputError(f"{folder} is the export of another model; remove it, or choose another place")
  except (OSError, ValueError) as error:
    raise error if isinstance(error, InputError) else InputError(f"cannot export to {folder}: {error}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def load(folder: str) -> tuple[dict, dict, int]:
  """Reads and verifies what `save` wrote: params as float32 NumPy arrays, meta, step.

  Raises:
    InputError: a file is missing, damaged or not what was exported.
  """
  try:
    sums = _read_json(folder, _SUMS)
    for name in dict.fromkeys((*_FILES, *sums)):
      if _sha256(folder, name) != sums.get(name):
        raise InputError(f"{folder}/{name}: damaged, {_SUMS} has another sum for it; copy or export the model again")
    meta = _read_json(folder, _CONFIG)
    with np.load(os.path.join(folder, _WEIGHTS), allow_pickle=False) as file:
      params = unflatten_dict({name: file[name] for name in file.files}, sep="/")
  except (OSError, ValueError, zipfile.BadZipFile) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(f"{folder}: not a whole exported model ({error}); copy or export it again") from error
  if meta.pop("format", None) != FORMAT:
    raise InputError(f"{folder}/{_CONFIG}: format is not {FORMAT!r}; export the model with launch/export.py")
  return params, meta, meta.pop("step")


def is_export(folder: str) -> bool:
  """Whether a folder is meant to be an exported model."""
  return any(os.path.isfile(os.path.join(folder, name)) for name in (_SUMS, _WEIGHTS))


def _sha256(folder: str, name: str) -> str:
  with open(os.path.join(folder, name), "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(folder: str, name: str) -> dict:
  with open(os.path.join(folder, name), encoding="utf-8") as file:
    value = json.load(file)
  if not isinstance(value, dict):
    raise ValueError(f"{name} holds no JSON object")
  return value


def _write_json(folder: str, name: str, value: Any) -> None:
  with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
    json.dump(value, file, indent=2)
    file.write("\n")
