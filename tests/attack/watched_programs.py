"""Runs programs one after another in one process, which is watched; see test_outside.py."""

import http.client
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from in_process import launch
from tiny_budget import TINY

from gpt_jax.apps.compare.budgets import BUDGETS

LOG = os.environ["WATCHED"]  # packages may clear the environment for a while
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def note(text: str) -> None:
  descriptor = os.open(LOG, os.O_RDWR | os.O_APPEND)
  os.write(descriptor, f"{text}\n".encode())
  os.close(descriptor)


def audit(event, arguments):
  """What Python does; the preloaded library sees native code, too, but needs a C compiler."""
  if event == "open" and arguments[2] & WRITING and isinstance(arguments[0], str):
    if arguments[0] != LOG:
      note(f"write {os.path.abspath(arguments[0])}")
  elif event == "socket.connect" and isinstance(arguments[1], tuple):
    note(f"connect {arguments[1][0]}")
  elif event == "socket.getaddrinfo":
    note(f"look up {arguments[0]}")


def end_when_it_answers(port: int) -> None:
  """Sends this process SIGTERM once a server is ready."""
  while True:
    time.sleep(0.1)
    try:
      connection = http.client.HTTPConnection("127.0.0.1", port)
      connection.request("GET", "/")
      connection.getresponse().read()
      break
    except OSError:
      pass
  os.kill(os.getpid(), signal.SIGTERM)


BUDGETS["tiny"] = TINY
sys.addaudithook(audit)
os.environ.copy = lambda: os.environ  # so that what launch() sets reaches native code
for program, *arguments in json.loads(Path("commands.json").read_text()):
  note(f"== {program} {' '.join(arguments)}")
  expected, began = 0, time.monotonic()
  if program == "serve":
    expected = 128 + signal.SIGTERM
    port = int(arguments[-1].removeprefix("--port="))
    threading.Thread(target=end_when_it_answers, args=(port,), daemon=True).start()
  code, _, errors = launch(program, *arguments)
  print(f"{program}: {time.monotonic() - began:.1f} s", flush=True)
  assert code == expected or "pip install" in errors, f"{program} {arguments}: {code}: {errors}"
