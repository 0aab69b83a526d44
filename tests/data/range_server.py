"""A server of the part of Google Cloud Storage that readers use, for large objects and faults."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Faults:
  """Which requests fail.

  Attributes:
    pending: 429, 503 or 0 (a connection that is closed without an answer), for the next requests
      for content.
    requests: (object, first byte, last byte) of each that was answered.
  """

  def __init__(self):
    self.pending: list[int] = []
    self.requests: list[tuple[str, int, int]] = []


@contextlib.contextmanager
def serve_ranges(sizes: dict[str, int], read: Callable) -> Iterator[tuple[str, Faults]]:
  """Serves objects of any size, of which no more is made than is asked for.

  Args:
    sizes: of the objects of gs://bucket, by name.
    read: read(name, start, stop) -> bytes.

  Yields:
    The URL of the server, for STORAGE_EMULATOR_HOST; and what goes wrong.
  """
  faults = Faults()

  class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
      url = urlsplit(self.path)
      name = unquote(url.path.partition("/o/")[2])
      if name not in sizes:
        self._answer(404, json.dumps({"error": {"code": 404, "message": "No such object"}}))
        return
      if "alt=media" not in url.query:
        entry = {"name": name, "bucket": "bucket", "size": str(sizes[name]), "generation": "1"}
        self._answer(200, json.dumps(entry | {"updated": "2026-01-01T00:00:00Z"}))
        return
      if faults.pending:
        self._fail(faults.pending.pop(0))
        return
      first, last = 0, sizes[name] - 1
      if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
        first, last = int(asked[1]), min(last, int(asked[2] or last))
      faults.requests.append((name, first, last))
      self._answer(206, read(name, first, last + 1))

    def _fail(self, status: int) -> None:
      if status:
        self._answer(status, json.dumps({"error": {"code": status, "message": "injected"}}))
      else:
        self.close_connection = True

    def _answer(self, status: int, content: str | bytes) -> None:
      content = content.encode() if isinstance(content, str) else content
      self.send_response(status)
      kind = "application/octet-stream" if status == 206 else "application/json"
      self.send_header("Content-Type", kind)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def log_message(self, format, *args):
      pass

  server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.daemon_threads = True
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{server.server_port}", faults
  finally:
    server.shutdown()
    server.server_close()
