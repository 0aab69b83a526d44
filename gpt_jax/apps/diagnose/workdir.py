"""The workdir of launch/diagnose.py: whose it is, and what was measured before."""

import math
import os
from collections.abc import Callable
from typing import Any

from gpt_jax.apps.report import pages
from gpt_jax.errors import InputError
from gpt_jax.files import check_path, make_folders, read_json, verified, with_checksum, write_json
from gpt_jax.parallel.processes import log

RESULT = "diagnosis.json"
_PARTS = "measured"


def check_workdir(workdir: str) -> None:
  """Makes the folder. Raises InputError if it exists and is none of this program."""
  check_path(workdir)
  pages.check_workdir(workdir, RESULT, (_PARTS,))
  try:
    make_folders(os.path.join(workdir, _PARTS))
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror})") from error


def measured(
  workdir: str, name: str, settings: dict[str, Any], measure: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
  """Returns the saved result for the same settings, or measures and saves it.

  Args:
    name: file name of the result, without its suffix.
    settings: JSON of everything that the result depends on.
    measure: returns JSON; non-finite numbers become None.
  """
  path = os.path.join(workdir, _PARTS, f"{name}.json")
  settings = _finite(settings)
  try:
    saved = verified(read_json(path))
    if saved.get("settings") == settings:
      return saved["result"]
  except FileNotFoundError:
    pass
  except (OSError, ValueError, KeyError):
    log(f"{path}: damaged; measured again")
  result = _finite(measure())
  write_json(path, with_checksum({"settings": settings, "result": result}))
  return result


def _finite(value: Any) -> Any:
  """The value as JSON gives it back: lists for tuples, and no nan or infinity."""
  if isinstance(value, dict):
    return {name: _finite(entry) for name, entry in value.items()}
  if isinstance(value, (list, tuple)):
    return list(map(_finite, value))
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
