"""Reading files that may be damaged, and atomic writes: a file or folder appears complete."""

import contextlib
import io
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from gpt_jax.errors import InputError

LARGEST_JSON = 32 << 20  # bytes; the header of a token file of 250 GB has this size


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
  for name in abandoned(path):
    with contextlib.suppress(OSError):
      os.remove(name)
  encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
  rename = os.replace if overwrite else _rename_to_new
  try:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)  # of a process that was killed, or a link that must not be followed
    with open(partial, mode.replace("w", "x"), encoding=encoding, newline=newline) as file:
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
  for name in abandoned(folder):
    shutil.rmtree(name, ignore_errors=True)
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


def read_json(path: str, limit: int = LARGEST_JSON) -> Any:
  """The value in a JSON file.

  Raises:
    OSError: the file cannot be read.
    ValueError: not a regular file of at most `limit` bytes, or what parse_json raises.
  """
  return parse_json(read_bytes(path, limit))


def read_bytes(path: str, limit: int) -> bytes:
  """The content of a file.

  Raises:
    OSError: it cannot be read.
    ValueError: it has more than `limit` bytes, or is no regular file.
  """
  with open_regular(path) as file:
    size = os.fstat(file.fileno()).st_size
    if size > limit:
      raise ValueError(f"{size:,} bytes, more than {limit:,}")
    return file.read()


def open_regular(path: str) -> io.BufferedReader:
  """Opens a file to read. Raises OSError, and ValueError for a pipe, a device or a folder."""
  # Opening a pipe would wait for a writer.
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  if not stat.S_ISREG(os.fstat(descriptor).st_mode):
    os.close(descriptor)
    raise ValueError("not a regular file")
  return open(descriptor, "rb")


def parse_json(text: str | bytes) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: not JSON, an object with two entries of one name, or nested too deeply to read.
  """
  try:
    return json.loads(text, object_pairs_hook=_without_duplicates)
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def with_checksum(entries: dict[str, Any]) -> dict[str, Any]:
  """JSON entries and "checksum", the CRC-32 of the others."""
  return entries | {"checksum": _checksum(entries)}


def verified(value: Any) -> dict[str, Any]:
  """The entries that with_checksum was given. Raises ValueError if the checksum does not match."""
  if not isinstance(value, dict) or "checksum" not in value:
    raise ValueError("no JSON object with a checksum")
  entries = {name: entry for name, entry in value.items() if name != "checksum"}
  if value["checksum"] != _checksum(entries):
    raise ValueError("the checksum does not match")
  return entries


def _checksum(entries: dict[str, Any]) -> int:
  return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"two entries named {twice!r}")
  return value


def shipped_folder(name: str) -> str:
  """The folder launch or configs: inside an installed package, beside the package in a clone."""
  package = os.path.dirname(os.path.abspath(__file__))
  inside = os.path.join(package, name)
  return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), name)


def refuse_url(path: str) -> None:
  """Raises InputError for gs://, s3:// and the like, before a folder of that name is made."""
  scheme, separator, _ = os.fspath(path).partition("://")
  if separator and scheme.isalnum():
    raise InputError(
      f"{path}: {scheme}:// is not supported; copy it to a disk of this machine and name that"
    )


def describe_binary(head: bytes) -> str:
  """The kind of a binary file by its first bytes, and what to do; "" if they do not say."""
  known = {
    b"PAR1": "a Parquet file; convert it to JSON lines or CSV",
    b"PK\x03\x04": "a zip archive, or an Excel workbook; save it as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file; save it as CSV or text",
    b"\x1f\x8b": "compressed; decompress it first",
    b"(\xb5/\xfd": "compressed by zstd; decompress it first",
    b"%PDF": "a PDF; convert it to text",
  }
  return next((kind for magic, kind in known.items() if head.startswith(magic)), "")


def refuse_existing(path: str, flag: str, overwrite: bool) -> None:
  """Raises InputError if an output exists and the user did not ask to replace it."""
  if not overwrite and os.path.lexists(path):
    raise InputError(f"{flag}={path} already exists; name another file, or give --overwrite")


def check_out(out: str, overwrite: bool) -> None:
  """Raises InputError unless the file --out can be written and, if it exists, replaced."""
  if os.path.isdir(out):
    raise InputError(f"--out={out} is a folder; name a file")
  if not os.path.isdir(os.path.dirname(os.path.abspath(out))):
    raise InputError(f"--out={out}: no such folder; name a file in an existing one")
  refuse_existing(out, "--out", overwrite)


def abandoned(path: str) -> list[str]:
  """The temporary files or folders for a path that killed processes left beside it."""
  parent, name = os.path.split(os.path.abspath(path))
  try:
    entries = sorted(os.listdir(parent))
  except OSError:  # no such folder, or one that may be written but not listed
    return []
  paths = []
  for entry in entries:
    match = re.fullmatch(re.escape(name) + r"\.partial-(\d+)", entry)
    if match and not _is_running(int(match[1])):
      paths.append(os.path.join(parent, entry))
  return paths


def _is_running(process: int) -> bool:
  """Whether another process of this number exists."""
  try:
    os.kill(process, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    pass
  return process != os.getpid()


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
