"""Progress: a line now and then in a log, one line on a terminal."""

import io
import time

import pytest

from gpt_jax.data import progress
from gpt_jax.data.progress import Progress, duration


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def shown(monkeypatch):
  """shown(stream, work): what a stream has once `work` has been reported at least twice."""
  for name in ("FIRST", "LATER", "SHOWN"):
    monkeypatch.setattr(progress, name, 0.01)

  def show(stream, total, **options):
    with Progress("reading", total, "characters", stream=stream, **options) as under_way:
      under_way.add(1000)
      under_way.add(500)
      end = time.monotonic() + 30
      while stream.getvalue().count("so far") < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return stream.getvalue()

  return show


def test_a_log_gets_lines_and_a_terminal_one_that_is_erased(shown):
  for total, counts in ((6000, "1,500 of 6,000"), (None, "1,500")):  # no time without a size
    first, *_ = shown(io.StringIO(), total).splitlines()
    left = ", about 0 s left" if total else ""
    assert first == f"reading, {counts} characters, 0 s so far{left}"
  text = shown(Terminal(), 6000)
  assert "\n" not in text and text.startswith("\r\x1b[Kreading, ") and text.endswith("\r\x1b[K")
  text = shown(Terminal(), 6000, in_place=False)  # to which others write
  assert text.startswith("\r\x1b[Kreading, 1,500 of") and text.endswith("left\n")


def test_short_work_shows_nothing_and_times_have_few_digits():
  log = io.StringIO()
  with Progress("reading", stream=log):
    pass
  assert log.getvalue() == ""
  assert (duration(36.4), duration(2160), duration(11100)) == ("36 s", "36 min", "3 h 05 min")
