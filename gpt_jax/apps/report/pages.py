"""The files that a program may write over: its own page or folder, and no other."""

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.errors import InputError
from gpt_jax.files import (
  atomic_file,
  check_path,
  is_folder,
  make_folders,
  open_regular,
  read_json,
  write_json,
)
from gpt_jax.programs.outputs import is_taken


@contextlib.contextmanager
def open_page(out: str, program: str) -> Iterator[IO[str]]:
  """Opens an HTML page; the file appears only when it is complete.

  Args:
    out: its path.
    program: what the page's first lines name as their generator, after "gpt_jax".
  """
  check_path(out)
  if is_folder(out):
    raise InputError(f"--out={out} is a folder; name the page to write")
  marker = f'<meta name="generator" content="gpt_jax {program}">'.encode()
  try:
    ours = False
    with contextlib.suppress(FileNotFoundError, ValueError), open_regular(out) as file:
      ours = marker in file.read(500)
    if is_taken(out) and not ours:
      raise InputError(
        f"--out={out} already exists and is not a page of this program; name another file"
      )
    if not out.endswith((".html", ".htm")):
      raise InputError(f"--out={out}: the page is HTML; name it {os.path.splitext(out)[0]}.html")
    with atomic_file(out) as file:
      yield file
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error


def check_workdir(workdir: str, result: str, beside: tuple[str, ...] = ()) -> None:
  """Raises InputError for a folder that holds files, but no result of this program.

  Args:
    result: the file that this program's folders have.
    beside: how the names begin that a killed run may have left before it.
  """
  names = listing(workdir)
  known = (f"{result}.partial", *beside)
  foreign = sorted(name for name in names if not name.startswith(known))
  if foreign and result not in names:
    raise InputError(
      f"--workdir={workdir} holds {foreign[0]!r} but no {result}: not a folder of this program; "
      "use another"
    )


def claim_workdir(workdir: str, name: str, claim: dict[str, Any]) -> None:
  """Writes what a workdir is of into a file there.

  Args:
    name: of the file.
    claim: JSON values.
  """
  path = os.path.join(workdir, name)
  try:
    make_folders(workdir)
    write_json(path, claim, overwrite=False)
  except FileExistsError:
    try:
      saved = read_json(path)
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: {error}; use another workdir") from error
    if not isinstance(saved, dict):
      raise InputError(f"{path}: not as this program writes it; use another workdir") from None
    changes = []
    for entry, value in claim.items():
      if saved.get(entry) != value:
        changes.append(f"{entry}: {str(saved.get(entry))[:200]} != {str(value)[:200]}")
    if changes:
      raise InputError(
        f"--workdir={workdir} holds the result of another command ({'; '.join(changes)}); use "
        "another folder"
      ) from None
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror})") from error
