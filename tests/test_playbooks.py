"""The commands of CONTRIBUTING's playbooks, as they stand there, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = SECTION.findall((ROOT / ".github" / "CONTRIBUTING.md").read_text())
PLAYBOOKS = {
  title: commands.group(1) for title, text in SECTIONS if (commands := COMMANDS.search(text))
}


# An extension edits no other file; to change what is there is to edit it.
EDITED = {"Change a layer": {"gpt_jax/models/layers.py", "tests/numpy_transformer.py"}}


def test_each_playbook_has_commands():
  assert len(SECTIONS) == 14 and list(PLAYBOOKS) == [title for title, _ in SECTIONS]


@pytest.fixture
def project(tmp_path):
  """A copy, so that the tree in which other tests run stays as it is."""
  # Bytecode is copied, since it saves seconds; *.pyc.* are files that another worker is writing.
  leave_out = shutil.ignore_patterns("*.pyc.*", "*.md", "*.svg", "*.xz")
  for folder in ("gpt_jax", "launch", "configs", "tests"):
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave_out)
  (tmp_path / ".cache").symlink_to(ROOT / ".cache")  # compiled programs
  return tmp_path


def modified(project):
  files = {path: path.stat().st_mtime_ns for path in project.glob("*/**/*.py")}
  return {str(path.relative_to(project)): time for path, time in files.items()}


@pytest.mark.parametrize("title", PLAYBOOKS)
def test_a_playbook(title, project):
  script = f"set -euo pipefail\n{PLAYBOOKS[title]}"
  path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
  environment = {**os.environ, "PATH": path, "PYTHONPATH": str(project)}
  environment.pop("XLA_FLAGS", None)  # its tests append the same: given twice, they miss the cache
  before = modified(project)
  done = subprocess.run(
    ["bash", "-c", script], cwd=project, env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
  assert done.stdout and "skipped" not in done.stdout
  edited = {path for path, _ in before.items() - modified(project).items()}
  assert edited == EDITED.get(title, set())
