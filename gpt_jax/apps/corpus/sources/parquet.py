"""Parquet: one document per row, the text of one column, or rows with all columns.

Rows are decoded in batches of about BATCH_BYTES, by the mean size of a row in their row group.
"""

import contextlib
import importlib
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


def reads(name: str) -> bool:
  return kind_by_name(name).format == PARQUET


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  """The texts of a column; "" where one is null."""
  for text in _rows(name, field):
    yield [text]


def typed_rows(name: str) -> Iterator[dict[str, Any]]:
  """Rows with all columns; other values than text, numbers, lists and None as text."""
  for row in _rows(name, None):
    yield json.loads(json.dumps(row, default=_as_text))


def _as_text(value: Any) -> str:
  with contextlib.suppress(UnicodeDecodeError):
    if isinstance(value, bytes):  # as some write text, without saying so
      return value.decode()
  return str(value)


def _rows(name: str, field: str | None) -> Iterator[Any]:
  """The text of a column in each row; None: a dict of all columns."""
  arrow = require("pyarrow.parquet", f"{name}:", "pyarrow")
  pyarrow = importlib.import_module("pyarrow")
  group, row = -1, 0
  with contextlib.ExitStack() as open_files:
    try:
      # Arrow has readers of its own for stores, with other credentials, retries and errors.
      stored = open_files.enter_context(open_regular(name))
      schema = arrow.read_schema(stored)
      _check_columns(name, schema, field, pyarrow)
      columns = None if field is None else [field]
      flat = [column.name for column in schema if not pyarrow.types.is_nested(column.type)]
      # As a dictionary, a text that many rows repeat is decoded once. With a buffer the pages are
      # read one by one, not all of a row group.
      opened = arrow.ParquetFile(stored, buffer_size=1 << 20, read_dictionary=columns or flat)
      file = open_files.enter_context(opened)
      for group in range(file.num_row_groups):
        row, size = 0, file.metadata.row_group(group)
        mean = max(1, size.total_byte_size // max(1, size.num_rows))
        rows = min(ROWS, max(1, BATCH_BYTES // mean))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
          # A row at a time, since the rows that share a text may not fit into memory.
          for cells in zip(*batch.columns, strict=True):
            if field is not None:
              yield _text(cells[0], f"{name}: row group {group}, row {row}")
            else:
              values = (cell.as_py() for cell in cells)
              yield dict(zip(batch.schema.names, values, strict=True))
            row += 1
    except InputError:
      raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
      place = "cannot be read" if group < 0 else f"row group {group}: damaged after row {row}"
      reason = " ".join(str(error).split())[:200]
      raise InputError(f"{name}: {place} ({reason})") from error


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
