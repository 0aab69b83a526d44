"""The workdir of launch/label.py: whose it is, and what earlier runs of the command computed."""

import os
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.apps.label.table import Labeled
from gpt_jax.apps.report import pages
from gpt_jax.files import atomic_file, open_regular, refuse_url
from gpt_jax.parallel.processes import log

_CLAIM = "label.json"


def check_workdir(workdir: str) -> None:
  """Raises InputError if a folder exists and is none of this program."""
  refuse_url(workdir)
  pages.check_workdir(workdir, _CLAIM)


def claim_workdir(workdir: str, table: Labeled, checkpoint: str, seed: int) -> None:
  """Writes label.json, or checks that it is of the same rows, columns, checkpoint and seed."""
  claim = {
    "text columns": list(table.columns),
    "label column": table.label,
    "rows": f"{len(table.rows):,}, checksum {table.checksum}",
    "checkpoint": checkpoint,
    "seed": seed,
  }
  pages.claim_workdir(workdir, _CLAIM, claim)


def cached(
  folder: str, name: str, compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """The arrays of an earlier run of the same command, or computes them now."""
  path = os.path.join(folder, f"{name}.npz")
  try:
    with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
      return {key: arrays[key] for key in arrays.files}  # zip verifies a checksum
  except FileNotFoundError:
    pass
  except (OSError, ValueError, EOFError, zipfile.BadZipFile):
    log(f"{path}: damaged; computed again")
  arrays = compute()
  os.makedirs(folder, exist_ok=True)
  named: dict[str, Any] = dict(arrays)
  with atomic_file(path, "wb") as output:
    np.savez(output, **named)
  return arrays
