"""Files that are written whole or not at all."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "w") -> Iterator[IO]:
  """A file to write, of UTF-8 text or ("wb") of bytes, under a temporary name: PATH.partial.

  It takes its own name, and the place of what had it, when all is written; where that fails, what
  was there stays and nothing else is left. Line ends are written as they are given.

  Raises:
    OSError: as open and rename do.
  """
  partial = f"{path}.partial"
  text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
  try:
    with open(partial, mode, **text) as file:
      yield file
    os.replace(partial, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(partial)


def write_json(path: str, value: Any) -> None:
  """Writes a file of JSON, whole or not at all."""
  with atomic_file(path) as file:
    json.dump(value, file, indent=2)
    file.write("\n")
