"""Parquet: one document per row, the text of one column; memory is bounded by a row group."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.files import is_url, open_regular

USAGE = "Parquet (.parquet)"
FOLDER_SUFFIXES = (".parquet",)
ROWS = 1024  # decoded at a time


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
      stored = open_files.enter_context(open_regular(name)) if is_url(name) else name
      file = open_files.enter_context(pyarrow.parquet.ParquetFile(stored))
    except (OSError, pyarrow.ArrowException) as error:
      raise InputError(f"{name}: cannot be read ({_line(error)})") from error
    _check_column(name, file.schema_arrow, field, pyarrow)
    for group in range(file.num_row_groups):
      row = 0
      try:
        for batch in file.iter_batches(ROWS, row_groups=[group], columns=[field]):
          for text in batch.column(0).to_pylist():
            if text is None:
              raise InputError(f"{name}: row group {group}, row {row}: no text (null)")
            yield [text]
            row += 1
      except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise InputError(
          f"{name}: row group {group}: damaged after row {row} ({_line(error)})"
        ) from error


def _check_column(name: str, schema: Any, field: str, pyarrow: Any) -> None:
  """Raises InputError unless there is such a column of text."""
  if field not in schema.names:
    raise InputError(
      f"{name}: no column {field!r}{did_you_mean(field, schema.names)} (its columns: "
      f"{', '.join(map(repr, schema.names))}); name the one that holds the text with --text_column"
    )
  kind = schema.field(field).type
  if pyarrow.types.is_dictionary(kind):
    kind = kind.value_type
  if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
    raise InputError(
      f"{name}: column {field!r} holds {kind}, not text; name another with --text_column"
    )


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:200]
