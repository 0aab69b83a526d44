"""Exports as NumPy's .npz, readable with NumPy alone and without pickle (see folder, read_npz)."""

import math
import zipfile
from typing import Any

import numpy as np

from gpt_jax.checkpoints.formats.folder import Arrays, Export, Shapes

HELP = "weights.npz, NumPy arrays without pickle, any model"
WEIGHTS = "weights.npz"


def _write(path: str, arrays: Arrays, config: dict) -> None:
  named: dict[str, Any] = dict(arrays)
  np.savez(path, **named)


def describe(path: str) -> Shapes:
  """Type and shape of the arrays in an .npz file that np.savez wrote, without reading them. Raises
  ValueError where one is compressed, or of another size than its header says.
  """
  shapes: Shapes = {}
  with zipfile.ZipFile(path) as archive:
    for entry in archive.infolist():
      with archive.open(entry) as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        size = file.tell() + math.prod(shape) * dtype.itemsize
      # A compressed array may become a thousand times as large as the file.
      if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != size:
        raise ValueError(f"{entry.filename} in it is not as export writes it")
      shapes[entry.filename.removesuffix(".npy")] = dtype.name, shape
    if len(shapes) < len(archive.infolist()):
      raise ValueError("an array occurs twice")
  return shapes


def _read(path: str) -> Arrays:
  with np.load(path, allow_pickle=False) as file:
    return {name: file[name] for name in file.files}


_export = Export(WEIGHTS, _write, describe, _read, zipfile.BadZipFile)
detect, save, load = _export.detect, _export.save, _export.load
