"""Commands that stand in for those of a cluster, in the folder bin/ of a test's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

# Stands in for the check, which test_command_line.py has.
CHECK = 'import sys; sys.exit("error: refused" if "--wrong" in sys.argv else None)'


def write_command(path: Path, text: str) -> None:
  """Makes a file that the shell executes."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f"#!/bin/sh\n{text}\n")
  path.chmod(0o755)


def write_stand_in(path: Path, script: str, *arguments: str) -> None:
  """A command that is a Python file of this folder, which gets the arguments before its own."""
  words = [sys.executable, "-IS", str(Path(__file__).with_name(script)), *arguments]
  write_command(path, f'exec {" ".join(words)} "$@"')


def run(folder: Path, words, cwd: Path, **environment: str) -> tuple[int, str, str]:
  """Exit code, stdout and stderr of a command that finds those in folder/bin first."""
  path = f"{folder / 'bin'}:{os.environ['PATH']}"
  environment = {**os.environ, "PATH": path, **environment}
  done = subprocess.run(
    words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
  )
  return done.returncode, done.stdout, done.stderr


def read_calls(folder: Path) -> list:
  """What the stand-ins have recorded in folder/calls since the last call."""
  path = folder / "calls"
  lines = path.read_text().splitlines() if path.exists() else []
  path.unlink(missing_ok=True)
  return [json.loads(line) for line in lines]
