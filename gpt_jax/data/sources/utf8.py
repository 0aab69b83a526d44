"""Opening and decoding files of text, gzip-compressed or not."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator

from gpt_jax.errors import InputError
from gpt_jax.files import describe_binary


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedIOBase]:
  """A file to read, decompressed if its name ends in .gz.

  Raises:
    InputError: it cannot be opened or, within the block, not be read to its end.
  """
  try:
    file = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror})") from error
  with file:
    try:
      yield file
    except (OSError, EOFError, zlib.error) as error:
      raise InputError(f"{path}: cannot be read to its end ({error})") from error


def decode(block: bytes, path: str, offset: int) -> str:
  """The text of a block that begins at byte `offset` of a file, without a byte-order mark.

  Raises:
    InputError: it is not UTF-8; with the byte and a command that converts the file.
  """
  if offset == 0 and (kind := describe_binary(block)):
    raise InputError(f"{path}: {kind}")
  try:
    return block.decode("utf-8-sig" if offset == 0 else "utf-8")
  except UnicodeDecodeError as error:
    is_utf16 = offset == 0 and block[:2] in (b"\xff\xfe", b"\xfe\xff")
    encoding = "UTF-16" if is_utf16 else "WINDOWS-1252"
    raise InputError(
      f"{path}: not UTF-8 at byte {offset + error.start}; convert it, for example: "
      f"iconv -f {encoding} -t UTF-8 FILE > NEW"
    ) from error
