"""Servers for gs:// and s3:// on loopback: an emulator each, in a process of its own."""

import contextlib
import http.client
import http.server
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>"
PROGRAMS = os.path.dirname(sys.executable)


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@contextlib.contextmanager
def serve(command: list[str], port: int) -> Iterator[None]:
  """Runs a server until the end of the block, which begins when it accepts connections."""
  server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  try:
    deadline = time.monotonic() + 60
    while True:
      try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        break
      except OSError:
        assert server.poll() is None, f"{command[0]} ended with {server.returncode}"
        assert time.monotonic() < deadline, f"{command[0]} does not answer"
        time.sleep(0.1)
    yield
  finally:
    server.kill()
    server.wait()


@contextlib.contextmanager
def gcs_server() -> Iterator[dict[str, str]]:
  """Serves the bucket gs://bucket; yields the environment of its clients."""
  port = free_port()
  script = os.path.join(os.path.dirname(__file__), "gcs_server.py")
  with serve([sys.executable, script, str(port)], port):
    yield gcs_environment(port)


def gcs_environment(port: int) -> dict[str, str]:
  url = f"http://127.0.0.1:{port}"
  return {
    "STORAGE_EMULATOR_HOST": url,  # read by gcsfs; the next by tensorstore
    "TENSORSTORE_GCS_HTTP_URL": url,
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
    "FSSPEC_GCS_TOKEN": "anon",
  }


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
  """Serves S3 without buckets; yields the environment of its clients."""
  port = free_port()
  with serve([f"{PROGRAMS}/moto_server", "-H", "127.0.0.1", "-p", str(port)], port):
    yield s3_environment(port)


def s3_environment(port: int) -> dict[str, str]:
  return {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
  }


class Faults:
  """A proxy before a server: some requests get 429, 503 or a connection that is dropped.

  Attributes:
    port: where it listens.
    injected: how many requests it failed.
    rate: the share of requests that it fails.
    refused: how many writes of an object that `refuse` matches get 400, which no package repeats.
    begin: a pattern of objects; the first request for one, and all after it, are failed.
    kinds: what it does to a request. "stale": a listing is answered as it was when it was asked for
      first; "missing": an object that is there is not found, once; "flipped": a bit of an object's
      content is another; "expired": the user's sign-in has run out.
  """

  def __init__(
    self,
    port: int,
    rate: float,
    seed: int = 0,
    refuse: str = "",
    refused: int = 0,
    kinds: Sequence[int | str] = (429, 503, "dropped"),
    begin: str = "",
  ):
    self.rate, self.injected, self.kinds = rate, 0, kinds
    self._listings: dict[str, tuple] = {}
    self._missed: set[str] = set()
    self.refused = refused
    self._random = random.Random(seed)
    faults = self

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = "HTTP/1.1"

      def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = f"{self.path} {body[:1000]!r}"  # gcsfs names the object in the body
        if begin and re.search(begin, asked):
          faults.rate = 1
        kind = faults.choose()
        if self.command == "POST" and faults.refused and re.search(refuse, asked):
          faults.refused -= 1
          kind = 400
        if kind == "dropped":
          self.close_connection = True
          return
        if kind == "expired":
          kind = 401
          if "/storage/" not in self.path:  # s3://
            self.answer(400, [], EXPIRED)
            return
        if isinstance(kind, int):
          self.answer(kind, [], b'{"error": {"message": "injected"}}')
          return
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        server.request(self.command, self.path, body, dict(self.headers))
        response = server.getresponse()
        content = response.read()
        answer = response.status, response.getheaders(), content
        self.answer(*faults.replace(kind, self.command, self.path, answer))
        server.close()

      def answer(self, status, headers, content):
        self.send_response(status)
        for name, value in headers:
          if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            self.send_header(name, value)
        # The answer to HEAD has the length of what it does not send.
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", lengths[0] if is_head and lengths else len(content))
        self.end_headers()
        self.wfile.write(content)

      def log_message(self, *_):
        pass

      do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = forward

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self._server.daemon_threads = True
    self._server.handle_error = lambda *_: None  # a client that has gone
    self.port = self._server.server_address[1]
    self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

  def choose(self):
    if self._random.random() >= self.rate:
      return None
    kind = self._random.choice(self.kinds)
    # These are counted where they change a thing.
    self.injected += kind not in ("stale", "missing", "flipped")
    return kind

  def replace(self, kind, command, path, answer):
    """The answer to give in place of the server's."""
    if command not in ("GET", "HEAD") or answer[0] not in (200, 206):
      return answer
    given, name = answer, path.partition("?")[0]
    if name.endswith("/o") or "list-type=" in path:
      earlier = self._listings.setdefault(path, answer)
      given = earlier if kind == "stale" else answer
    elif kind == "missing" and name not in self._missed and ("/o/" in name or len(name) > 8):
      self._missed.add(name)
      given = 404, [], b"<Error><Code>NoSuchKey</Code></Error>"
    elif kind == "flipped" and answer[2] and ("alt=media" in path or "/storage/" not in path):
      status, headers, content = answer
      bit = self._random.randrange(8 * len(content))
      damaged = bytearray(content)
      damaged[bit // 8] ^= 1 << bit % 8
      given = status, headers, bytes(damaged)
    self.injected += given[2] != answer[2]
    return given

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._server.shutdown()
    self._server.server_close()
