"""Reading a zstd-compressed file as a stream of bytes."""

import io
from typing import Any

from gpt_jax.errors import InputError

CHUNK = 1 << 10  # compressed bytes; zstd makes up to 33,000 times as many of them


def open_zstd(stored: io.BufferedIOBase, path: str) -> io.BufferedIOBase:
  """The decompressed content of an open file.

  Raises:
    InputError: zstandard is not installed.
    EOFError: when it is read, the file is damaged or truncated; with the compressed byte.
  """
  try:
    import zstandard
  except ImportError as error:
    raise InputError(f"{path}: needs zstandard: pip install 'gpt_jax[zstd]'") from error
  return io.BufferedReader(_ZstdReader(stored, zstandard), buffer_size=1 << 17)


class _ZstdReader(io.RawIOBase):
  """zstandard's own reader ends without an error where a file is truncated; this one does not."""

  def __init__(self, stored: io.BufferedIOBase, zstandard: Any):
    self._stored = stored
    self._decompressor = zstandard.ZstdDecompressor()
    self._error = zstandard.ZstdError
    self._frame: Any = None  # what decompresses the current frame; None between frames
    self._pending = memoryview(b"")  # decompressed
    self._rest = b""  # compressed, of the next frame
    self._position = 0  # compressed bytes that were read

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    while not self._pending:
      chunk = self._rest or self._stored.read(CHUNK)
      self._position += 0 if self._rest else len(chunk)
      self._rest = b""
      if not chunk:
        if self._frame is not None:
          raise EOFError(f"truncated at compressed byte {self._position:,}")
        return 0
      self._pending = memoryview(self._decompress(chunk))
    count = min(len(buffer), len(self._pending))
    buffer[:count] = self._pending[:count]
    self._pending = self._pending[count:]
    return count

  def _decompress(self, chunk: bytes) -> bytes:
    if self._frame is None:
      self._frame = self._decompressor.decompressobj()
    try:
      content = self._frame.decompress(chunk)
    except self._error as error:
      raise EOFError(f"damaged before compressed byte {self._position:,}: {error}") from error
    if self._frame.eof:
      # A file may be several frames in a row, as parallel compressors write it.
      self._rest, self._frame = self._frame.unused_data, None
    return content
