"""Output files that a user names: refused before the work that is to be in them."""

import os
import uuid
from pathlib import Path

from gpt_jax.errors import InputError
from gpt_jax.files import absolute, atomic_file, check_path, exists, is_folder, remove


def refuse_existing(out: str, overwrite: bool) -> None:
  """Refuses an output that exists, if the user did not ask to replace it."""
  if not overwrite and is_taken(out):
    raise InputError(f"out={out} already exists; name another file, or give overwrite=True")


def check_out(out: str, overwrite: bool) -> None:
  """Checks that the file can be written and, if it exists, replaced."""
  check_path(out)
  if is_folder(out):
    raise InputError(f"out={out} is a folder; name a file")
  parent = os.path.dirname(absolute(out))
  if os.path.isabs(parent) and not os.path.isdir(parent):  # a store needs no folder
    raise InputError(f"out={out}: no such folder; name a file in an existing one")
  refuse_existing(out, overwrite)
  check_writable(os.path.dirname(out), out)


def check_writable(folder: str, out: str) -> None:
  """Makes and removes a file in a folder, so that hours of work do not end at a lack of rights."""
  test = os.path.join(folder, f"test-{uuid.uuid4().hex}")
  try:
    with atomic_file(test) as file:
      file.write("A test of whether files can be written here.\n")
    remove(test)
  except OSError as error:
    raise InputError(f"out={out}: cannot be written ({error.strerror})") from error


def is_taken(path: str) -> bool:
  """Whether the path exists; dangling links count."""
  return exists(path) or os.path.islink(path)


def is_same_file(path: str, other: str) -> bool:
  """Whether both are names of one file that exists, or equal URLs."""
  if path == other:
    return exists(path)
  return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def is_inside(path: str, folder: str) -> bool:
  """Whether a path exists and is somewhere below a folder."""
  if os.path.exists(path):
    return Path(path).resolve().is_relative_to(Path(folder).resolve())
  return path.startswith(f"{absolute(folder)}/") and exists(path)  # on a store
