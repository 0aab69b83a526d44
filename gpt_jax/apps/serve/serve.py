"""A server on this machine: completions as OpenAI's API has them, labels and embeddings."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from gpt_jax.apps.serve.app import make_app
from gpt_jax.apps.serve.engine import Engine
from gpt_jax.apps.serve.fields import Refusal
from gpt_jax.checkpoints.load import load_adapters
from gpt_jax.errors import InputError, require
from gpt_jax.inference.model import Model, load
from gpt_jax.models.decoding_weights import check_kind
from gpt_jax.training.signals import SAVING, handle, leave_closed_terminal

_MAX_CONNECTIONS = 512
_HEADER_SECONDS, _WRITE_SECONDS = 10.0, 30.0
_STOP_SECONDS = 4  # in which connections must end after a signal
_HEADERS = [  # no other site may show the page in a frame and have the user click there
  ("X-Frame-Options", "DENY"),
  ("Content-Security-Policy", "frame-ancestors 'none'"),
  ("X-Content-Type-Options", "nosniff"),
]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(
  checkpoint: str,
  port: int = 8000,
  host: str = "127.0.0.1",
  weights: str = "float32",
  adapters: Sequence[str] = (),
) -> None:
  """Serves a model until a signal of signals.SAVING or Ctrl-C.

  Args:
    checkpoint: see load_any.
    port: TCP port to listen at; 0: any free one.
    host: address to listen at; 0.0.0.0 lets other machines use the model. There is no password.
    weights: float32, bfloat16 or int8: type of the weights of completions and labels; embeddings
      and the labels of adapters are float32.
    adapters: NAME=DIR, an adapter of `checkpoint` that classifies; all share the base's memory.

  Raises:
    SystemExit: with 128 + the signal's number, 143 after SIGTERM.
    KeyboardInterrupt: after Ctrl-C.
  """
  for package in ("starlette", "prometheus_client"):
    require(package, "a server", package, "serve")
  uvicorn = require("uvicorn", "a server", "uvicorn", "serve")
  check_kind(weights)
  with _bind(host, port) as listener:  # before the model is loaded: that may take minutes
    model, name = load(checkpoint), os.path.basename(os.path.abspath(checkpoint))
    adapted = load_adapters(model.network, adapters) if adapters else {}
    classifiers = {key: Model(adapter) for key, adapter in adapted.items()}
    if name in classifiers:
      raise InputError(f"adapter={name}=…: the name of --checkpoint; choose another")
    engine = Engine(model, weights, classifiers)
    print(f"{engine.model!r}: compiling", flush=True)
    if not engine.classifies:
      print(f"/classify: temperature {engine.model.temperature:.3f}", flush=True)
    engine.warm_up()
    engine.start()
    hosts = [*_LOOPBACK, "[::1]"] if host in _LOOPBACK else ["*"]
    config = uvicorn.Config(
      make_app(engine, name, hosts),
      http=make_protocol(_HEADER_SECONDS, _WRITE_SECONDS, _MAX_CONNECTIONS),
      ws="none",
      loop="asyncio",
      lifespan="off",
      log_config=None,
      access_log=False,
      headers=_HEADERS,
      timeout_keep_alive=10,
      timeout_graceful_shutdown=_STOP_SECONDS,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # of clients' faults
    received = _serve(uvicorn.Server(config), listener, engine)
  if received == signal.SIGINT:
    raise KeyboardInterrupt
  if received:
    raise SystemExit(128 + received)


@contextlib.contextmanager
def _bind(host: str, port: int) -> Iterator[socket.socket]:
  """A socket that has the port but does not yet accept connections."""
  if not 0 <= port < 2**16:
    raise InputError(f"--port={port}: must be from 0 to 65,535")
  try:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
  except (OSError, UnicodeError) as error:
    raise InputError(f"--host={host}: not an address of this machine ({error})") from error
  with socket.socket(family) as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind(address)
    except OSError as error:
      taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
      advice = "choose another port, or 0 for any" if taken else "choose an address of this machine"
      message = f"--host={host} --port={port}: {error.strerror or error}; {advice}"
      raise InputError(message) from error
    yield listener


def _serve(server: Any, listener: socket.socket, engine: Engine) -> int | None:
  """Serves until a signal, which it returns; what is queued then is refused."""
  received: list[int] = []

  def stop(number: int, frame: Any) -> None:
    # Ctrl-C or SIGTERM again: at once. A terminal that closes may send SIGHUP twice.
    server.force_exit |= bool(received) and number in (signal.SIGINT, signal.SIGTERM)
    leave_closed_terminal()
    received.append(number)
    server.should_exit = True
    # Not here: the interrupted thread may hold the queue's lock.
    threading.Thread(target=engine.close, daemon=True).start()

  # uvicorn would raise a signal again, which ends the process before its exit code is set.
  server.capture_signals = contextlib.nullcontext
  try:
    listener.listen(_MAX_CONNECTIONS)
  except OSError as error:
    raise InputError(f"--port={listener.getsockname()[1]}: {error.strerror}") from error
  address, port = listener.getsockname()[:2]
  shown = f"[{address}]" if ":" in address else address
  print(f"http://{shown}:{port}/ is ready; Ctrl-C ends it", flush=True)
  if address not in _LOOPBACK:
    print("anyone who reaches this address may use the model: there is no password", flush=True)
  is_main = threading.current_thread() is threading.main_thread()
  with handle(stop, (signal.SIGINT, *SAVING) if is_main else ()):
    server.run(sockets=[listener])
  engine.close()
  engine.join(_STOP_SECONDS)
  return received[0] if received else None


def make_protocol(read_seconds: float, write_seconds: float, most: int) -> type[asyncio.Protocol]:
  """uvicorn's HTTP protocol, with limits on the time for a request's headers, on that for which a
  client may not read what was written for it, and on connections: those beyond get status 503.
  """
  from h11 import IDLE
  from starlette.responses import JSONResponse
  from uvicorn.protocols.http.h11_impl import H11Protocol

  busy = Refusal(f"{most} connections are open already; try again soon", 503, retry_after=1)
  headers = {"Retry-After": str(busy.retry_after), "Connection": "close"}
  refuse = JSONResponse(busy.body, busy.status, headers)

  class Protocol(H11Protocol):
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
      super().connection_made(transport)
      if len(self.connections) > most:  # uvicorn's own limit answers with plain text
        self.app = refuse
      self._watch_headers()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
      for timer in (self._reading, self._writing):
        if timer is not None:
          timer.cancel()
      super().connection_lost(exc)

    def pause_writing(self) -> None:
      super().pause_writing()
      self._writing = self.loop.call_later(write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
      super().resume_writing()
      if self._writing is not None:
        self._writing.cancel()

    def _watch_headers(self) -> None:
      incomplete = self.conn.their_state is IDLE  # h11's name for headers that have not ended
      if incomplete and self._reading is None:
        self._reading = self.loop.call_later(read_seconds, self.transport.abort)
      elif not incomplete and self._reading is not None:
        self._reading.cancel()
        self._reading = None

  return Protocol
