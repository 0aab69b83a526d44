"""`pip install .` gives commands that run in any folder, with the configs inside the package."""

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import launch

from gpt_jax.programs.config_files import describe_config, load_config

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]
CLAUSE = "the cat sat on the mat and the dog ran to the old red barn by the sea. "
TRUNK = {"context": "32", "layers": "1", "width": "16", "heads": "2"}


def programs() -> set[str]:
  files = (ROOT / "launch").glob("*.py")
  return {file.stem for file in files if "command_line.run(" in file.read_text()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder into which a wheel of this package, made without network, was installed."""
  here = tmp_path_factory.mktemp("installed")
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
    ("gpt1_smal", "cannot read config file 'gpt1_smal': No such file or directory; known names: "),
    ("configs/gpt1.py", "cannot read config file 'configs/gpt1.py': No such file or directory; "),
  ],
)
def test_a_wrong_config_is_one_line(installed, config, message):
  code, _, err = installed("gpt-jax-pretrain", f"--config={config}", "--print_config")
  assert code == 2 and message in err and err.count("\n") == 1


def test_a_command_works(installed, tmp_path):
  (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran to the barn\n" * 20)
  code, _, err = installed("gpt-jax-prepare", "--source=text.txt", "--out=p", "--vocab_size=290")
  assert code == 0, err
  assert {"tokenizer", "train.bin"} <= {path.name for path in (tmp_path / "p").iterdir()}
  code, _, err = installed("gpt-jax-prepare", "--source=text.txt", "--out=q", "--tokenizer=absent")
  assert code == 2 and err.startswith("error: ") and err.count("\n") == 1


# Of each program: values for the blanks in a command that another one printed, and smaller sizes.
FILLED = {
  "pretrain": {
    "workdir": "run",
    **{f"config.trunk.{name}": size for name, size in TRUNK.items()},
    "config.data.length": "16",
    "config.data.batch_size": "8",
    "config.optim.warmup_steps": "1",
    "config.train.steps": "2",
  },
  "generate": {"prompt": "the", "max_tokens": "2"},
  "finetune": {
    "config": "finetune:table",
    "data": "task",
    "workdir": "labels",
    "config.batch_size": "8",
    "config.train.epochs": "1",
  },
  "predict": {"input": "rows.tsv", "out": "labels.tsv", "overwrite": "true"},
  "visualize": {"text": "the cat"},
}


def follow(*lines: str) -> None:
  """Runs commands, each with all that it names as next; prints their programs in order."""
  for line in lines:
    command, *arguments = shlex.split(line)
    program = command.removeprefix("gpt-jax-")
    values = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    values |= FILLED.get(program, {})
    code, _, err = launch(shutil.which(command), *(f"--{name}={values[name]}" for name in values))
    assert code == 0, f"{line}: {err}"
    print(program)
    follow(*err.partition("\nnext:\n")[2].splitlines())


@pytest.mark.slow
def test_commands_that_come_next_work_as_printed(folder, tmp_path):
  """From text to labels, in a folder of the user's."""
  (tmp_path / "text.txt").write_text(CLAUSE * 40)
  (tmp_path / "task").mkdir()
  draw = random.Random(0)
  for name, count in {"task/train": 8, "task/dev": 8, "rows": 8, "table": 60}.items():
    lines = ["text\tlabel"]
    for animal in ("cat", "dog") * count:
      lines.append(f"the {animal} {' '.join(draw.choices(CLAUSE.split(), k=6))}\t{animal}")
    (tmp_path / f"{name}.tsv").write_text("\n".join(lines))
  starts = (
    "gpt-jax-prepare --source=text.txt --out=data --vocab_size=290 --valid_share=0.3",
    "gpt-jax-label --input=table.tsv --checkpoint=run --workdir=model --skip_finetuning=true",
  )
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT / "tests")])
  environment["PATH"] = f"{folder}/bin{os.pathsep}{environment['PATH']}"
  done = subprocess.run(
    [sys.executable, "-c", "import sys, test_installed as t; t.follow(*sys.argv[1:])", *starts],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == (
    "prepare pretrain evaluate generate finetune evaluate predict visualize label predict".split()
  )


def test_the_image_copies_what_the_package_is_built_from():
  """Docker is not at hand, so this is all that is known of it."""
  text = (ROOT / "launch" / "cluster" / "Dockerfile").read_text()
  copied = " ".join(re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)).split()
  assert {"setup.py", "README.md", "gpt_jax", "launch", "configs"} == set(copied)
  extras = {name for names in re.findall(r'"\.\[([\w,]+)\]"', text) for name in names.split(",")}
  setup = (ROOT / "setup.py").read_text()
  assert {"all", "cuda", "tpu"} <= extras and all(f'"{name}": ' in setup for name in extras)
