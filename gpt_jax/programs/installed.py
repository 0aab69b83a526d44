"""The installed commands: gpt-jax-pretrain runs launch/pretrain.py, and so on; see setup.py."""

import os
import runpy
import sys

from gpt_jax.files import shipped_folder

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
