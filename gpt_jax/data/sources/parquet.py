"""Parquet: one document per row, the text of one column, in memory bounded by its largest page.

A page may hold any number of rows, and a dictionary's page one text for all of them. So the sizes
of the pages are read first, from their headers (parquet.thrift of the Parquet format), and only so
many rows are decoded at a time that they take BATCH_BYTES if each is as large as a page.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.files import open_regular

USAGE = "Parquet (.parquet)"
FOLDER_SUFFIXES = (".parquet",)
ROWS = 1024  # decoded at a time, at most
BATCH_BYTES = 16 << 20  # of text
LARGEST_CELL = 16 << 20  # bytes of text, five times "War and Peace"
# Bytes when decompressed, of which Arrow takes five times as much for a dictionary. Writers aim at
# 1 MiB, but look at the size after each 1,024 rows only.
LARGEST_PAGE = 128 << 20
_BAD_HEADER = (RecursionError, OverflowError)  # beside ValueError


def reads(name: str) -> bool:
  return name.endswith(FOLDER_SUFFIXES)


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise InputError(f"{name}: needs pyarrow: pip install pyarrow") from error
  with contextlib.ExitStack() as open_files:
    try:
      # Arrow has readers of its own for stores, with other credentials, retries and errors.
      stored = open_files.enter_context(open_regular(name))
      # With a buffer the pages are read one by one, not all of a row group.
      parquet = pyarrow.parquet.ParquetFile(stored, buffer_size=1 << 20)
      file = open_files.enter_context(parquet)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
      raise InputError(f"{name}: cannot be read ({_line(error)})") from error
    _check_column(name, file.schema_arrow, field, pyarrow)
    for group in range(file.num_row_groups):
      row = 0
      try:
        largest = _largest_page(stored, file.metadata.row_group(group), field)
        if largest > LARGEST_PAGE:
          raise InputError(
            f"{name}: row group {group}: a page of {largest:,} bytes, more than the limit of "
            f"{LARGEST_PAGE:,}; write the file with fewer rows in a row group"
          )
        rows = min(ROWS, max(1, BATCH_BYTES // max(1, largest)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=[field]):
          for text in batch.column(0):
            yield [_text(text, f"{name}: row group {group}, row {row}")]
            row += 1
      except InputError:
        raise
      except (OSError, ValueError, *_BAD_HEADER, pyarrow.ArrowException) as error:
        raise InputError(
          f"{name}: row group {group}: damaged after row {row} ({_line(error)})"
        ) from error


def _check_column(name: str, schema: Any, field: str, pyarrow: Any) -> None:
  """Raises InputError unless there is such a column of text, and one only."""
  if schema.names.count(field) != 1:
    fault = "more than one" if field in schema.names else "no"
    guess = "" if field in schema.names else did_you_mean(field, schema.names)
    raise InputError(
      f"{name}: {fault} column {field!r}{guess} (its columns: "
      f"{', '.join(map(repr, schema.names))}); name the one that holds the text with --text_column"
    )
  kind = schema.field(field).type
  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
    raise InputError(
      f"{name}: column {field!r} holds {kind}, not text; name another with --text_column"
    )


def _text(scalar: Any, where: str) -> str:
  """The text of a cell. Raises InputError if it is null or too long, UnicodeDecodeError."""
  if not scalar.is_valid:
    raise InputError(f"{where}: no text (null)")
  while not hasattr(scalar, "as_buffer"):  # of a dictionary
    scalar = scalar.value
  if (size := scalar.as_buffer().size) > LARGEST_CELL:
    raise InputError(f"{where}: {size:,} bytes of text, more than the limit of {LARGEST_CELL:,}")
  return scalar.as_py()


def _largest_page(file: io.BufferedIOBase, group: Any, field: str) -> int:
  """Bytes of the largest page of a column in a row group, compressed or not.

  Raises ValueError for what is no page's header.
  """
  largest = 0
  columns = [group.column(index) for index in range(group.num_columns)]
  for column in columns:
    if column.path_in_schema != field:
      continue
    begin = column.data_page_offset
    if column.has_dictionary_page:
      begin = min(begin, column.dictionary_page_offset)
    file.seek(begin)
    while file.tell() < begin + column.total_compressed_size:
      header = _thrift_struct(file)
      decompressed, compressed = header.get(2, -1), header.get(3, -1)
      if min(decompressed, compressed) < 0:
        raise ValueError("no header of a page")
      largest = max(largest, decompressed, compressed)
      file.seek(compressed, io.SEEK_CUR)
  return largest


def _thrift_struct(file: io.BufferedIOBase) -> dict[int, int]:
  """The integers of a struct in Thrift's compact protocol, by the numbers of their fields.

  Raises ValueError for a type that no page's header has, and at the end of the file.
  """
  values: dict[int, int] = {}
  number = 0
  while head := _byte(file):
    number = number + (head >> 4) if head >> 4 else _zigzag(file)
    kind = head & 15
    if kind in (4, 5, 6):  # i16, i32, i64
      values[number] = _zigzag(file)
    elif kind == 8:  # binary
      file.seek(_varint(file), io.SEEK_CUR)
    elif kind == 12:
      _thrift_struct(file)
    elif kind not in (1, 2):  # the booleans, whose kind is their value
      raise ValueError("no header of a page")
  return values


def _zigzag(file: io.BufferedIOBase) -> int:
  value = _varint(file)
  return (value >> 1) ^ -(value & 1)


def _varint(file: io.BufferedIOBase) -> int:
  value = shift = 0
  while True:
    byte = _byte(file)
    value |= (byte & 127) << shift
    shift += 7
    if byte < 128:
      return value
    if shift > 63:
      raise ValueError("no header of a page")


def _byte(file: io.BufferedIOBase) -> int:
  byte = file.read(1)
  if not byte:
    raise ValueError("no header of a page: the file ends")
  return byte[0]


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:200]
