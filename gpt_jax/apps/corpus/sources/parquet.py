"""Parquet: one document per row, the text of one column, or rows with all columns.

It is read in memory bounded by the largest page.

A page may hold any number of rows, and a dictionary's page one text for all of them. So the sizes
of the pages are read first, from their headers, and only so many rows are decoded at a time that
they take BATCH_BYTES if each is as large as a page. File and page headers are structs of Thrift's
compact protocol (parquet.thrift of the Parquet format); pyarrow does not give those of pages, and
aborts the process where it gives some damaged ones of columns.
"""

import contextlib
import importlib
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.data.file_kinds import PARQUET, kind_by_name
from gpt_jax.errors import InputError, did_you_mean, require
from gpt_jax.files import open_regular

FORMATS = (PARQUET,)
USAGE = "Parquet (.parquet)"
FOLDER_SUFFIXES = (".parquet",)
ROWS = 1024  # decoded at a time, at most
BATCH_BYTES = 16 << 20  # of text
MAX_CELL = 16 << 20  # bytes of text, five times "War and Peace"
# Bytes when decompressed, of which Arrow takes five times as much for a dictionary. Writers aim at
# 1 MiB, but look at the size after each 1,024 rows only.
MAX_PAGE = 128 << 20
# The numbers of the fields that are read: row groups; columns and number of rows; metadata; path,
# size, first page, dictionary.
_FILE_FIELDS: dict[int, dict] = {4: {1: {3: {3: {}, 7: {}, 9: {}, 11: {}}}, 3: {}}}
_PAGE_FIELDS: dict[int, dict] = {2: {}, 3: {}}  # size when decompressed, and when not
_BAD_HEADER = (RecursionError, OverflowError, LookupError, TypeError)  # beside ValueError


def reads(name: str) -> bool:
  return kind_by_name(name).format == PARQUET


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  """The texts of a column; "" where one is null."""
  for text in _rows(name, field):
    yield [text]


def typed_rows(name: str) -> Iterator[dict[str, Any]]:
  """Rows with all columns; other values than text, numbers, lists and None as text."""
  for row in _rows(name, None):
    yield json.loads(json.dumps(row, default=str))


def _rows(name: str, field: str | None) -> Iterator[Any]:
  """The text of a column in each row; None: a dict of all columns."""
  require("pyarrow.parquet", f"{name}:", "pyarrow")
  pyarrow = importlib.import_module("pyarrow")
  with contextlib.ExitStack() as open_files:
    try:
      # Arrow has readers of its own for stores, with other credentials, retries and errors.
      stored = open_files.enter_context(open_regular(name))
      # With a buffer the pages are read one by one, not all of a row group.
      parquet = pyarrow.parquet.ParquetFile(stored, buffer_size=1 << 20)
      file = open_files.enter_context(parquet)
      chunks = _chunks(stored, field)
    except (OSError, ValueError, *_BAD_HEADER, pyarrow.ArrowException) as error:
      raise InputError(f"{name}: cannot be read ({_line(error)})") from error
    _check_columns(name, file.schema_arrow, field, pyarrow)
    for group in range(file.num_row_groups):
      row = 0
      try:
        largest = _largest_page(stored, chunks[group])
        if largest > MAX_PAGE:
          raise InputError(
            f"{name}: row group {group}: a page of {largest:,} bytes, more than the limit of "
            f"{MAX_PAGE:,}; write the file with fewer rows in a row group"
          )
        rows = min(ROWS, max(1, BATCH_BYTES // max(1, largest)))
        columns = None if field is None else [field]
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
          for value in batch.to_pylist() if field is None else batch.column(0):
            where = f"{name}: row group {group}, row {row}"
            yield value if field is None else _text(value, where)
            row += 1
      except InputError:
        raise
      except (OSError, ValueError, *_BAD_HEADER, pyarrow.ArrowException) as error:
        raise InputError(
          f"{name}: row group {group}: damaged after row {row} ({_line(error)})"
        ) from error


def _check_columns(name: str, schema: Any, field: str | None, pyarrow: Any) -> None:
  """Raises InputError unless there is such a column of text, and one only; None: all columns."""
  if field is None:
    if len(set(schema.names)) < len(schema.names):
      raise InputError(f"{name}: two columns of one name ({', '.join(map(repr, schema.names))})")
    return
  if schema.names.count(field) != 1:
    fault = "more than one" if field in schema.names else "no"
    guess = "" if field in schema.names else did_you_mean(field, schema.names)
    raise InputError(
      f"{name}: {fault} column {field!r}{guess} (its columns: "
      f"{', '.join(map(repr, schema.names))}); name another with text_column=NAME, the two "
      "of translation pairs with config.task.source=NAME and .target=NAME"
    )
  kind = schema.field(field).type
  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  # Of type null are columns of parts without any text.
  kinds = ("is_string", "is_large_string", "is_string_view", "is_null")
  if not any(getattr(pyarrow.types, is_kind)(kind) for is_kind in kinds):
    raise InputError(
      f"{name}: column {field!r} holds {kind}, not text; name another with text_column=NAME"
    )


def _text(scalar: Any, where: str) -> str:
  """The text of a cell, "" if it is null. Raises InputError if too long, UnicodeDecodeError."""
  if not scalar.is_valid:
    return ""
  while not hasattr(scalar, "as_buffer"):  # of a dictionary
    scalar = scalar.value
  if (size := scalar.as_buffer().size) > MAX_CELL:
    raise InputError(f"{where}: {size:,} bytes of text, more than the limit of {MAX_CELL:,}")
  return scalar.as_py()


def _chunks(file: io.BufferedIOBase, field: str | None) -> list[list[tuple[int, int]]]:
  """(begin, end) of the pages of a column, or of all, in each row group; none without rows."""
  # The end of a file: its metadata, their length in 4 bytes, and "PAR1".
  file.seek(-8, io.SEEK_END)
  length = int.from_bytes(file.read(4), "little")
  file.seek(-8 - length, io.SEEK_END)
  groups = []
  for group in _struct(file, _FILE_FIELDS)[4]:
    chunks = []
    for column in group[1]:
      path, size, begin = (column[3][number] for number in (3, 7, 9))
      if group[3] and (field is None or b".".join(path) == field.encode()):
        # 9 is the first page of data; a dictionary's page, 11, is before it.
        begin = min(begin, column[3].get(11) or begin)
        chunks.append((begin, begin + size))
    groups.append(chunks)
  return groups


def _largest_page(file: io.BufferedIOBase, chunks: list[tuple[int, int]]) -> int:
  """Bytes of the largest page, compressed or not. Raises ValueError for a header of no page."""
  largest = 0
  for begin, end in chunks:
    file.seek(begin)
    while file.tell() < end:
      header = _struct(file, _PAGE_FIELDS)
      decompressed, compressed = header[2], header[3]
      if min(decompressed, compressed) < 0:
        raise ValueError("no header of a page")
      largest = max(largest, decompressed, compressed)
      file.seek(compressed, io.SEEK_CUR)
  return largest


def _struct(file: io.BufferedIOBase, wanted: dict[int, dict]) -> dict[int, Any]:
  """The wanted fields of a Thrift struct, by number: integers, bytes, structs and lists of those.

  Args:
    wanted: the fields, each with those that are wanted of what is in it.
  """
  values: dict[int, Any] = {}
  number = 0
  while head := _byte(file):
    # The upper half of the byte is the difference to the last number; 0: the number follows.
    number = number + (head >> 4) if head >> 4 else _zigzag(file)
    # Types 1 and 2 are true and false: no value follows.
    value = None if head & 15 in (1, 2) else _value(file, head & 15, wanted.get(number, {}))
    if number in wanted:  # a boolean has no value beside its type, and is not
      values[number] = value
  return values


def _value(file: io.BufferedIOBase, kind: int, wanted: dict[int, dict]) -> Any:
  if kind == 3:
    return _byte(file)
  if kind in (4, 5, 6):  # i16, i32, i64
    return _zigzag(file)
  if kind == 8:  # binary, such as a name
    length = _varint(file)
    # Of names all is read; statistics of a column may hold whole cells, which are skipped.
    begin = file.read(min(length, 1000))
    file.seek(length - len(begin), io.SEEK_CUR)
    return begin
  if kind in (9, 10):  # list, set
    head = _byte(file)
    # 15: a longer list, whose length follows.
    length = head >> 4 if head >> 4 < 15 else _varint(file)
    return [_value(file, head & 15, wanted) for _ in range(length)]
  if kind == 12:
    return _struct(file, wanted)
  raise ValueError(f"a field of type {kind} in a header")


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
      raise ValueError("no header")


def _byte(file: io.BufferedIOBase) -> int:
  byte = file.read(1)
  if not byte:
    raise ValueError("the file ends within a header")
  return byte[0]


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:200]
