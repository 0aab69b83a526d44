"""The fixture `launch`: a program of launch/ run in this process.

A process of its own takes seconds, most of them for importing JAX.
"""

import io
import os
import runpy
import sys
import warnings
from pathlib import Path

import pytest
from absl import flags

_LAUNCH = Path(__file__).parents[1] / "launch"


@pytest.fixture(name="launch")
def launch_in_process(monkeypatch, capsys):
  """launch(program, *arguments, input="") -> (exit code, stdout, stderr)."""
  monkeypatch.syspath_prepend(str(_LAUNCH))
  monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
  monkeypatch.setattr(os, "environ", os.environ.copy())
  import command_line

  for of_the_process in ("_catch_interrupts", "_use_huge_pages", "_tune_malloc"):
    monkeypatch.setattr(command_line, of_the_process, lambda: None)

  def call(program, *arguments, input=""):
    before = set(flags.FLAGS)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(input))
    capsys.readouterr()  # what the test itself has printed
    try:
      runpy.run_path(str(_LAUNCH / f"{program}.py"), run_name="__main__")
      code = 0
    except SystemExit as end:
      code = end.code
    finally:
      command_line._changes.clear()
      for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
      flags.FLAGS.unparse_flags()
    return code, *capsys.readouterr()

  return call
