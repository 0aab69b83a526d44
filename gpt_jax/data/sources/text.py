"""Plain text files, one document each."""

from collections.abc import Iterable, Iterator

from gpt_jax.data.file_kinds import TEXT
from gpt_jax.data.sources.utf8 import decode, open_bytes

FORMATS = (TEXT,)
USAGE = "text (any other file), .gz and .zst too"
FOLDER_SUFFIXES: tuple[str, ...] = (".txt", ".txt.gz", ".txt.zst")
BLOCK_SIZE = 1 << 19  # bytes


def reads(name: str) -> bool:
  return name.lower().endswith(FOLDER_SUFFIXES)


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  yield _chunks(name)


def _chunks(path: str) -> Iterator[str]:
  """The text in chunks that end after a line, or within a long line after a word or character."""
  with open_bytes(path) as file:
    offset, rest = 0, b""
    while block := file.read(BLOCK_SIZE):
      block = rest + block
      end = block.rfind(b"\n") + 1 or _end_of_word(block)
      yield decode(block[:end], path, offset)
      offset, rest = offset + end, block[end:]
    yield decode(rest, path, offset)


def _end_of_word(block: bytes) -> int:
  """The bytes up to the last space, if that is near the end, else up to the last character."""
  space = block.rfind(b" ", len(block) - 1000)
  if space >= 0:
    return space + 1
  end = len(block)
  while end and block[end - 1] & 0xC0 == 0x80:  # a continuation byte of UTF-8
    end -= 1
  return max(0, end - 1) or len(block)
