"""Exports as safetensors, with the config in the file's metadata too: see folder.py. Needs the
extra 'safetensors'.
"""

import json
import os
from typing import Any

from gpt_jax.checkpoints.formats import folder as folders
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError

HELP = "weights.safetensors, any model"
WEIGHTS = "weights.safetensors"


def detect(path: str) -> bool:
  return folders.detect(path, WEIGHTS)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """See folder.save."""
  library()  # missing, it is to be met before the work
  folders.save(folder, WEIGHTS, _write, params, meta, step, tokenizer)


def load(folder: str) -> tuple[dict, dict, int, Tokenizer]:
  """See folder.load."""
  return folders.load(folder, WEIGHTS, _read, library().SafetensorError)


def library() -> Any:
  """The package. Raises InputError where it is not installed."""
  try:
    import safetensors.numpy
  except ImportError as error:
    raise InputError(
      "a .safetensors file needs safetensors: pip install 'gpt_jax[safetensors]'"
    ) from error
  return safetensors


def write(path: str, arrays: folders.Arrays, notes: dict[str, str]) -> None:
  """One file, with the permissions of any other: the package's own are for its owner only.
  Raises OSError.
  """
  with open(path, "wb") as file:
    mode = os.fstat(file.fileno()).st_mode
  try:
    library().numpy.save_file(arrays, path, notes)
  except library().SafetensorError as error:  # what it makes of a full disk
    raise OSError(str(error)) from error
  os.chmod(path, mode)


def _write(path: str, arrays: folders.Arrays, config: dict) -> None:
  # One note, since the order of several is another each time and so would be the file's sum.
  write(path, arrays, {"gpt_jax": json.dumps(config)})


def _read(path: str) -> folders.Arrays:
  return library().numpy.load_file(path)
