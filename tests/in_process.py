"""Programs of launch/, or installed commands, run in this process, which has imported JAX."""

import contextlib
import functools
import io
import os
import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest
from absl import flags

from gpt_jax import errors, files
from gpt_jax.programs.config_files import load_config, override_all
from gpt_jax.programs.installed import shipped_folder
from gpt_jax.tasks import readers


def launch(program: str, *arguments: str, input: str = "") -> tuple[int, str, str]:
  """Exit code, standard output and standard error of a program, or of the command at a path."""
  out, err = io.StringIO(), io.StringIO()
  with (
    pytest.MonkeyPatch.context() as patch,
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    folder = shipped_folder("launch")
    patch.syspath_prepend(folder)
    patch.setattr(warnings, "formatwarning", warnings.formatwarning)
    patch.setattr(errors, "for_user", errors.for_user)
    patch.setattr(files, "announce", None)
    patch.setattr(os, "environ", os.environ.copy())
    patch.setattr(sys, "argv", [program, *arguments])
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
    readers._read_pipe.cache_clear()
    import command_line

    for of_the_process in ("catch_interrupts", "use_huge_pages", "tune_malloc"):
      patch.setattr(command_line.process, of_the_process, lambda: None)
    before = set(flags.FLAGS)
    try:
      script = program if os.sep in program else os.path.join(folder, f"{program}.py")
      runpy.run_path(script, run_name="__main__")
      code = 0
    except SystemExit as end:
      code = end.code or 0
    finally:
      command_line.changes.clear()
      for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
      flags.FLAGS.unparse_flags()
  return code, out.getvalue(), err.getvalue()


def programs() -> list[str]:
  """The names of the scripts in launch/ that are programs."""
  scripts = sorted(Path(shipped_folder("launch")).glob("*.py"))
  return [script.stem for script in scripts if "command_line.run(" in script.read_text()]


@functools.cache
def flags_of(script: str) -> set[str]:
  """The flags that launch/NAME.py lists with --help."""
  name = os.path.splitext(os.path.basename(script))[0]
  return {"help", *re.findall(r"^  --(\w+) ", launch(name, "--help")[1], re.MULTILINE)}


def check_command(script: str, arguments: list[str]) -> None:
  """Fails unless a program has all flags of a command in a text, and its config all fields."""
  options = [word.removeprefix("--").partition("=") for word in arguments if word.startswith("--")]
  changes = [
    (flag.removeprefix("config."), value)
    for flag, _, value in options
    if flag.startswith("config.")
  ]
  for flag, _, value in options:
    assert flag.startswith("config.") or flag in flags_of(script), f"{script} has no --{flag}"
    if flag == "config":
      root = os.path.dirname(shipped_folder("configs"))
      file = os.path.join(root, value) if value.startswith("configs/") else value
      override_all(load_config(file), changes)
