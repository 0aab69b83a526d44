"""Output files that a user names: refused before the work that is to be in them."""

import os
import uuid

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, check_path, has_parent, is_folder, is_taken, remove


def refuse_existing(out: str, overwrite: bool) -> None:
  """Raises InputError if an output exists and the user did not ask to replace it."""
  if not overwrite and is_taken(out):
    raise InputError(f"out={out} already exists; name another file, or give overwrite=True")


def check_out(out: str, overwrite: bool) -> None:
  """Raises InputError unless the file can be written and, if it exists, replaced."""
  check_path(out)
  if is_folder(out):
    raise InputError(f"out={out} is a folder; name a file")
  if not has_parent(out):
    raise InputError(f"out={out}: no such folder; name a file in an existing one")
  refuse_existing(out, overwrite)
  check_writable(os.path.dirname(out), out)


def check_writable(folder: str, out: str) -> None:
  """Makes and removes a file in a folder, so that hours of work do not end at a lack of rights.

  Raises InputError, which names the `out` that is to be there.
  """
  test = os.path.join(folder, f"test-{uuid.uuid4().hex}")
  try:
    with atomic_file(test) as file:
      file.write("A test of whether files can be written here.\n")
    remove(test)
  except OSError as error:
    raise InputError(f"out={out}: cannot be written ({error.strerror})") from error
