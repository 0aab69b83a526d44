"""Text of files, folders, JSON lines, TensorFlow Datasets or the embedded default: documents of
clean paragraphs.
"""

import functools
import glob
import gzip
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpt_jax.errors import InputError

SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")  # what is read of a folder
PIECE = 1 << 19  # characters; longer documents are read in pieces of about this size
SAMPLE = 1 << 18  # characters that show whether lines are wrapped
_UNREADABLE = (OSError, EOFError, zlib.error)  # what a damaged file raises, compressed or not


class Source(NamedTuple):
  """One file, or one named data set; `size` in bytes on disk, 0 where that is not known before
  reading.
  """

  name: str
  size: int


class Piece(NamedTuple):
  """A stretch of a document.

  Attributes:
    text: as it was read, except that line ends are "\\n".
    width: where its lines are wrapped, see wrap_width.
    joint: what stands between it and the document's next piece when both are clean: "\\n" between
      paragraphs, " " between words, "" inside a word.
    last: it ends its document.
  """

  text: str
  width: int | None
  joint: str
  last: bool


def find(source: str) -> list[Source]:
  """The files or data sets that a file name, glob, folder, "tfds:NAME" or "embedded" stands for, in
  a fixed order.

  Raises:
    InputError: there is none.
  """
  if source == "embedded" or source.startswith("tfds:"):
    return [Source(source, 0)]
  if os.path.isdir(source):
    paths = glob.glob(os.path.join(glob.escape(source), "**"), recursive=True)
    paths = [path for path in paths if path.endswith(SUFFIXES) and os.path.isfile(path)]
    if not paths:
      raise InputError(
        f"{source}: no {', '.join(SUFFIXES)} file in this folder; give a glob for files of other names"
      )
  elif os.path.exists(source):
    paths = [source]
  else:
    paths = [path for path in glob.glob(source, recursive=True) if os.path.isfile(path)]
    if not paths:
      fault = "no file matches" if glob.has_magic(source) else "no such file or folder"
      raise InputError(
        f"{source}: {fault}; a source is a file, a glob, a folder, tfds:NAME or embedded"
      )
  return [Source(path, os.path.getsize(path)) for path in sorted(paths)]


def documents(source: str, *, field: str = "text") -> Iterator[str]:
  """The documents of a source as they were read: a text file is one, a row of the field in JSON
  lines or TFDS is one.

  Raises:
    InputError: what cannot be read, with file and line or byte.
  """
  for found in find(source):
    for chunks in _chunks(found.name, field):
      if text := "".join(chunks).strip():
        yield text


def pieces(name: str, *, field: str = "text") -> Iterator[Piece]:
  """The documents of one found source, none of them blank, the long ones in pieces: memory does
  not grow with them.
  """
  for chunks in _chunks(name, field):
    rest, begun = "", False
    for chunk in itertools.chain.from_iterable(_split(chunk) for chunk in chunks):
      if len(rest) >= PIECE:
        width = wrap_width(
          rest
        )  # of each piece: a long file may be many books, one after the other
        at, joint = cut(rest, PIECE, width)
        yield Piece(rest[:at], width, joint, last=False)
        rest, begun = rest[at:], True
      rest += chunk if begun or rest else chunk.lstrip("\ufeff \t\r\n")
    if begun or rest:
      yield Piece(rest.rstrip(), wrap_width(rest), joint="", last=True)


def cut(text: str, at: int, width: int | None) -> tuple[int, str]:
  """The last place up to `at` where a paragraph ends, else a word, with the joint between the
  parts, see Piece.
  """
  end = text.rfind("\n", 0, at)
  for _ in range(1000):  # lines; a longer paragraph is cut between words
    if end <= 0:
      break
    begin = text.rfind("\n", 0, end)
    if width is None or not _continues(
      text[begin + 1 : end], text[end + 1 : end + 1000].partition("\n")[0], width
    ):
      return end + 1, "\n"
    end = begin
  words = max(text.rfind(space, 0, at) for space in " \n\t")
  return (words + 1, " ") if words > 0 else (at, "")


def clean(text: str) -> str:
  """Paragraphs, one a line, without byte-order marks, repeated spaces or (with ftfy installed)
  mis-decoded letters.
  """
  text = _plain_line_ends(text)
  return clean_piece(text, wrap_width(text))


def clean_piece(text: str, width: int | None) -> str:
  """The same for a part of a document whose lines are wrapped at `width`, as wrap_width says of
  the whole.
  """
  paragraphs = (
    " ".join(paragraph.split()) for paragraph in _paragraphs(text.replace("\ufeff", ""), width)
  )
  fix = _ftfy()[1]
  fixed = (
    line if line.isascii() and "&" not in line else " ".join(fix(line).split())
    for line in paragraphs
  )
  return "\n".join(line for line in fixed if line)


def cleaner() -> str:
  """What repairs mis-decoded letters, for the record: ftfy and its version, or "none"."""
  return _ftfy()[0]


def wrap_width(text: str) -> int | None:
  """Where the lines of a text were wrapped; None where each line is a paragraph.

  A line that begins in lower case mostly continues the one before. Where many lines do, and the
  length that broke them (of the line, plus the first word that did not fit) is nearly the same
  everywhere, the text is wrapped. The width is the 10th percentile of that length; over 98 novels
  it is within 4 of the median for the regularly wrapped.
  """
  lines = [line.strip() for line in text[:SAMPLE].split("\n")]
  pairs = [pair for pair in itertools.pairwise(lines) if all(pair)]
  reaches = sorted(_reach(above, below) for above, below in pairs if below[0].islower())
  if (
    len(reaches) < 4 or len(reaches) < 0.4 * len(pairs) or len(pairs) < 0.2 * sum(map(bool, lines))
  ):
    return None
  low, high = reaches[len(reaches) // 10], reaches[len(reaches) * 9 // 10]
  return low if low >= max(30, 0.6 * high) and high <= 200 else None


def _reach(above: str, below: str) -> int:
  """How long the line would have been with the next line's first word."""
  return len(above) + 1 + len(below.split(None, 1)[0])


def _continues(above: str, below: str, width: int) -> bool:
  """Whether, in wrapped text, a line goes on in the next: the next word did not fit, or is not the
  first of a sentence.

  So a verse, a heading or the end of a paragraph stands for itself also where no blank line
  follows.
  """
  if not above.strip() or not below.strip() or (below[0].isspace() and not above[0].isspace()):
    return False
  return below.lstrip()[0].islower() or _reach(above.strip(), below) >= width


def _paragraphs(text: str, width: int | None) -> Iterator[str]:
  lines = text.split("\n")
  if width is None:
    yield from lines
    return
  paragraph = lines[0].strip()
  for above, below in itertools.pairwise(lines):
    if _continues(above, below, width):
      hyphenated = (
        paragraph[-1] == "-" and paragraph[-2:-1].isalpha() and below.lstrip()[0].islower()
      )
      paragraph += ("" if hyphenated else " ") + below.strip()
    else:
      yield paragraph
      paragraph = below
  yield paragraph


@functools.cache
def _ftfy():
  try:
    import ftfy
  except ImportError:
    return "none", lambda text: text
  config = ftfy.TextFixerConfig(explain=False)
  return f"ftfy {ftfy.__version__}", lambda text: ftfy.fix_text(text, config)


def _plain_line_ends(text: str) -> str:
  return text.replace("\r\n", "\n").replace("\r", "\n")


def _split(chunk: str) -> Iterable[str]:
  return (chunk[i : i + PIECE] for i in range(0, len(chunk), PIECE))


def _chunks(name: str, field: str) -> Iterator[Iterable[str]]:
  """Each document of a source, as chunks of text."""
  if name == "embedded":
    from gpt_jax.data import storyworld

    yield from ([text] for text in storyworld.documents())
  elif name.startswith("tfds:"):
    yield from ([_plain_line_ends(text)] for text in _tfds(name.removeprefix("tfds:"), field))
  elif name.removesuffix(".gz").endswith((".jsonl", ".json")):
    yield from ([_plain_line_ends(text)] for text in _json_lines(name, field))
  else:
    yield _text_file(name)


def _open(path: str):
  try:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _text_file(path: str) -> Iterator[str]:
  """The text of a file in chunks that end with a line, or, where lines are long, with a
  character.
  """
  with _open(path) as file:
    place, left = 0, b""
    try:
      while block := file.read(PIECE):
        block = left + block
        end = block.rfind(b"\n") + 1 or _whole_characters(block)
        yield _plain_line_ends(_decode(block[:end], path, place))
        place, left = place + end, block[end:]
    except _UNREADABLE as error:
      raise InputError(f"{path}: cannot be read to its end ({error})") from error
    yield _plain_line_ends(_decode(left, path, place))


def _whole_characters(block: bytes) -> int:
  """Bytes of a block up to its last whole character (or space, where one is near)."""
  space = block.rfind(b" ", len(block) - 1000)
  if space >= 0:
    return space + 1
  end = len(block)
  while end and block[end - 1] & 0xC0 == 0x80:
    end -= 1
  return max(0, end - 1) or len(block)


def _decode(block: bytes, path: str, place: int) -> str:
  try:
    return block.decode("utf-8-sig" if place == 0 else "utf-8")
  except UnicodeDecodeError as error:
    encoding = (
      "UTF-16" if block[:2] in (b"\xff\xfe", b"\xfe\xff") and place == 0 else "WINDOWS-1252"
    )
    raise InputError(
      f"{path}: not UTF-8 at byte {place + error.start}; convert it, for example: "
      f"iconv -f {encoding} -t UTF-8 FILE > NEW"
    ) from error


def _whole(file: Iterable[bytes], path: str) -> Iterator[bytes]:
  try:
    yield from file
  except _UNREADABLE as error:
    raise InputError(f"{path}: cannot be read to its end ({error})") from error


def _json_lines(path: str, field: str) -> Iterator[str]:
  with _open(path) as file:
    place = 0
    for number, line in enumerate(_whole(file, path), start=1):
      text = _decode(line, path, place)
      place += len(line)
      if not text.strip():
        continue
      try:
        row = json.loads(text)
      except ValueError as error:
        raise InputError(
          f"{path}:{number}: not JSON ({error}); each line should be one object"
        ) from error
      if not isinstance(row, dict) or not isinstance(row.get(field), str):
        there = (
          f"its fields: {', '.join(map(repr, row))}"
          if isinstance(row, dict)
          else "it is not an object"
        )
        raise InputError(
          f"{path}:{number}: no text in field {field!r} ({there}); name another with --field"
        )
      yield row[field]


def _tfds(name: str, field: str) -> Iterator[str]:
  """A text feature of a data set, "NAME", "NAME/CONFIG", either with "/SPLIT" (train where none
  is named).
  """
  try:
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text  # registers glue and others
  except ImportError as error:
    raise InputError("tfds: needs tensorflow-datasets: pip install tensorflow-datasets") from error
  base, _, last = name.rpartition("/")
  base, split = (
    (base, last) if last in ("train", "validation", "test", "unsupervised") else (name, "train")
  )
  try:
    builder = tfds.builder(base, file_format="array_record")
    builder.download_and_prepare()
    rows = builder.as_data_source(split=split)
  except (
    tfds.core.registered.DatasetNotFoundError
  ) as error:  # it goes on with the names of all there are
    raise InputError(
      f"tfds:{name}: TFDS has no data set {base!r}; its catalog has the names"
    ) from error
  except Exception as error:  # whatever else goes wrong there: no network, no such split
    raise InputError(f"tfds:{name}: {' '.join(str(error).split())[:300]}") from error
  if field not in builder.info.features:
    raise InputError(
      f"tfds:{name}: no field {field!r}; its fields: {', '.join(builder.info.features)} (--field)"
    )
  for row in rows:
    text = row[field]
    yield text.decode() if isinstance(text, bytes) else str(text)
