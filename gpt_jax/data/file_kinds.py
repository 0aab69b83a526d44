"""The kind of a file of texts or rows, by its name and its content, and the tables that we write.

CSV is that of RFC 4180. Tab-separated files have no quoting, as GLUE's, where a quotation mark is a
character like any other, unless the whole file is quoted as pandas, R or `write_table` do it. A
quotation mark within a quoted cell is doubled or, as by R and Spark, has a backslash before it.
"""

import contextlib
import csv
import functools
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import IO, Any, NamedTuple

from gpt_jax.data.sources import utf8
from gpt_jax.errors import InputError, warn_once
from gpt_jax.extensions import modules
from gpt_jax.files import find_files, parse_json

TEXT, TABLE, PARQUET = "text", "a table", "Parquet"
JSON_LINES, JSON_ARRAY = "JSON lines", "a JSON array"
DOUBLED, ESCAPED = '""', '\\"'  # a quotation mark within a quoted cell
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_HEAD, _ROWS = 1 << 18, 1000  # bytes by which a file is recognized, rows by which a delimiter is
_QUOTED = r'"[^"]*(?:""[^"]*)*"'
_SEPARATOR = re.compile(r'"?sep=([,;\t|])"?\r?\n')  # for Excel, before the names of the columns


class BlankRow(InputError):
  """A row without any text."""


class FileKind(NamedTuple):
  """The format of a file."""

  format: str  # TEXT, JSON_LINES, JSON_ARRAY, TABLE or PARQUET
  delimiter: str = ""  # between the cells of a table
  quote: str = ""  # DOUBLED or ESCAPED if its cells may be in quotation marks; "": they are not


_KINDS = {
  ".tsv": FileKind(TABLE, "\t"),
  ".csv": FileKind(TABLE, ",", DOUBLED),
  **dict.fromkeys((".jsonl", ".ndjson", ".json"), FileKind(JSON_LINES)),
  ".parquet": FileKind(PARQUET),
}
TABLE_SUFFIXES = tuple(_KINDS)


def kind_by_name(path: str) -> FileKind:
  """The kind that the suffix says, in any case of letters; TEXT if it says nothing."""
  return _KINDS.get(os.path.splitext(utf8.without_compression(path))[1].lower(), FileKind(TEXT))


def file_kind(path: str) -> FileKind:
  """The kind of a file; warns where its name says something else."""
  named = kind_by_name(path)
  if named.format == PARQUET:
    return named
  with utf8.open_bytes(path) as file:
    head = file.read(_HEAD) + file.readline(utf8.MAX_LINE)

  def all_lines() -> Iterator[str]:
    with utf8.open_bytes(path) as file:
      yield from (line for _, line in utf8.lines(file, path))

  if head.startswith(b"PAR1"):
    return tell(path, named, FileKind(PARQUET))
  # What is not UTF-8 is refused by the reader, which knows the place.
  text = utf8.with_line_feeds(head.decode("utf-8-sig", "replace"))
  return tell(path, named, recognize(named, text, all_lines))


def recognize(named: FileKind, head: str, all_lines: Callable[[], Iterable[str]]) -> FileKind:
  """The kind of a file by the head of its text and all lines; `named` unless they say otherwise."""
  if re.match(r'\s*\[\s*\{\s*["}]', head):
    return FileKind(JSON_ARRAY)
  if named.format == JSON_LINES or _begins_with_object(head):
    return FileKind(JSON_LINES)
  if named.format != TABLE:
    return named
  delimiter = _delimiter(head, named, all_lines)
  kind = named if delimiter == named.delimiter else FileKind(TABLE, delimiter, DOUBLED)
  quotes: tuple[str, ...] = () if kind.quote else (DOUBLED,)  # of tabs alone it is not known
  for quote in (DOUBLED, ESCAPED) if ESCAPED in head else quotes:
    # CSV that is valid as it stands may end its cells in backslashes.
    is_usual = quote == kind.quote
    if _is_quoted(_with_doubled(all_lines(), quote), delimiter, needs_evidence=not is_usual):
      return FileKind(TABLE, delimiter, quote)
  return kind


def tell(path: str, named: FileKind, kind: FileKind) -> FileKind:
  """The kind; warns if the name says something else."""
  what = kind.format
  if kind.format == TABLE:
    what = f"a table with {DELIMITERS[kind.delimiter]} between its columns"
    if kind.quote != named.quote and kind.delimiter == named.delimiter:
      what += ", whose cells are without the quotation marks around them"
      if kind.quote == ESCAPED:
        what += " and the backslashes before those within"
  if kind != named and (named.format, what) != (JSON_LINES, JSON_ARRAY):
    warn_once(f"{path}: is read as {what}, by its content")
  return kind


def _begins_with_object(head: str) -> bool:
  """Whether the first line is a JSON object, and the second may be: prose may begin with one."""
  begin = list(islice((line for line in split_lines(head) if line.strip()), 2))
  with contextlib.suppress(ValueError):
    is_json = begin and all(line.lstrip()[:1] == "{" for line in begin)
    return bool(is_json and parse_json(begin[0]))
  return False


# Not splitlines(): sentences may have U+2028.
split_lines = functools.partial(io.StringIO, newline="\n")


def _delimiter(head: str, named: FileKind, all_lines: Callable[[], Iterable[str]]) -> str:
  """The character between the columns that the first line names, and between those of most rows."""
  if separator := _SEPARATOR.match(head):
    return separator[1]
  rows = list(islice((line for line in split_lines(head) if line.strip()), _ROWS))
  kinds = [named, *(FileKind(TABLE, mark, DOUBLED) for mark in (named.delimiter, *DELIMITERS))]
  # Mark -> whether most rows have as many columns as the first line, and how many these are.
  found: dict[str, tuple[bool, int]] = {}
  widths: dict[str, set[int]] = {}  # mark -> how many columns the rows below the first line have
  for kind in kinds:
    names: list[str] = []
    sizes = []
    with contextlib.suppress(csv.Error):  # the reader names the row
      quoting: Any = csv.QUOTE_MINIMAL if kind.quote else csv.QUOTE_NONE
      for cells in csv.reader(rows, delimiter=kind.delimiter, quoting=quoting):
        names = names or cells
        sizes.append(len(cells))
    widths[kind.delimiter] = {*sizes[1:]}
    # A table of one column has any of these marks in its texts.
    fits = 2 * sizes.count(len(names)) > len(sizes)
    are_names = named.quote and all(name[:1].strip() for name in names)  # of CSV, not of texts
    if len(names) > 1 and (fits or are_names):
      found.setdefault(kind.delimiter, (fits, len(names)))
  if not named.quote:
    return next(iter(found), named.delimiter)
  if not found and len(widths[named.delimiter]) > 1:
    # Of one column a spreadsheet quotes the mark that it separates by, and no other.
    for mark in DELIMITERS:
      if widths[mark] == {1} and _is_quoted(all_lines(), mark, needs_evidence=False):
        return mark
  # A decimal comma may be in every row.
  return max(found, key=found.__getitem__, default=named.delimiter)


def _with_doubled(all_lines: Iterable[str], quote: str) -> Iterable[str]:
  """Lines in which a quotation mark within a quoted cell is doubled."""
  return (line if quote == DOUBLED else line.replace(quote, DOUBLED) for line in all_lines)


def _is_quoted(all_lines: Iterable[str], delimiter: str, needs_evidence: bool) -> bool:
  """Whether all quotation marks of a table are those of CSV.

  Each begins or ends a cell, or is doubled within one. And there may be evidence, as sentences are
  in quotes, or begin one that a later line ends: quotes around the names of the columns, doubled
  ones, or more rows with as many columns as the first.
  """
  cell = rf'(?:{_QUOTED}|[^"{delimiter}]*)'
  quoted_row = re.compile(f"{cell}(?:[{delimiter}]{cell})*")
  is_open = doubled = names_quoted = False
  parts: list[str] = []  # lines of the current row
  size = 0  # of them, in characters
  width = faults = plain_faults = 0  # columns of the first row; rows and lines with others
  for line in all_lines:
    if not parts and not line.strip():
      continue
    parts.append(line)
    size += len(line)
    plain_faults += width not in (0, line.count(delimiter) + 1)
    is_open ^= line.count('"') % 2 == 1
    if is_open and size <= utf8.MAX_LINE:
      continue
    row = "".join(parts).removesuffix("\n").removesuffix("\r")
    parts, size = [], 0
    if not quoted_row.fullmatch(row):
      return False
    doubled |= any('"' in cell[1:-1] for cell in re.findall(_QUOTED, row))
    columns = re.sub(_QUOTED, "", row).count(delimiter) + 1
    if not width:
      width, names_quoted = columns, '"' in row
    faults += columns != width
  has_evidence = names_quoted or (doubled and faults <= plain_faults) or faults < plain_faults
  return (has_evidence or not needs_evidence) and not is_open


def typed_rows(path: str) -> Iterator[dict[str, Any]]:
  """The rows of a PARQUET file, or of a folder of them: column -> text, number, list or None."""
  (source,) = modules("gpt_jax.data.sources", "typed_rows")
  for part in find_files(path):
    if part == path or source.reads(part):  # a folder of Spark's has other files, too
      yield from source.typed_rows(part)


def table_rows(
  all_lines: Iterable[str], kind: FileKind, path: str
) -> Iterator[tuple[int, list[str]]]:
  """(first line, cells) of each row of a table; a quoted cell may have lines of its own."""
  rest = iter(all_lines)
  first = next(rest, "")
  above = 1 if _SEPARATOR.fullmatch(first) else 0  # lines that a spreadsheet does not show
  all_lines = rest if above else chain([first], rest)
  if not kind.quote:
    for number, line in enumerate(all_lines, above + 1):
      yield number, line.removesuffix("\n").removesuffix("\r").split(kind.delimiter)
    return
  csv.field_size_limit(2**31 - 1)  # of the whole process; a cell may hold a whole document
  doubled = _with_doubled(all_lines, kind.quote)
  reader = csv.reader(doubled, delimiter=kind.delimiter, strict=True)
  begin = above + 1
  try:
    for cells in reader:
      yield begin, cells
      begin = above + reader.line_num + 1
  except csv.Error as error:
    kinds = DELIMITERS[kind.delimiter]
    raise InputError(f"{path}:{begin}: not CSV with {kinds}: {error}") from error


def json_values(
  all_lines: Iterable[tuple[int, str]], path: str, is_array: bool
) -> Iterator[tuple[str, Any]]:
  """("file:line", value) of each numbered line, or of each element of an array, given as one line.

  The value of a blank line is a BlankRow, and that of one that is not JSON an InputError.
  """
  for number, line in all_lines:
    where = f"{path}:{number}"
    try:
      value: Any = parse_json(line) if line.strip() else BlankRow(f"{where}: empty row")
    except ValueError as error:
      value = InputError(f"{where}: not JSON: {error}; should be one JSON object per line")
    if is_array and not isinstance(value, InputError):
      yield from ((f"{path}:{count}", element) for count, element in enumerate(value, 1))
    else:
      yield where, value


def write_table(
  file: IO[str], rows: Iterable[Sequence[object]], delimiter: str = ",", mark: str = ""
) -> None:
  """Writes rows, of which the first names the columns, so that the readers give the same cells.

  None is an empty cell; half of a surrogate pair, which is no Unicode, becomes "?".

  mark: what the file begins with, a byte order mark or nothing; see Table.csv_layout.
  """
  file.write(mark)
  # Not csv.writer: before Python 3.13 it leaves a cell with "\r" without quotes.
  special = re.compile(rf'["\r\n{delimiter}]|^\ufeff')
  texts = []
  for row in rows:
    cells = ("" if cell is None else str(cell) for cell in row)
    texts.append([cell.encode("utf-8", "replace").decode() for cell in cells])
  # The quotes of the first line say that those of other lines are no text, see _is_quoted.
  is_quoted = delimiter == "\t" and any(special.search(cell) for row in texts for cell in row)
  for row in texts:
    cells = (
      f'"{cell.replace(chr(34), DOUBLED)}"' if is_quoted or special.search(cell) else cell
      for cell in row
    )
    file.write(delimiter.join(cells) + "\n")
    is_quoted = False
