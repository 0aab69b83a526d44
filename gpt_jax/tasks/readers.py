"""Rows of labeled text as the files have them: TSV, CSV, JSONL, and data sets that TFDS has
prepared.
"""

import csv
import functools
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.errors import InputError, MissingInput


class Row(NamedTuple):
  """One labeled row.

  Attributes:
    texts: the text columns.
    label: as written in the file; None where the row has none.
    location: "file:line", for messages and for the output of predictions.
  """

  texts: tuple[str, ...]
  label: str | None
  location: str


def check_data_dir(data_dir: str) -> None:
  """Raises InputError where data_dir is no folder, for programs that would look for one task
  after the other in it.
  """
  if not os.path.isdir(data_dir.removeprefix("tfds:") or os.curdir):
    raise InputError(f"--data_dir={data_dir}: no such folder")


def find_folder(data_dir: str, collection: str, name: str = "") -> str:
  """Finds data_dir/collection/name, where data_dir may be the collection's own folder, or the
  one that contains it.
  """
  wanted = os.path.join(collection, name) if name else collection
  candidates = [os.path.join(data_dir, collection, name), os.path.join(data_dir, name)]
  if not name and os.path.basename(os.path.abspath(data_dir)) != collection:
    candidates.pop()
  for candidate in candidates:
    if data_dir and os.path.isdir(candidate):
      return candidate
  raise MissingInput(
    f"--data_dir={data_dir}: no folder {wanted!r} here; it should contain the official files"
  )


def read_lines(path: str) -> list[tuple[int, str]]:
  """The (line number, line) pairs of a UTF-8 file ("-": standard input), without its BOM, line
  ends and empty lines.
  """
  text = _text(path)
  # Not splitlines(): it would also break at the Unicode separators that real sentences contain.
  numbered = (
    (number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), start=1)
  )
  return [(number, line) for number, line in numbered if line.strip()]


def with_label_name(row: Row, labels: Sequence[str]) -> Row:
  """The row with the name of its label, which the file has as a number from 0; an unlabeled row as
  it is.

  Raises:
    InputError: a label that is no such number.
  """
  if row.label is None:
    return row
  numbers = [str(number) for number in range(len(labels))]
  if row.label not in numbers:
    raise InputError(f"{row.location}: label {row.label!r}: should be {' or '.join(numbers)}")
  return row._replace(label=labels[int(row.label)])


def read_table(
  path: str, columns: Sequence[str], label: str | None = None, *, unlabeled: bool = False
) -> Iterator[Row]:
  """Reads the rows of a table.

  Args:
    path: .csv (with quoting), .jsonl (one object a line), or tab-separated without quoting; the
      first line of a CSV or TSV file names the columns. "-" is standard input, JSONL where it
      begins with "{", else TSV.
    columns: the text columns, in the order wanted.
    label: the label column; None reads no labels.
    unlabeled: whether the label column may be absent.

  Raises:
    InputError: naming file and line, for a missing file, a wrong encoding, a missing column or a
      broken row.
  """
  if path.endswith(".csv"):
    records = _delimited(path, _csv_cells(path))
  elif path.endswith((".jsonl", ".json")) or (path == "-" and _text(path).lstrip().startswith("{")):
    records = _json_lines(path)
  else:
    records = _delimited(path, ((number, line.split("\t")) for number, line in read_lines(path)))
  needed = [*columns, *([label] if label is not None and not unlabeled else [])]
  for name, record in records:
    for column in needed:
      if column not in record:
        raise InputError(
          f"{name}: no column {column!r}; the columns are {', '.join(map(repr, record))}"
        )
    for column in columns:
      if not isinstance(record[column], str):
        raise InputError(
          f"{name}: column {column!r} should be text, not {json.dumps(record[column])}"
        )
    found = None if label is None else record.get(label)
    yield Row(
      tuple(record[column] for column in columns), None if found is None else _label(found), name
    )


def read_tfds(data_set: str, split: str, data_dir: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Reads a split that TFDS has prepared on disk, with neither TensorFlow nor the network.

  Args:
    data_set: TFDS's name, e.g. "glue/rte".
    split: its name in TFDS; "dev" is GLUE's "validation" as well.
    data_dir: TFDS's data_dir; empty for its default.

  Yields:
    ("data_set/split:row", record): text as str, class labels by name (None for TFDS's -1), other
    features as lists.
  """
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise InputError(
      "--data_dir=tfds:… needs tensorflow-datasets: pip install tensorflow-datasets"
    ) from error
  place = f"tfds:{data_dir}"
  try:
    # From the files alone: the builder's own code would need TensorFlow for old data sets, and
    # might download.
    builder = tfds.core.read_only_builder.builder_from_files(data_set, data_dir=data_dir or None)
  except tfds.core.registered.DatasetNotFoundError as error:
    make = (
      f"tfds.builder({data_set!r}, data_dir=…, file_format='array_record').download_and_prepare()"
    )
    raise InputError(
      f"{place}: {data_set} is not prepared here; prepare it once with {make}"
    ) from error
  if split == "dev" and "validation" in builder.info.splits:  # GLUE's name; RACE has "dev"
    split = "validation"
  if split not in builder.info.splits:
    raise InputError(
      f"{place}: {data_set} has no split {split!r}, only {', '.join(map(repr, builder.info.splits))}"
    )
  try:
    source = builder.as_data_source(split=split)
  except NotImplementedError as error:
    raise InputError(
      f"{place}: {data_set} must be prepared with file_format='array_record'"
    ) from error
  for number in range(len(source)):
    record = {
      key: _plain(value, builder.info.features[key]) for key, value in source[number].items()
    }
    yield f"{data_set}/{split}:{number}", record


def _plain(value: Any, feature: Any) -> Any:
  if hasattr(feature, "int2str"):
    return feature.int2str(int(value)) if value >= 0 else None
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if hasattr(value, "tolist"):
    value = value.tolist()
  return [_plain(each, None) for each in value] if isinstance(value, list | tuple) else value


def _text(path: str) -> str:
  if path == "-":
    data = _standard_input()
  else:
    try:
      with open(path, "rb") as file:
        data = file.read()
    except FileNotFoundError as error:
      raise MissingInput(f"{path}: {error.strerror}") from error
    except OSError as error:
      raise InputError(f"{path}: {error.strerror or error}") from error
  try:
    return data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = data[: error.start].count(b"\n") + 1
    raise InputError(
      f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}); convert the file to UTF-8"
    ) from error


@functools.cache  # a pipe can be read only once
def _standard_input() -> bytes:
  return sys.stdin.buffer.read()


def _delimited(
  path: str, rows: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[str, dict[str, str]]]:
  header = next(rows, (0, []))[1]
  if not header:
    raise InputError(f"{path}: empty; the first line should name the columns")
  for number, cells in rows:
    if len(cells) != len(header):
      raise InputError(
        f"{path}:{number}: {len(cells)} columns where the first line names {len(header)}: {', '.join(header)}"
      )
    yield f"{path}:{number}", dict(zip(header, cells, strict=True))


def _csv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
  csv.field_size_limit(2**31 - 1)  # whole documents in a cell
  reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
  begin = 1
  try:
    for cells in reader:
      if any(cells):
        yield begin, cells
      begin = reader.line_num + 1  # a quoted cell may run over several lines
  except csv.Error as error:
    raise InputError(f"{path}:{begin}: not CSV: {error}") from error


def _json_lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
  for number, line in read_lines(path):
    try:
      record = json.loads(line)
    except ValueError as error:
      raise InputError(f"{path}:{number}: not JSON: {error}") from error
    if not isinstance(record, dict):
      raise InputError(f"{path}:{number}: should be one JSON object a line")
    yield f"{path}:{number}", record


def _label(value: Any) -> str:
  return value if isinstance(value, str) else json.dumps(value)
