"""Ends the processes of a run when one of them is lost, with one line that names it.

JAX notices a lost process too, with pages of C++: process 0 at once, any other after 100 seconds.
Here process 0 holds a TCP connection to every other process. The kernel closes the connection of a
process that dies at once, and keepalive packets find a lost machine within 40 seconds. For a
process that is stopped the kernel answers them; JAX ends the others then.
"""

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

# Sent before a normal exit; before an exit with an error, which the others may meet as well.
_DONE, _FAILED = b"done\n", b"failed\n"
_GRACE = 5  # seconds that they have to meet it, or to end once process 0 has told them to
_CONNECTING = 60  # seconds


def watch(host: str = "") -> Callable[[int], None]:
  """Starts to watch the other processes of the run; every process calls it, and before it ends the
  function that this returns, with its exit code.

  host: name or address of process 0's machine; empty: the address that it sends from.
  """
  if jax.process_index() != 0:
    _delay_abort()
  try:
    peers = _Peers(_accept(host) if jax.process_index() == 0 else _connect(host))
  except OSError as error:  # a firewall between the hosts; JAX still notices, only later
    warnings.warn(f"lost processes will be noticed late: {error}", stacklevel=2)
    return lambda code: None
  return peers.tell_end


def _delay_abort() -> None:
  """Delays abort() so that our message is flushed first: JAX aborts when it loses its connection to
  process 0, at the same moment as the connection here closes.

  The C library's sleep is called as the handler of SIGABRT, with the signal's number as its
  argument: 6 seconds. A handler in Python would not be called.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
  libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _accept(host: str = "") -> dict[int, socket.socket]:
  """Process 0's connections to all others, which connect to `host`; see watch."""
  connections: dict[int, socket.socket] = {}
  expected = set(range(1, jax.process_count()))
  own = _own_address()
  with _listen(host or own) as server:
    address = (*map(int, own.split(".")), server.getsockname()[1])
    multihost_utils.broadcast_one_to_all(np.array(address, np.int32))
    end = time.monotonic() + _CONNECTING
    while missing := expected - connections.keys():
      server.settimeout(max(0.1, end - time.monotonic()))
      try:
        connection, _ = server.accept()
      except TimeoutError:
        names = ", ".join(map(str, sorted(missing)))
        warnings.warn(f"the loss of process {names} will be noticed late", stacklevel=3)
        break
      # Anyone can connect; a process says its number, which must be one that is missing.
      number = _read_number(connection)
      if number in missing:
        connections[number] = connection
      else:  # a stranger
        connection.close()
  return connections


def _listen(host: str) -> socket.socket:
  """Listens at an address of this machine alone; at all of them for a name, which may have several,
  or an address that a router translates.
  """
  with contextlib.suppress(ValueError, OSError):
    return socket.create_server((str(ipaddress.IPv4Address(host)), 0), backlog=jax.process_count())
  return socket.create_server(("", 0), backlog=jax.process_count())


def _connect(host: str) -> dict[int, socket.socket]:
  """Another process's connection to process 0."""
  *numbers, port = multihost_utils.broadcast_one_to_all(np.zeros(5, np.int32)).tolist()
  address = host or ".".join(map(str, numbers))
  connection = socket.create_connection((address, port), timeout=_CONNECTING)
  connection.settimeout(None)
  connection.sendall(b"%d\n" % jax.process_index())
  return {0: connection}


class _Peers:
  """The processes that this one watches: number -> connection."""

  def __init__(self, connections: dict[int, socket.socket]):
    self._connections = connections
    # Asked once: while the process ends, JAX would start its devices anew to answer.
    self._index, self._count = jax.process_index(), jax.process_count()
    self._failed_with = 0  # exit code, once this process has told the others that it fails
    self._lock = threading.Lock()
    for connection in connections.values():
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
      if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    for number in connections:
      threading.Thread(target=self._watch, args=(number,), daemon=True).start()

  def _watch(self, number: int) -> None:
    words = b""
    with contextlib.suppress(OSError):
      while not words.endswith(b"\n") and (content := self._connections[number].recv(100)):
        words += content
    if words.endswith(_DONE):
      return
    who = f"process {number} of {self._count}"
    message = f"{who} is lost; start all of them again with the same command, which resumes the run"
    if words.endswith(_FAILED):
      time.sleep(_GRACE)
      message = f"{who} has ended with an error; see its output"
    elif words and number == 0:  # it tells the others what it has noticed; nobody else may
      message = words.decode(errors="replace").strip()
    with self._lock:  # the first thread ends the process
      if self._failed_with:  # it has said why, and JAX would wait for the others
        time.sleep(_GRACE)
        os._exit(self._failed_with)
      os.write(2, f"error: {message}\n".encode())  # whole, beside what other threads print
      if self._index == 0:
        self._tell(f"{message}\n".encode())
        self._outlive_others()
      os._exit(1)

  def _outlive_others(self) -> None:
    """Waits until they have ended: without process 0, JAX would end them with pages of C++."""
    end = time.monotonic() + _GRACE
    for connection in self._connections.values():
      with contextlib.suppress(OSError):
        connection.settimeout(max(0.1, end - time.monotonic()))
        while connection.recv(100):
          pass

  def tell_end(self, code: int) -> None:
    """Tells the others, before this process ends, whether it does so as it should."""
    # After SIGTERM all processes have saved.
    as_it_should = code in (0, 128 + signal.SIGTERM)
    self._failed_with = 0 if as_it_should else code
    self._tell(_DONE if as_it_should else _FAILED)

  def _tell(self, words: bytes) -> None:
    for connection in self._connections.values():
      with contextlib.suppress(OSError):
        connection.sendall(words)


def _own_address() -> str:
  """The IPv4 address that this machine sends from. Nothing is sent: UDP has no handshake."""
  with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737)
      return probe.getsockname()[0]
    except OSError:  # no network but this machine
      return "127.0.0.1"


def _read_number(connection: socket.socket) -> int:
  """The number of the process that has connected; -1 if it does not say."""
  connection.settimeout(5)
  try:
    words = connection.makefile("rb", buffering=0).readline(10)
    connection.settimeout(None)
    return int(words) if words.endswith(b"\n") else -1
  except (OSError, ValueError):
    return -1
