"""The commands of CONTRIBUTING's playbooks, as they stand there, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLAYBOOKS = {
  title: commands.group(1)
  for title, text in SECTION.findall((ROOT / ".github" / "CONTRIBUTING.md").read_text())
  if (commands := COMMANDS.search(text))
}


def test_the_extensions_have_commands():
  assert len(PLAYBOOKS) == 9 and "Add a task" in PLAYBOOKS and "Add an app" in PLAYBOOKS


@pytest.fixture
def project(tmp_path):
  """A copy, so that the tree in which other tests run stays as it is."""
  leave_out = shutil.ignore_patterns("__pycache__", "*.md", "*.svg")
  for folder in ("gpt_jax", "launch", "configs"):
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave_out)
  return tmp_path


@pytest.mark.parametrize("title", PLAYBOOKS)
def test_a_playbook(title, project):
  script = f"set -euo pipefail\n{PLAYBOOKS[title]}"
  path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
  environment = {**os.environ, "PATH": path, "PYTHONPATH": str(project)}
  done = subprocess.run(
    ["bash", "-c", script], cwd=project, env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr[-2000:]
  assert "mine" in done.stdout or "It was old." in done.stdout
