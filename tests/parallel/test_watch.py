"""Watching the processes of a run: the missing, strangers, and who ends last."""

import queue
import socket
import threading
import warnings

import pytest

from gpt_jax.parallel import watch


@pytest.fixture
def process_0(monkeypatch, request):
  """Process 0 of three, which waits so many seconds for the others; gives its port."""
  ports: list[int] = []
  known = threading.Event()

  def broadcast(address):
    ports.append(int(address[-1]))
    known.set()
    return address

  monkeypatch.setattr(watch.jax, "process_count", lambda: 3)
  monkeypatch.setattr(watch.multihost_utils, "broadcast_one_to_all", broadcast)
  monkeypatch.setattr(watch, "_CONNECTING", request.param)
  monkeypatch.setattr(watch, "_own_address", lambda: "127.0.0.1")
  result = {}

  def accept():
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      result["connections"] = watch._accept()
      result["warnings"] = [str(warning.message) for warning in caught]

  thread = threading.Thread(target=accept)
  thread.start()
  assert known.wait(30)

  def join():
    thread.join(30)
    return result

  yield ports[0], join
  for connection in result.get("connections", {}).values():
    connection.close()


def connect(port, words):
  connection = socket.create_connection(("127.0.0.1", port))
  connection.sendall(words)
  return connection


@pytest.mark.parametrize("process_0", [60], indirect=True)
def test_strangers_take_no_place(process_0):
  port, join = process_0
  others = [connect(port, b"GET / HTTP/1.1\r\n"), connect(port, b"7\n"), connect(port, b"")]
  others[2].close()
  mine = [connect(port, b"2\n"), connect(port, b"1\n")]
  result = join()
  assert sorted(result["connections"]) == [1, 2] and not result["warnings"]
  for connection in (*others, *mine):
    connection.close()


@pytest.mark.parametrize("process_0", [1], indirect=True)
def test_a_process_that_cannot_connect_is_not_watched(process_0):
  port, join = process_0
  mine = connect(port, b"2\n")
  result = join()
  assert sorted(result["connections"]) == [2]
  assert result["warnings"] == ["the loss of process 1 will be noticed late"]
  mine.close()


@pytest.mark.parametrize(
  "host, address", [("127.0.0.1", "127.0.0.1"), ("localhost", "0.0.0.0"), ("192.0.2.1", "0.0.0.0")]
)
def test_process_0_listens_where_the_others_connect(host, address):
  """At all its addresses only for a name, and for an address that is a router's."""
  with watch._listen(host) as server:
    assert server.getsockname()[0] == address


@pytest.fixture
def peers(monkeypatch):
  """Process 0 of three, its connections as the others have them, and the exit code that comes."""
  codes: queue.Queue[int] = queue.Queue()

  def end(code):
    codes.put(code)
    threading.Event().wait()  # like os._exit it does not return

  monkeypatch.setattr(watch.os, "_exit", end)
  monkeypatch.setattr(watch.jax, "process_count", lambda: 3)
  with socket.create_server(("127.0.0.1", 0)) as server:
    theirs = [connect(server.getsockname()[1], b"") for _ in range(2)]
    mine = [server.accept()[0] for _ in range(2)]
  yield watch._Peers({1: mine[0], 2: mine[1]}), theirs, codes
  for connection in (*mine, *theirs):
    connection.close()


def test_process_0_ends_last(peers, monkeypatch, capfd):
  """Without it, JAX would end the others with pages of C++, perhaps before their line."""
  _, (first, second), codes = peers
  for name in ("process_index", "process_count"):  # JAX may be on its way out
    monkeypatch.delattr(watch.jax, name)
  second.sendall(b"of a stranger\n")  # is not told
  second.close()
  told = first.makefile().readline()
  assert told.startswith("process 2 of 3 is lost; ")
  with pytest.raises(queue.Empty):
    codes.get(timeout=0.5)
  first.close()
  assert codes.get(timeout=30) == 1
  assert capfd.readouterr().err == f"error: {told}"


def test_a_failure_keeps_its_exit_code(peers, monkeypatch, capfd):
  """The process has printed why, and JAX would wait for those that are gone."""
  monkeypatch.setattr(watch, "_GRACE", 0.1)
  process, (first, second), codes = peers
  process.tell_end(2)
  assert first.makefile().readline() == "failed\n"
  second.close()
  assert codes.get(timeout=30) == 2
  assert capfd.readouterr().err == ""
