"""JSON lines: one object per line, one document per object."""

from collections.abc import Iterable, Iterator

from gpt_jax.data.sources.utf8 import lines, open_bytes, without_compression
from gpt_jax.errors import InputError
from gpt_jax.files import parse_json

USAGE = "JSON lines (.jsonl, .json)"
FOLDER_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")  # .json files may be anything


def reads(name: str) -> bool:
  return without_compression(name).endswith((".jsonl", ".json"))


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  with open_bytes(name) as file:
    for number, line in lines(file, name):
      if line.strip():
        yield [_field(line, field, f"{name}:{number}")]


def _field(line: str, field: str, where: str) -> str:
  try:
    row = parse_json(line)
  except ValueError as error:
    raise InputError(f"{where}: not JSON ({error}); each line should be one object") from error
  if not isinstance(row, dict):
    raise InputError(
      f"{where}: no text in field {field!r} (not an object); each line should be one object"
    )
  if not isinstance(row.get(field), str):
    raise InputError(
      f"{where}: no text in field {field!r} (its fields: {', '.join(map(repr, row))}); name "
      "another with text_column=NAME"
    )
  return row[field]
