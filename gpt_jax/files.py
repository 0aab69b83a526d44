"""JSON, read strictly; and atomic writes: a file or folder appears only when it is complete."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import IO, Any

from gpt_jax.errors import InputError


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "w", *, overwrite: bool = True) -> Iterator[IO]:
  """Opens a temporary file beside path, PATH.partial-PID, and renames it to path at the end.

  On an error the temporary file is removed and an existing file stays as it was. Text is UTF-8 with
  line ends as given.

  Args:
    mode: "w" for text, "wb" for bytes.
    overwrite: whether to replace an existing file.

  Raises:
    FileExistsError: path exists at the end, and overwrite is false.
    OSError: opening, writing or renaming failed.
  """
  partial = _partial(path)
  encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
  rename = os.replace if overwrite else _rename_to_new
  try:
    with open(partial, mode, encoding=encoding, newline=newline) as file:
      yield file
    rename(partial, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(partial)


@contextlib.contextmanager
def atomic_folder(folder: str, compare: Callable[[str, str], None] | None = None) -> Iterator[str]:
  """Makes a temporary folder beside folder, FOLDER.partial-PID, and renames it at the end.

  On an error the temporary folder is removed.

  Args:
    compare: compare(new folder, existing folder) decides about a folder that exists: it raises
      InputError, or returns to keep the existing folder. None refuses every existing folder.

  Raises:
    InputError: something of this name exists, or it cannot be written.
  """
  folder = os.path.abspath(folder)
  partial = _partial(folder)
  if os.path.lexists(folder) and not compare:
    raise InputError(f"{folder} is there already; choose another place")
  try:
    os.makedirs(partial)
    yield partial
    if compare and os.path.lexists(folder):
      compare(partial, folder)
    else:
      os.rename(partial, folder)
  except OSError as error:
    raise InputError(f"cannot write {folder}: {error}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def write_json(path: str, value: Any, *, overwrite: bool = True) -> None:
  """Writes a JSON file atomically. Raises what `atomic_file` does."""
  with atomic_file(path, overwrite=overwrite) as file:
    json.dump(value, file, indent=2)
    file.write("\n")


def read_json(path: str) -> Any:
  """The value in a JSON file. Raises OSError, and ValueError for what parse_json does."""
  with open(path, encoding="utf-8") as file:
    return parse_json(file.read())


def parse_json(text: str | bytes) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: not JSON, an object with two entries of one name, or nested too deeply to read.
  """
  try:
    return json.loads(text, object_pairs_hook=_without_duplicates)
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"two entries named {twice!r}")
  return value


def refuse_existing(path: str, flag: str, overwrite: bool) -> None:
  """Raises InputError if an output exists and the user did not ask to replace it."""
  if not overwrite and os.path.lexists(path):
    raise InputError(f"{flag}={path} already exists; name another file, or give --overwrite")


def _partial(path: str) -> str:
  return f"{path}.partial-{os.getpid()}"


def _rename_to_new(old: str, new: str) -> None:
  """Renames a file; raises FileExistsError if the new name is taken, without a race."""
  try:
    os.link(old, new)
  except FileExistsError:
    raise
  except OSError:  # a file system without hard links
    os.replace(old, new)
  else:
    os.remove(old)
