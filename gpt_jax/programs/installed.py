"""The installed commands: gpt-jax-pretrain runs launch/pretrain.py, and so on; see setup.py."""

import os
import runpy
import sys

# The command as it was called; while a script runs, sys.argv has its path instead. "": none was.
typed = ""


def main() -> None:
  """Runs the script in launch/ that the name of this command says, as `python launch/…` does."""
  global typed
  typed = sys.argv[0]
  command = os.path.splitext(os.path.basename(typed))[0]
  folder = shipped_folder("launch")
  sys.path.insert(0, folder)  # the scripts import their neighbors
  script = command.removeprefix("gpt-jax-").replace("-", "_") + ".py"
  runpy.run_path(os.path.join(folder, script), run_name="__main__")


def shipped_folder(name: str) -> str:
  """The folder launch or configs: inside an installed package, beside the package in a clone."""
  package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  inside = os.path.join(package, name)
  return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(package), name)
