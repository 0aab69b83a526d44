"""What a program may write over: its own page, and no other."""

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, check_path, is_folder, open_regular
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
