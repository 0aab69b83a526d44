"""Watching the processes of a run: who is missing or a stranger does no harm."""

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
