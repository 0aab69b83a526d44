"""Progress in a log: what is done at once, then how far it is, now and then."""

import io

import pytest

from gpt_jax.data import workers


@pytest.fixture
def clock(monkeypatch):
  """A clock that stands still until it is moved: clock(seconds)."""
  now = [100.0]
  monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])

  def move(seconds):
    now[0] += seconds

  return move


def test_a_log_gets_a_line_at_once_and_then_now_and_then(clock):
  log = io.StringIO()
  with workers.progress("counting words", 75_000_000, log) as add:
    assert log.getvalue() == "counting words: 75.0 MB …\n"
    for _ in range(300):  # seconds
      clock(1)
      add(200_000, 3)
  lines = log.getvalue().splitlines()[1:]
  assert lines[0] == "counting words: 30 documents, 2.0 of 75.0 MB, 0.2 MB/s, 365 s left"
  assert len(lines) == 1 + 290 // 60


def test_without_a_known_size_no_time_is_promised(clock):
  log = io.StringIO()
  with workers.progress("reading", None, log) as add:
    clock(20)
    add(1_000_000, 1)
  assert log.getvalue() == "reading: …\nreading: 1 document, 1.0 MB, 0.1 MB/s\n"


def test_a_terminal_gets_a_bar_from_the_start():
  pytest.importorskip("tqdm")
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  with workers.progress("writing tokens", 1000, terminal) as add:
    assert "writing tokens:   0%" in terminal.getvalue()
    add(1000, 2)
  assert "100%" in terminal.getvalue() and "2 documents" in terminal.getvalue()
