"""A wheel of this package, made and installed into a folder without network."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install_wheel(here: Path) -> Path:
  """The folder in an empty one `here` that has the packages and bin/."""
  (here / "source").mkdir()
  for name in ("setup.py", "README.md"):
    shutil.copy(ROOT / name, here / "source")
  for name in ("gpt_jax", "launch", "configs"):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / name, here / "source" / name, ignore=ignored)
  pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
  build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", f"--wheel-dir={here}"]
  subprocess.run([*pip, *build, here / "source"], check=True, capture_output=True)
  (wheel,) = here.glob("*.whl")
  install = ["install", "--no-deps", "--no-index", f"--target={here / 'packages'}", wheel]
  subprocess.run([*pip, *install], check=True, capture_output=True)
  shutil.rmtree(here / "source")
  return here / "packages"
