"""Exports as NumPy's .npz, which NumPy alone reads without pickle: see folder.py, and
read_npz.py for a reader.
"""

import zipfile
from typing import Any

import numpy as np

from gpt_jax.checkpoints.formats import folder as folders
from gpt_jax.data.tokenizers.base import Tokenizer

HELP = "weights.npz, NumPy arrays without pickle, any model"
WEIGHTS = "weights.npz"


def detect(path: str) -> bool:
  return folders.detect(path, WEIGHTS)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """See folder.save."""
  folders.save(folder, WEIGHTS, _write, params, meta, step, tokenizer)


def load(folder: str) -> tuple[dict, dict, int, Tokenizer]:
  """See folder.load."""
  return folders.load(folder, WEIGHTS, _read, zipfile.BadZipFile)


def _write(path: str, arrays: folders.Arrays, config: dict) -> None:
  del config  # is beside it
  np.savez(path, **arrays)


def _read(path: str) -> folders.Arrays:
  with np.load(path, allow_pickle=False) as file:
    return {name: file[name] for name in file.files}
