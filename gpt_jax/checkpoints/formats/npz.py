"""Exports as NumPy's .npz, readable with NumPy alone and without pickle (see folder, read_npz)."""

import zipfile
from typing import Any

import numpy as np

from gpt_jax.checkpoints.formats.folder import Arrays, detect_export, load_export, save_export
from gpt_jax.data.tokenizers.base import Tokenizer

HELP = "weights.npz, NumPy arrays without pickle, any model"
WEIGHTS = "weights.npz"


def detect(path: str) -> bool:
  return detect_export(path, WEIGHTS)


def save(folder: str, params: Any, meta: dict, step: int, tokenizer: Tokenizer) -> None:
  """See save_export."""
  save_export(folder, WEIGHTS, _write, params, meta, step, tokenizer)


def load(folder: str) -> tuple[dict, dict, int, Tokenizer]:
  """See load_export."""
  return load_export(folder, WEIGHTS, _read, zipfile.BadZipFile)


def _write(path: str, arrays: Arrays, config: dict) -> None:
  del config  # it is in config.json
  named: dict[str, Any] = dict(arrays)
  np.savez(path, **named)


def _read(path: str) -> Arrays:
  with np.load(path, allow_pickle=False) as file:
    return {name: file[name] for name in file.files}
