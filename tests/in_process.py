"""launch/<program>.py run in this process: much cheaper than one of its own, which imports JAX."""

import contextlib
import io
import os
import runpy
import sys
import warnings
from pathlib import Path

import pytest
from absl import flags

ROOT = Path(__file__).parents[1]


def launch(program: str, *arguments: str, input: str = "") -> tuple[int, str, str]:
  """Exit code, standard output and standard error of a program."""
  out, err = io.StringIO(), io.StringIO()
  with (
    pytest.MonkeyPatch.context() as patch,
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    patch.syspath_prepend(str(ROOT / "launch"))
    patch.setattr(warnings, "formatwarning", warnings.formatwarning)
    patch.setattr(os, "environ", os.environ.copy())
    patch.setattr(sys, "argv", [program, *arguments])
    patch.setattr(sys, "stdin", io.StringIO(input))
    import command_line

    for of_the_process in ("_catch_interrupts", "_use_huge_pages", "_tune_malloc"):
      patch.setattr(command_line, of_the_process, lambda: None)
    before = set(flags.FLAGS)
    try:
      runpy.run_path(str(ROOT / "launch" / f"{program}.py"), run_name="__main__")
      code = 0
    except SystemExit as end:
      code = end.code
    finally:
      command_line._changes.clear()
      for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
      flags.FLAGS.unparse_flags()
  return code, out.getvalue(), err.getvalue()
