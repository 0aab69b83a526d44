"""Opening, splitting and decoding files of text, compressed by gzip or zstd or not."""

import contextlib
import errno
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

from gpt_jax.errors import InputError, MissingInput, require
from gpt_jax.files import open_regular

# Bytes, five times "War and Peace". A line of JSON takes up to 30 times as much once it is parsed,
# and a compressed one of gigabytes fits into a small file.
MAX_LINE = 16 << 20
_UTF16, _MAX_UTF16 = (b"\xff\xfe", b"\xfe\xff"), 1 << 27  # bytes, which are converted as a whole
CHUNK = 1 << 10  # compressed bytes; zstd makes up to 33,000 times as many of them
# Not one encoding by name: Windows-1252 is read where a table is surely in it.
_CONVERT = "convert it: iconv -f ENCODING -t utf-8 FILE > NEW, such as cp1252 or cp1251"
_DROP = "it ends inside a character: iconv -c -f utf-8 -t utf-8 FILE > NEW drops what is left of it"
# What texts in Windows-1252 have beyond ASCII: letters of one of these languages, and marks.
_ALPHABETS = (
  "àáâäæçèéêëîïñóôöœùûüßÿ",  # German, French, Dutch
  "àáçèéêìíîïñòóôöùúü",  # Spanish, Catalan, Italian
  "àáâãçéêíóôõúü",  # Portuguese
  "àáäåæèéêóôöøü",  # Danish, Norwegian, Swedish
  "äåéöõüšž",  # Finnish, Estonian
  "áæéíóöøúýþð",  # Icelandic, Faroese
)
_INSIDE, _OUTSIDE = "‘’´·\xad", "€‚„…‹“”•–—›™¡¢£¥§©ª«®°±²³¹º»¼½¾¿×"  # of words
_MARKS = {*_INSIDE, *_OUTSIDE, *"µ\xa0"}
_WORD = re.compile(rf"[^\W\d_]+(?:[{_INSIDE}{_OUTSIDE}]+[^\W\d_]+)*")
# As words of other encodings look: no letter of ASCII, a capital after a small letter, a mark.
_STRANGE = re.compile(rf"[^\x00-\x7f]{{2,}}|.*[a-z][À-ÖØ-ÞŠŒŽŸ].*|.*[^\W\d_][{_OUTSIDE}].+")


@contextlib.contextmanager
def open_bytes(path: str, content: bytes | None = None) -> Iterator[io.BufferedIOBase]:
  """A file to read, or a pipe's content, decompressed if the name ends in .gz or .zst; if it is in
  UTF-16, in UTF-8 with a byte order mark.
  """
  try:
    stored: Any = open_regular(path) if content is None else io.BufferedReader(io.BytesIO(content))
  except FileNotFoundError as error:
    raise MissingInput(f"{path}: {os.strerror(errno.ENOENT)}") from error
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise InputError(f"{path}: cannot be read ({reason})") from error
  with stored:
    try:
      yield _decompressed(stored, path)
    except UnicodeDecodeError as error:
      raise InputError(f"{path}: not UTF-16 ({error.reason}); convert it to UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
      raise InputError(f"{path}: cannot be read to its end ({error})") from error


def lines(file: io.BufferedIOBase, path: str) -> Iterator[tuple[int, str]]:
  """(number from 1, text with its line end) of each line."""
  number, offset = 1, 0
  while line := file.readline(MAX_LINE + 1):
    if len(line) > MAX_LINE:
      fault = f"the line has more than {MAX_LINE:,} bytes, the limit; split it"
      raise InputError(f"{path}:{number}: {fault}")
    text = decode(line, path, offset)
    if number == 1 and not text.endswith("\n"):  # the whole file
      yield from enumerate(io.StringIO(with_line_feeds(text)), 1)
      return
    yield number, text
    number, offset = number + 1, offset + len(line)


def with_line_feeds(text: str) -> str:
  """The text of a file, whose lines may end in carriage returns alone, as on old Macs."""
  return text if "\n" in text else text.replace("\r", "\n")


def without_compression(path: str) -> str:
  """The name of what a compressed file holds: "a.jsonl" of "a.jsonl.zst"."""
  stem, suffix = os.path.splitext(path)
  return stem if suffix.lower() in (".gz", ".zst") else path


def _decompressed(stored: io.BufferedReader, path: str) -> io.BufferedIOBase:
  """The content of an open file, see open_bytes. Raises UnicodeDecodeError for bad UTF-16."""
  suffix = os.path.splitext(path)[1].lower()
  file: Any = stored
  if suffix == ".gz":
    file = gzip.GzipFile(fileobj=stored)
  elif suffix == ".zst":
    file = open_zstd(stored, path)
  if file.peek(4)[:2] not in _UTF16 or file.peek(4)[2:4] == b"\0\0":  # UTF-32
    return file
  content = file.read(_MAX_UTF16 + 1)
  if len(content) > _MAX_UTF16:
    raise OSError(f"UTF-16 of more than {_MAX_UTF16:,} bytes, the limit; convert it to UTF-8")
  return io.BytesIO(content.decode("utf-16").encode("utf-8-sig"))


def decode(block: bytes, path: str, offset: int) -> str:
  """The text of a block that begins at byte `offset` of a file, without a byte-order mark."""
  if offset == 0 and (kind := describe_binary(block)):
    raise InputError(f"{path}: {kind}")
  try:
    return block.decode("utf-8-sig" if offset == 0 else "utf-8")
  except UnicodeDecodeError as error:
    place = f"{path}: not UTF-8 at byte {offset + error.start}"
    raise InputError(f"{place}; {how_to_convert(block)}") from error


def how_to_convert(content: bytes) -> str:
  """Advice on bytes that are not UTF-8."""
  if b"\0" in content:
    return "binary, not text: it has bytes that are 0"
  try:
    content.decode()
  except UnicodeDecodeError as error:
    # Of a file in another encoding more than its last letter would be wrong.
    is_cut = error.reason == "unexpected end of data" and not content[: error.start].isascii()
    return _DROP if is_cut else _CONVERT
  return _CONVERT


def windows_1252(content: bytes) -> tuple[str, str]:
  """The text of a file in Windows-1252, as Excel writes CSV, and a word that shows it; ("", "") if
  it may as well be in another encoding, such as that of Czech, of Russian, of DOS or of the Mac.
  """
  try:
    text = content.decode("cp1252")
  except UnicodeDecodeError:  # five bytes are no characters
    return "", ""
  beyond = [mark for mark in {*text} if mark > "\x7f"]
  letters = {mark.lower() for mark in beyond if mark not in _MARKS}
  is_known = b"\0" not in content and any(letters <= {*alphabet} for alphabet in _ALPHABETS)
  words = [word for word in _WORD.findall(text) if not word.isascii()]
  strange = sum(bool(_STRANGE.fullmatch(word)) for word in words)
  if not is_known or 5 * strange > len(words):  # a few, such as "äöü", may be there
    return "", ""
  return text, (words or beyond)[0]


def open_zstd(stored: io.BufferedIOBase, path: str) -> io.BufferedReader:
  """The decompressed content of an open file; reading raises EOFError where that is damaged."""
  zstandard = require("zstandard", f"{path}:", "zstandard", "zstd")
  return io.BufferedReader(_Reader(_unzstd(stored, zstandard)), buffer_size=1 << 17)


def _unzstd(stored: io.BufferedIOBase, zstandard: Any) -> Iterator[bytes]:
  """zstandard's own reader ends without an error where a file is truncated; this one does not."""
  decompressor, position = zstandard.ZstdDecompressor(), 0  # compressed bytes that were read
  frame: Any = None  # what decompresses the current frame; None between frames
  while chunk := stored.read(CHUNK):
    position += len(chunk)
    while chunk:
      frame = frame or decompressor.decompressobj()
      try:
        yield frame.decompress(chunk)
      except zstandard.ZstdError as error:
        raise EOFError(f"damaged before compressed byte {position:,}: {error}") from error
      chunk = b""
      if frame.eof:
        # A file may be several frames in a row, as parallel compressors write it.
        chunk, frame = frame.unused_data, None
  if frame is not None:
    raise EOFError(f"truncated at compressed byte {position:,}")


class _Reader(io.RawIOBase):
  """The bytes of an iterator as a file."""

  def __init__(self, chunks: Iterator[bytes]):
    self._chunks, self._pending = chunks, memoryview(b"")
    self._error: Exception | None = None

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    while not self._pending:
      if self._error:  # the iterator, which has raised it, would only end
        raise self._error
      try:
        chunk = next(self._chunks, None)
      except (OSError, EOFError) as error:
        self._error = error
        raise
      if chunk is None:
        return 0
      self._pending = memoryview(chunk)
    count = min(len(buffer), len(self._pending))
    buffer[:count] = self._pending[:count]
    self._pending = self._pending[count:]
    return count


def describe_binary(head: bytes) -> str:
  """The kind of a binary file by its first bytes, and what to do; "" if they do not say."""
  known = {
    b"PAR1": "a Parquet file; give it by its path, or convert it to JSON lines",
    b"\xff\xfe\0\0": "UTF-32; convert it to UTF-8",
    b"PK\x03\x04": "a zip archive, or an Excel workbook; save it as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file; save it as CSV or text",
    b"\x1f\x8b": "compressed; decompress it first",
    b"(\xb5/\xfd": "compressed by zstd; decompress it, or name it .txt.zst or .jsonl.zst",
    b"%PDF": "a PDF; convert it to text",
    b"BZh9": "compressed by bzip2; decompress it first",
    b"\xfd7zXZ": "compressed by xz; decompress it first",
    b"ARROW1": "an Arrow file; write it as Parquet or JSON lines",
    b"\xff\xff\xff\xff": "an Arrow stream; write it as Parquet or JSON lines",
  }
  other = "binary, or UTF-16 without its byte-order mark; convert it to UTF-8"
  default = other if b"\0" in head[:4] else ""
  if head[257:262] == b"ustar":
    return "a tar archive; unpack it and give the folder"
  return next((kind for magic, kind in known.items() if head.startswith(magic)), default)
