"""JSON lines, one object per line, and arrays of objects: one document per object."""

from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.data import file_kinds
from gpt_jax.data.sources.utf8 import MAX_LINE, decode, lines, open_bytes
from gpt_jax.errors import InputError

FORMATS = (file_kinds.JSON_LINES, file_kinds.JSON_ARRAY)
USAGE = "JSON lines (.jsonl, .ndjson, .json)"
# .json files may be anything.
FOLDER_SUFFIXES = (
  *(".jsonl", ".jsonl.gz", ".jsonl.zst"),
  *(".ndjson", ".ndjson.gz", ".ndjson.zst"),
)
MAX_ARRAY = 2 * MAX_LINE  # bytes; an array is read as a whole


def reads(name: str) -> bool:
  return file_kinds.kind_by_name(name).format == file_kinds.JSON_LINES


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  """The texts of a field; "" where it is null."""
  for where, row in values(name):
    yield [_field(row, field, where)]


def values(name: str) -> Iterator[tuple[str, Any]]:
  """("file:line", value) of each line that is not blank, or of each element of an array."""
  is_array = file_kinds.file_kind(name).format == file_kinds.JSON_ARRAY
  with open_bytes(name) as file:
    content = file.read(MAX_ARRAY + 1) if is_array else b""
    if len(content) > MAX_ARRAY:
      raise InputError(
        f"{name}: a JSON array of over {MAX_ARRAY:,} bytes; write an object per line"
      )
    all_lines = [(1, decode(content, name, 0))] if is_array else lines(file, name)
    for where, value in file_kinds.json_values(all_lines, name, is_array):
      if isinstance(value, InputError) and not isinstance(value, file_kinds.BlankRow):
        raise value
      if not isinstance(value, file_kinds.BlankRow):
        yield where, value


def _field(row: Any, field: str, where: str) -> str:
  if isinstance(row, dict):
    if isinstance(text := row.get(field, 0), str | None):
      return text or ""
    fault = f"(its fields: {', '.join(map(repr, row))}); name another with text_column=NAME"
  else:
    fault = "(not an object); each line should be one object"
  raise InputError(f"{where}: no text in field {field!r} {fault}")
