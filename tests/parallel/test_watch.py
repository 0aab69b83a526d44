"""Watching the processes of a run: the missing, strangers, and who ends last."""

import socket
import threading
import warnings

import pytest

from gpt_jax.parallel import watch


@pytest.fixture
def process_0(monkeypatch, request):
  """Process 0 of three, which waits so many seconds for the others; gives the port that they
  connect to.
  """
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


def test_process_0_ends_last(monkeypatch, capfd):
  """Without it, JAX would end the others with pages of C++, perhaps before their line."""
  ended = threading.Event()

  def end(code):
    assert code == 1
    ended.set()
    threading.Event().wait(30)  # as os._exit, it does not return while the test runs

  monkeypatch.setattr(watch.os, "_exit", end)
  monkeypatch.setattr(watch.jax, "process_count", lambda: 3)
  with socket.create_server(("127.0.0.1", 0)) as server:
    theirs = [connect(server.getsockname()[1], b"") for _ in range(2)]
    mine = [server.accept()[0] for _ in range(2)]
  watch._Peers({1: mine[0], 2: mine[1]})
  theirs[1].close()
  told = theirs[0].makefile().readline()
  assert told.startswith("process 2 of 3 is lost; ") and not ended.wait(0.5)
  theirs[0].close()
  assert ended.wait(30)
  assert capfd.readouterr().err == f"error: {told}"
  for connection in (*mine, *theirs):
    connection.close()
