"""Exports as safetensors (extra 'safetensors'), with the config in its metadata too; see folder."""

import dataclasses
import importlib
import json
import os
from typing import Any

from gpt_jax.checkpoints.formats import Check, accept
from gpt_jax.checkpoints.formats.folder import Arrays, Export, Shapes
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import require

HELP = "weights.safetensors, any model"
WEIGHTS = "weights.safetensors"


def library() -> Any:
  """The safetensors package. Raises InputError if it is not installed."""
  require("safetensors.numpy", "a .safetensors file", "safetensors", "safetensors")
  return importlib.import_module("safetensors")


def write(path: str, arrays: Arrays, notes: dict[str, str]) -> None:
  """Writes a safetensors file that not only its owner can read, unlike the package's own."""
  with open(path, "wb") as file:
    mode = os.fstat(file.fileno()).st_mode
  try:
    library().numpy.save_file(arrays, path, notes)
  except library().SafetensorError as error:  # e.g. a full disk
    raise OSError(str(error)) from error
  os.chmod(path, mode)


def _write(path: str, arrays: Arrays, config: dict) -> None:
  # A single note: the order of several is random, and so the file's checksum would be.
  write(path, arrays, {"gpt_jax": json.dumps(config)})


def _describe(path: str) -> Shapes:
  shapes: Shapes = {}
  with library().safe_open(path, framework="np") as file:
    for name in file.keys():
      part = file.get_slice(name)
      dtype = {"F32": "float32", "F64": "float64"}.get(part.get_dtype(), part.get_dtype())
      shapes[name] = dtype, tuple(part.get_shape())
  return shapes


def _read(path: str) -> Arrays:
  return library().numpy.load_file(path)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  library()  # fail before the expensive part
  _export.save(folder, params, meta, step, tokenizer)


def load(folder: str, check: Check = accept) -> tuple[dict, dict, int, Tokenizer]:
  damage = library().SafetensorError  # known where the package is
  return dataclasses.replace(_export, damage=damage).load(folder, check)


_export = Export(WEIGHTS, _write, _describe, _read)
detect = _export.detect
