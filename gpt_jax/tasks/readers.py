"""Readers of labeled rows: tables, JSON and Parquet files, and data sets prepared by TFDS."""

import collections
import functools
import io
import itertools
import json
import os
import re
import stat
import sys
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.data import file_kinds
from gpt_jax.data.file_kinds import (
  JSON_ARRAY,
  PARQUET,
  TABLE,
  TEXT,
  BlankRow,
  FileKind,
  json_values,
  typed_rows,
)
from gpt_jax.data.sources import utf8
from gpt_jax.errors import InputError, MissingInput, counted, did_you_mean, require, warn_once
from gpt_jax.files import exists, is_file, is_folder, split_names

_MAX_MIB = 2048  # of a compressed file, which is read as a whole
_MARK = "\ufeff"  # a byte order mark, by which spreadsheets know UTF-8


class Row(NamedTuple):
  """One row: its text columns, the label as written, None for none, and "file:line"."""

  texts: tuple[str, ...]
  label: str | None
  location: str


def check_data_dir(data_dir: str) -> None:
  """Fails early, before a program looks for task after task in the folder."""
  if not is_folder(data_dir.removeprefix("tfds:") or os.curdir):
    raise InputError(
      f"data_dir={data_dir}: {'a file, no' if exists(data_dir) else 'no such'} folder"
    )


def find_folder(data_dir: str, collection: str, name: str = "") -> str:
  """Finds data_dir/collection/name; data_dir may also be the collection's folder itself."""
  candidates = [os.path.join(data_dir, collection, name)]
  if name or os.path.basename(os.path.abspath(data_dir)) == collection:
    candidates.append(os.path.join(data_dir, name))
  for candidate in candidates:
    if data_dir and is_folder(candidate):
      return candidate
  folder = os.path.join(collection, name) if name else collection
  advice = f"give the folder above {collection}/, with the official files in {folder}/"
  raise MissingInput(f"data_dir={data_dir}: no folder {folder!r} here; {advice}")


def read_lines(path: str, stray: bytes = b"") -> list[tuple[int, str]]:
  """The numbers and the non-empty lines, without their ends, of a file in UTF-8, or UTF-16 with a
  byte order mark; "-" is standard input.

  stray: a byte of an official file that makes it no UTF-8, and is read as a space.
  """
  return [(number, line) for number, line in read_every_line(path, stray) if line.strip()]


def read_every_line(path: str, stray: bytes = b"") -> list[tuple[int, str]]:
  """As read_lines, including empty lines except at the end."""
  content = _read_content(path)
  if stray:
    try:
      content.decode()
    except UnicodeDecodeError:
      content = content.replace(stray, b" ")
  return _numbered(_decode(path, content).removeprefix(_MARK))


def _numbered(text: str) -> list[tuple[int, str]]:
  # Not splitlines(): it would also break at the Unicode separators that real sentences contain.
  lines = [line.removesuffix("\r") for line in text.split("\n")]
  while lines and not lines[-1].strip(" \t"):  # other space is a word of some tagged files
    lines.pop()
  return list(enumerate(lines, start=1))


def with_label_name(row: Row, names: Sequence[str]) -> Row:
  """Replaces a label, a number from 0, by its name; an unlabeled row stays as it is."""
  if row.label is None:
    return row
  numbers = [str(number) for number in range(len(names))]
  label = as_known(row.label, [*numbers, "-1"])
  if label not in numbers:
    none = "; for rows without labels leave the column out" if label == "-1" else ""
    message = f"{row.location}: label {row.label!r}: should be {' or '.join(numbers)}{none}"
    raise InputError(message)
  return row._replace(label=names[int(label)])


def read_table(
  path: str,
  columns: Sequence[str],
  label: str | None = None,
  *,
  label_names: Sequence[str] = (),
  unlabeled: bool = False,
  unnamed: Sequence[str] = (),
) -> Iterator[Row]:
  """The rows of an official file, which is what its name says; the first fault is raised.

  Args:
    path, columns, label, unlabeled, unnamed: see Table.
    label_names: names for labels that the file writes as 0, 1, …; empty: labels stay as they are.
  """
  table = Table(path, official=True, unnamed=unnamed)
  for row in usable(table.rows(columns, label, unlabeled=unlabeled)):
    yield with_label_name(row, label_names) if label_names else row


def split_usable(rows: Iterable[Row | InputError]) -> tuple[list[Row], list[InputError]]:
  """The rows that can be used, and the errors of the others."""
  good: list[Row] = []
  problems: list[InputError] = []
  for row in rows:
    problems.append(row) if isinstance(row, InputError) else good.append(row)
  return good, problems


def usable(rows: Iterable[Row | InputError]) -> Iterator[Row]:
  """The rows; raises the error of the first one that cannot be used."""
  for row in rows:
    if isinstance(row, InputError):
      raise row
    yield row


def read_tfds(data_set: str, split: str, data_dir: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Reads a split that TFDS has prepared on disk, without TensorFlow or the network.

  Args:
    data_set, split: their names in TFDS, e.g. "glue/rte"; "dev" also finds "validation".
    data_dir: TFDS's data_dir; empty for TFDS's default.

  Yields:
    ("data_set/split:row", record): text as str, class labels by name (None for TFDS's -1), other
    features as numbers and lists.
  """
  tfds = require("tensorflow_datasets", "data_dir=tfds:…", "tensorflow-datasets")
  place, file_format = f"tfds:{data_dir}: {data_set}", "file_format='array_record'"
  try:
    # From the files alone: the data set's own builder class would need TensorFlow for old data
    # sets, and might download.
    builder = tfds.core.read_only_builder.builder_from_files(data_set, data_dir=data_dir or None)
  except tfds.core.registered.DatasetNotFoundError as error:
    command = f"tfds.builder({data_set!r}, data_dir=…, {file_format}).download_and_prepare()"
    raise InputError(f"{place} is not prepared here; prepare it once with {command}") from error
  if split == "dev" and "validation" in builder.info.splits:  # as GLUE calls it; RACE has "dev"
    split = "validation"
  if split not in builder.info.splits:
    names = ", ".join(map(repr, builder.info.splits))
    raise InputError(f"{place} has no split {split!r}, only {names}")
  try:
    source = builder.as_data_source(split=split)
  except NotImplementedError as error:
    raise InputError(f"{place} must be prepared with {file_format}") from error
  features = builder.info.features
  for number in range(len(source)):
    record = {key: _to_python(value, features[key]) for key, value in source[number].items()}
    yield f"{data_set}/{split}:{number}", record


def _to_python(value: Any, feature: Any) -> Any:
  if hasattr(feature, "int2str"):
    return feature.int2str(int(value)) if value >= 0 else None
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if hasattr(value, "tolist"):
    value = value.tolist()
  if isinstance(value, list | tuple):
    return [_to_python(item, None) for item in value]
  return value


def _read_content(path: str) -> bytes:
  # A pipe also is bash's <(command), which has a path.
  if path == "-" or (os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)):
    with utf8.open_bytes(path, _read_pipe(path)) as file:
      return file.read()
  with utf8.open_bytes(path) as file:
    if utf8.without_compression(path) == path:
      return file.read()
    content = b"".join(itertools.islice(iter(lambda: file.read(1 << 20), b""), _MAX_MIB))
    if file.read(1):  # a small file may hold terabytes
      raise InputError(f"{path}: more than {_MAX_MIB:,} MiB when decompressed, the limit")
  return content


def _decode(path: str, data: bytes, official: bool = True) -> str:
  """The text of a file, after its byte order mark; of the user's own in Windows-1252 after one."""
  if kind := utf8.describe_binary(data):
    raise InputError(f"{path}: {kind}")
  try:
    return utf8.with_line_feeds(data.decode())
  except UnicodeDecodeError as error:
    text, word = ("", "") if official else utf8.windows_1252(data)
    if text:
      warn_once(f"{path}: is read as Windows-1252, as it is not UTF-8: {word!r}")
      return _MARK + utf8.with_line_feeds(text)
    line, byte = data[: error.start].count(b"\n") + 1, data[error.start]
    place = f"{path}:{line}: not UTF-8 (byte {byte:#04x})"
    raise InputError(f"{place}; {utf8.how_to_convert(data)}") from error


@functools.cache  # a pipe can be read only once
def _read_pipe(path: str) -> bytes:
  if path == "-":
    return sys.stdin.buffer.read()
  with open(path, "rb") as file:
    return file.read()


# A row of a table: its columns, or the error that says why it cannot be used.
Record = dict[str, Any] | InputError


class Table:
  """A file of rows, of which all but those of Parquet are in memory.

  It is .csv (with quoting), .jsonl or .ndjson (one object per line), .json (those or an array of
  objects), .parquet, or anything else, such as standard input, "-": tab-separated without quoting.
  The first line of a CSV or TSV file names the columns. It may be compressed.

  Attributes:
    unnamed: the columns of a TSV file whose first line is a row; (): it names them.
    named, kind: what its name and its content say that it is.
    csv_layout: delimiter and byte order mark of CSV for the spreadsheet that wrote it: its own if
      it is CSV, and the mark unless it is in UTF-8 without one.
  """

  def __init__(self, path: str, *, official: bool = False, unnamed: Sequence[str] = ()):
    """Reads the file; unless `official`, by its content too, see data/file_kinds.py."""
    named = file_kinds.kind_by_name(path)
    self.path, self.unnamed = path, tuple(unnamed)
    self.named = FileKind(TABLE, "\t") if named.format == TEXT else named
    self.kind = self.named
    is_parquet = named.format == PARQUET and exists(path)
    content = b"" if is_parquet else _read_content(path)
    if content.startswith(b"PAR1"):
      is_parquet = is_file(path)  # not a pipe: it is read part by part
    text = "" if is_parquet else _decode(path, content, official)
    self._text = text.removeprefix(_MARK)
    if is_parquet:
      self.kind = FileKind(PARQUET)
    elif path == "-" or not official:
      with_quotes = self._text if '"' in self._text else ""
      all_lines = functools.partial(file_kinds.split_lines, with_quotes)
      self.kind = file_kinds.recognize(self.named, self._text, all_lines)
    is_csv = self.kind.format == TABLE and self.named.quote
    mark = text[: len(text) - len(self._text)]
    self.csv_layout = self.kind.delimiter if is_csv else ",", mark

  @classmethod
  def with_texts(
    cls, path: str, columns: tuple[str, ...], further: str = ""
  ) -> tuple["Table", tuple[str, ...]]:
    """The user's table of some columns, and these, with a further one where the table has it.

    A TSV file whose first line has the name of none of the columns has just them, in this order.
    """
    table = cls(path)
    if table.kind.format == TABLE and not table.named.quote:  # not .csv
      first = table.first_row(table.kind)
      if first and set(columns).isdisjoint(first):
        count = len(table.first_row(table.named))
        table.unnamed = (*columns, further) if further and count > len(columns) else columns
        return table, table.unnamed
    return table, (*columns, further) if further and table.has(further) else columns

  @property
  def names(self) -> list[str]:
    """The columns that the header names, or those of the first JSON object."""
    problem: InputError | None = None
    for record in self.records():
      if not isinstance(record, InputError):
        return list(record)
      if problem is None or isinstance(problem, BlankRow):  # which says least
        problem = record
    fault = f": {problem}" if problem else ""
    raise InputError(f"{self.path}: no rows that can be used{fault}")

  def has(self, column: str) -> bool:
    """Whether the header, or any JSON object, names a column."""
    return column in self._columns

  @functools.cached_property
  def _columns(self) -> set[str]:
    """The columns of all rows that can be used."""
    rows = (row for row in self.records() if isinstance(row, dict))
    return {*itertools.chain.from_iterable(itertools.islice(rows, 1) if self._has_header else rows)}

  @property
  def _has_header(self) -> bool:
    """Whether all rows have the same columns."""
    return self.kind.format in (TABLE, PARQUET)

  def split(self, columns: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, of which each may be several with commas between them."""
    return tuple(split_names(",".join(columns), self.has)) if columns else ()

  def rows(
    self,
    columns: Sequence[str],
    label: str | None = None,
    *,
    unlabeled: bool = False,
    blanks: bool = False,
  ) -> Iterator[Row | InputError]:
    """The texts and labels of the rows; a row that cannot be used is the error that says why. A
    cell without a value, as null in JSON, has an empty text; so has one that a JSON object leaves
    out, if it has another of the columns and another object has that one.

    Args:
      columns: the text columns to read, in this order.
      label: the label column; None reads no labels.
      unlabeled: the label column may be absent.
      blanks: blank rows are errors, too, but at the end of the file; labeled data may have some
        between rows.
    """
    needed = columns if label is None or unlabeled else (*columns, label)
    for location, record in self.located({*columns, label}):
      if isinstance(record, InputError):
        if blanks or not isinstance(record, BlankRow):
          yield record
        continue
      absent = [column for column in columns if column not in record]
      if 0 < len(absent) < len(columns) and not self._has_header:
        record = record | {column: None for column in absent if column in self._columns}
      missing = next((column for column in needed if column not in record), None)
      if missing is not None:
        error = no_column(self.path if self._has_header else location, missing, record)
        if self._has_header:  # no row has it
          raise error
        yield error
        continue
      texts = tuple("" if is_missing(record[column]) else record[column] for column in columns)
      other = next((n for n, text in enumerate(texts) if not isinstance(text, str)), None)
      if other is not None:
        shown = json.dumps(texts[other])
        yield InputError(f"{location}: column {columns[other]!r} should be text, not {shown}")
        continue
      yield Row(texts, None if label is None else _label_text(record.get(label)), location)

  def records(self, needed: Iterable[str] = ()) -> Iterator[Record]:
    """All columns of each row, blank ones too but for the end; none of `needed` may occur twice."""
    return (record for _, record in self.located({*needed}))

  def located(self, needed: set[Any]) -> Iterator[tuple[str, Record]]:
    """As records: ("file:line", record) of each row."""
    if self.path != "-" and not (self.unnamed and self.kind.format == TABLE):  # "-" has no name
      file_kinds.tell(self.path, self.named, self.kind)
    if self.kind.format == TABLE:
      return self._table_records(needed)
    if self.kind.format == PARQUET:
      return ((f"{self.path}:{n}", row) for n, row in enumerate(typed_rows(self.path), 1))
    is_array = self.kind.format == JSON_ARRAY
    lines = [(1, self._text)] if is_array else _numbered(self._text)
    return map(_as_record, json_values(lines, self.path, is_array))

  def _table_records(self, needed: set[Any]) -> Iterator[tuple[str, Record]]:
    columns, expected = list(self.unnamed), "without a header line there should be"
    kind = self.named if columns else self.kind  # sentences may have quotes and commas
    rows = self.cells(kind)
    if not columns:
      number, columns = next((row for row in rows if _has_text(row[1])), (0, []))
      expected = "the header names"
      if not columns:
        raise InputError(f"{self.path}: empty; the first line should name the columns")
      for column in columns:
        if column in needed and columns.count(column) > 1:
          place = f"{self.path}:{number}"
          raise InputError(f"{place}: two columns named {column!r}; rename one of them")
      columns = _numbered_repeats(columns)
    for number, cells in rows:
      location = f"{self.path}:{number}"
      if not _has_text(cells):
        yield location, BlankRow(f"{location}: empty row")
      elif len(cells) != len(columns):
        names = ", ".join(columns)
        if kind.delimiter != ",":
          names += f" (separated by {file_kinds.DELIMITERS[kind.delimiter]})"
        problem = f"{counted(len(cells), 'column')}, but {expected} {len(columns)}: {names}"
        yield location, InputError(f"{location}: {problem}")
      else:
        yield location, dict(zip(columns, cells, strict=True))

  def first_row(self, kind: FileKind) -> list[str]:
    """The cells of the first row, as a table of some kind; [] of an empty file."""
    return next((cells for _, cells in self.cells(kind) if _has_text(cells)), [])

  def cells(self, kind: FileKind) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of each row but the blank ones at the end."""
    # In CSV "\r" alone ends a row, as on old Macs.
    lines: Iterable[str] = io.StringIO(self._text, newline="" if self.named.quote else "\n")
    blank: list[tuple[int, list[str]]] = []  # they count if another row follows
    for number, cells in file_kinds.table_rows(lines, kind, self.path):
      if not _has_text(cells):
        blank.append((number, cells))
        continue
      yield from blank
      yield number, cells
      blank = []


def column_values(locations: Sequence[str], column: str) -> list[str]:
  """What a further column has in the rows at "file:line"; "" where a row, or its file, has none."""
  paths = dict.fromkeys(place.rpartition(":")[0] for place in locations)
  tables, cells = list(map(Table, paths)), {}
  for table in tables:
    for place, record in table.located({column}):
      if isinstance(record, dict) and column in record:
        cells[place] = _label_text(record[column]) or ""
  if tables and not cells:
    raise no_column(tables[-1].path, column, tables[-1].names)
  return [cells.get(place, "") for place in locations]


def no_column(place: str, column: str, names: Collection[str]) -> InputError:
  """The error of a table, at a place, that has no such column."""
  known = f"{did_you_mean(column, names)} (the columns are {', '.join(map(repr, names))})"
  return InputError(f"{place}: no column {column!r}{known}")


def _numbered_repeats(names: Sequence[str]) -> list[str]:
  """The names, of which those that come again are numbered, as by pandas: "a", "a.1", "a.2"."""
  different: list[str] = []
  for name in names:
    number, numbered = 0, name
    while name and (numbered in different or (number and numbered in names)):
      number += 1
      numbered = f"{name}.{number}"
    different.append(numbered)
  return different


def _has_text(cells: Sequence[str]) -> bool:
  return any(cell.strip() for cell in cells)


def _as_record(located: tuple[str, Any]) -> tuple[str, Record]:
  location, value = located
  if not isinstance(value, dict | InputError):
    value = InputError(f"{location}: should be one JSON object per line")
  return location, value


def is_missing(value: Any) -> bool:
  """Whether a cell is None or NaN, which stands for a missing number."""
  return value is None or value != value


def _label_text(value: Any) -> str | None:
  if is_missing(value):
    return None
  # As others write it: pandas makes 1.0 of 1 where a cell of a column is empty.
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  return value if isinstance(value, str) else json.dumps(value)


_WHOLE = re.compile(r"(-?[0-9]+)\.0*")  # not by float, for which long numbers of accounts are equal


def label_form(label: str) -> str:
  """The same for labels that differ by case, spaces, Unicode form, or 1 and 1.0."""
  text = " ".join(unicodedata.normalize("NFC", label).split()).casefold()
  number = _WHOLE.fullmatch(text)
  return number[1] if number else text


def as_known(label: str, known: Sequence[str], of_any_form: bool = False) -> str:
  """The known label that is the same whole number (old checkpoints have 1.0 for 1) or, with
  of_any_form, the only one that differs by its form alone; else `label`.
  """
  if label in known or not (of_any_form or re.fullmatch(r"-?[0-9]+(\.0*)?", label)):
    return label
  same = [other for other in known if label_form(other) == label_form(label)]
  return same[0] if len(same) == 1 else label


def of_form(label: str, known: Iterable[str]) -> str:
  """For a message on a label that is not known: the one of its form, or ""."""
  same = next((other for other in known if label_form(other) == label_form(label)), None)
  return "" if same is None else f"; it differs from {same!r} by its form alone"


def merge_similar(labels: Iterable[str], path: str, setting: str = "") -> dict[str, str]:
  """The labels that the commonest one of their form stands for -> that one; a warning tells.

  {} without the name of a `setting` that keeps them apart: they count as different.
  """
  counts, spellings = collections.Counter(labels), collections.defaultdict(list)
  for label in sorted(counts, key=lambda label: (-counts[label], label.strip() != label, label)):
    spellings[label_form(label)].append(label)
  merged: dict[str, str] = {}
  shown = []
  for names in (names for names in spellings.values() if len(names) > 1):
    merged |= dict.fromkeys(names[1:], names[0])
    shown.append(" and ".join(f"{name!r} ({counts[name]:,})" for name in names))
  if shown:
    alike = f"{path}: labels that differ only by case, spaces or form count as"
    as_what = f"the first of them ({setting} keeps them apart)" if setting else "different"
    warnings.warn(f"{alike} {as_what}: {'; '.join(shown)}", stacklevel=3)
  return merged if setting else {}
