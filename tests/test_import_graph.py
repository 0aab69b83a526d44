"""Which tests a change is said to have broken: those that import it, use it, run it or name it."""

import subprocess
from pathlib import Path

import pytest
from import_graph import Tree, changed_files, changed_tests

ROOT = Path(__file__).parents[1]

FILES = {
  "gpt_jax/__init__.py": "",
  "gpt_jax/errors.py": "",
  "gpt_jax/loop.py": "from gpt_jax import errors",
  "gpt_jax/report.py": "PAGE = 'page.html'",
  "gpt_jax/page.html": "",
  "gpt_jax/tasks/rte.py": "",
  "gpt_jax/programs/pretrain.py": "from gpt_jax.loop import fit",
  "launch/train.py": 'import flags_of_all\nPROGRAM = command_line.program("pretrain")',
  "launch/flags_of_all.py": "",
  "configs/small.py": "from gpt_jax import loop",
  "tests/conftest.py": "def run():\n  from gpt_jax.loop import fit\n\ndef two_runs(run):\n  pass",
  "tests/hosts.py": "",
  "tests/test_import.py": "from gpt_jax.loop import fit",
  "tests/test_fixture.py": "def test_a(two_runs):\n  pass",
  "tests/test_helper.py": "from hosts import start",
  "tests/test_command.py": "def test_a(launch):\n  launch('train --steps=2')",
  "tests/test_script.py": "COMMAND = 'python launch/train.py'",
  "tests/test_page.py": "from gpt_jax import report",
  "tests/test_task.py": "NAMES = ('rte',)",
  "tests/test_config.py": "import_config('configs/small.py')",
  "tests/test_nothing.py": "import json",
}
RUNS = {"command", "fixture", "import", "script"}


@pytest.fixture
def root(tmp_path):
  for name, text in FILES.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path


@pytest.mark.parametrize(
  "changed, names",
  [
    ("gpt_jax/loop.py", RUNS),
    ("gpt_jax/errors.py", RUNS),  # at a distance
    ("launch/flags_of_all.py", {"command", "script"}),
    ("gpt_jax/report.py", {"page"}),
    ("gpt_jax/page.html", {"page"}),
    ("gpt_jax/tasks/rte.py", {"task"}),
    ("configs/small.py", {"config"}),
    ("tests/hosts.py", {"helper"}),
    ("tests/test_nothing.py", {"nothing"}),
    ("README.md", set()),
    ("gpt_jax/report.py tests/hosts.py", {"page", "helper"}),
    ("tests/conftest.py", {*RUNS, "config", "helper", "nothing", "page", "task"}),
  ],
)
def test_a_change_reaches(root, changed, names):
  assert changed_tests(root, changed.split()) == {root / f"tests/test_{name}.py" for name in names}


def test_in_this_repository():
  tree = Tree(ROOT)

  def names(changed):
    return {path.name for path in tree.tests_of([changed])}

  optimizer = names("gpt_jax/training/optimizer.py")
  assert {"test_optimizer.py", "test_pretrain.py", "test_several_hosts.py"} <= optimizer
  assert "test_metrics.py" not in optimizer
  assert "test_documentation.py" in names("README.md")
  for file in ("launch/serve.py", "gpt_jax/apps/serve/serve.py"):
    assert {"test_serve.py", "test_cli.py"} <= names(file)
  assert "test_windows.py" not in names("launch/serve.py")


def test_new_files_count_as_changed(tmp_path):
  def git(*command):
    subprocess.run(["git", *command], cwd=tmp_path, check=True)

  git("init", "-q")
  (tmp_path / "a.py").write_text("")
  git("add", "a.py")
  git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a")
  assert changed_files(tmp_path, "HEAD") == []
  (tmp_path / "a.py").write_text("1")
  (tmp_path / "b.py").write_text("")
  assert changed_files(tmp_path, "HEAD") == ["a.py", "b.py"]
  with pytest.raises(ValueError, match="no_such_commit"):
    changed_files(tmp_path, "no_such_commit")
