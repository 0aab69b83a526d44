"""`pip install .` gives commands that run in any folder, with the configs inside the package."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from built_wheel import install_wheel
from in_process import programs

from gpt_jax.programs.config_files import describe_config, load_config

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return install_wheel(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def installed(folder, tmp_path):
  """installed(command, *arguments) -> (exit code, stdout, stderr), in an empty folder."""
  environment = {**os.environ, "PYTHONPATH": str(folder)}

  def call(command, *arguments):
    done = subprocess.run(
      [folder / "bin" / command, *arguments],
      cwd=tmp_path,
      env=environment,
      capture_output=True,
      text=True,
    )
    return done.returncode, done.stdout, done.stderr

  return call


def test_every_program_is_a_command(folder):
  names = {f"gpt-jax-{name.replace('_', '-')}" for name in programs()}
  assert {path.name for path in (folder / "bin").iterdir()} == names


@pytest.mark.parametrize(
  "command, example",
  [
    ("gpt-jax-prepare", "gpt-jax-prepare --source=PATH"),
    ("gpt-jax-import-weights", "gpt-jax-import-weights --format=NAME"),
    ("gpt-jax-finetune", "gpt-jax-finetune --config=finetune:cola"),
  ],
)
def test_help_is_of_the_command(installed, command, example):
  code, out, err = installed(command, "--help")
  assert (code, err) == (0, "")
  assert example in out
  assert "launch/" not in out and "configs/" not in out


def test_configs_are_found_by_name(installed):
  code, out, err = installed("gpt-jax-pretrain", "--config=gpt1:small", "--print_config")
  assert (code, err) == (0, "")
  assert out == describe_config(load_config(f"{ROOT}/configs/gpt1.py:small")) + "\n"


@pytest.mark.parametrize(
  "config, message",
  [
    ("gtp1", "cannot read config file 'gtp1': No such file or directory; known names: gpt1"),
    ("configs/gpt1.py", "cannot read config file 'configs/gpt1.py': No such file or directory; "),
  ],
)
def test_a_wrong_config_is_one_line(installed, config, message):
  code, _, err = installed("gpt-jax-pretrain", f"--config={config}", "--print_config")
  assert code == 2 and message in err and err.count("\n") == 1


def test_a_command_works_and_names_the_next(installed, folder, tmp_path):
  (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the barn\n" * 20)
  code, _, err = installed("gpt-jax-prepare", "--source=text.txt", "--out=p", "--vocab_size=290")
  assert code == 0, err
  assert {"tokenizer", "train.bin"} <= {path.name for path in (tmp_path / "p").iterdir()}
  following = f"{folder}/bin/gpt-jax-pretrain --config=gpt1:small --data=p --workdir=DIR"
  assert err.partition("\nnext:\n")[2].split() == following.split()
  code, _, err = installed("gpt-jax-prepare", "--source=text.txt", "--out=q", "--tokenizer=absent")
  assert code == 2 and err.startswith("error: ") and err.count("\n") == 1


def test_the_image_copies_what_the_package_is_built_from():
  """Docker is not at hand, so this is all that is known of it."""
  text = (ROOT / "launch" / "cluster" / "Dockerfile").read_text()
  copied = " ".join(re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)).split()
  assert {"setup.py", "README.md", "gpt_jax", "launch", "configs"} == set(copied)
  extras = {name for names in re.findall(r'"\.\[([\w,]+)\]"', text) for name in names.split(",")}
  setup = (ROOT / "setup.py").read_text()
  assert {"all", "cuda", "tpu"} <= extras and all(f'"{name}": ' in setup for name in extras)
