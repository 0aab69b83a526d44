"""Tables, CSV or tab-separated: one document per row, of a column's text or a line from several."""

from collections.abc import Iterable, Iterator

from gpt_jax.data import file_kinds
from gpt_jax.data.file_kinds import TABLE, file_kind, kind_by_name
from gpt_jax.data.sources.utf8 import MAX_LINE, lines, open_bytes
from gpt_jax.errors import InputError, counted, did_you_mean
from gpt_jax.files import split_names

FORMATS = (TABLE,)
USAGE = "tables (.csv, .tsv)"
FOLDER_SUFFIXES = ()  # folders of text have tables of other things, such as the authors


def reads(name: str) -> bool:
  return kind_by_name(name).format == TABLE


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  rows = table_rows(name)
  _, header = next(rows, (1, []))
  if not header:
    raise InputError(f"{name}: empty; the first line should name the columns")
  columns = split_names(field, header.__contains__)
  for column in columns:
    if header.count(column) != 1:
      fault = "no" if column not in header else "more than one"
      guess = did_you_mean(column, header) if fault == "no" else ""
      raise InputError(
        f"{name}: {fault} column {column!r}{guess} (its columns: {', '.join(map(repr, header))}); "
        "name the one that holds the text with text_column=NAME"
      )
  for line, cells in rows:
    if len(cells) != len(header):
      raise InputError(
        f"{name}:{line}: {counted(len(cells), 'column')}, but the header names {len(header)}"
      )
    row = dict(zip(header, cells, strict=True))
    if len(columns) == 1:
      yield [row[columns[0]]]
      continue
    # A line each: a cell of .csv may have line breaks of its own.
    texts = [" ".join(row[column].split()) for column in columns]
    yield ["\n".join(filter(None, texts))]


def table_rows(name: str) -> Iterator[tuple[int, list[str]]]:
  """(first line, cells) of each row that is not blank; a quoted cell may span lines."""
  with open_bytes(name) as file:
    begin, size = 1, 0  # of the current row: its first line, and its characters so far

    def row_lines() -> Iterator[str]:
      nonlocal begin, size
      for number, line in lines(file, name):
        begin, size = number if not size else begin, size + len(line)
        if size > MAX_LINE:  # as when a quote is never closed
          raise InputError(
            f"{name}:{begin}: the row has more than {MAX_LINE:,} characters, the limit; is a "
            "quote missing?"
          )
        yield line

    for number, cells in file_kinds.table_rows(row_lines(), file_kind(name), name):
      if any(cell.strip() for cell in cells):
        yield number, cells
      size = 0
