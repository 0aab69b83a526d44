"""Writing a page: an earlier one of the same program is replaced, any other file is not."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, refuse_url


@contextlib.contextmanager
def open_page(out: str, program: str) -> Iterator[IO[str]]:
  """Opens an HTML page; the file appears only when it is complete.

  Args:
    out: its path.
    program: what the page's first lines name as their generator, after "gpt_jax".

  Raises:
    InputError: before the block runs, if out does not end in .html, cannot be written, or is
      another file; after it, if writing failed.
  """
  refuse_url(out)
  if os.path.isdir(out):
    raise InputError(f"--out={out} is a folder; name the page to write")
  marker = f'<meta name="generator" content="gpt_jax {program}">'.encode()
  try:
    is_page = os.path.isfile(out) and marker in Path(out).read_bytes()[:500]
    if os.path.lexists(out) and not is_page:
      raise InputError(
        f"--out={out} already exists and is not a page of this program; name another file"
      )
    if not out.endswith((".html", ".htm")):
      raise InputError(f"--out={out}: the page is HTML; name it {os.path.splitext(out)[0]}.html")
    with atomic_file(out) as file:
      yield file
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error
