"""launch/command_line/, exercised by a small program."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from in_process import programs
from refused import table

from gpt_jax.checkpoints.formats import describe_formats
from gpt_jax.programs import installed

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]
SEARCH = os.pathsep.join([str(ROOT), str(ROOT / "launch")])

PROGRAM = '''"""Prints its settings.

  python launch/toy.py --config=FILE
"""

import command_line
from absl import flags

command_line.define_config()
command_line.define_distributed()
WORKDIR = flags.DEFINE_string("workdir", None, "a folder", required=True)
FAIL = flags.DEFINE_string("fail", "", "how to end")


def main():
  import os
  import sys

  from gpt_jax.errors import InputError, Unavailable
  from gpt_jax.files import StoreError

  cache = os.environ["JAX_COMPILATION_CACHE_DIR"]
  config = command_line.config()
  print(config.learning_rate, config.clip, WORKDIR.value, cache)
  print("jax" in sys.modules)
  if FAIL.value == "warn":
    import warnings
    warnings.warn("fail=high: too high, as evaluate.run says")
  raised = {
    "input": InputError("line 3: broken\\nbadly"),
    "store": StoreError(5, "Server disconnected", "gs://b/a"),
    "unavailable": Unavailable("gs://b/a: cannot be read"),
    "refused": StoreError(13, "Forbidden", "gs://b/a"),
    "interrupt": KeyboardInterrupt(),
    "oom": RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12345678 bytes.\\n at 3"),
    "bug": ValueError("ours"),
    "threads": RuntimeError("can't start new thread"),  # as threading does
    "listing": PermissionError(13, "Permission denied", "a/checkpoints"),
  }
  if FAIL.value in raised:
    raise raised[FAIL.value]
  if FAIL.value in ("outage", "forbidden"):
    cause = StoreError(5 if FAIL.value == "outage" else 13, "no answer", "gs://b/a")
    raise InputError("gs://b/a: cannot be written") from cause
  if FAIL.value == "circular":
    first = InputError("first")
    try:
      raise InputError("second") from first
    except InputError as second:
      raise first from second
  if FAIL.value == "import":
    import swallows
  if FAIL.value == "collector":
    import gc, signal, time
    gc.callbacks.append(lambda *_: gc.callbacks.clear() or os.kill(os.getpid(), signal.SIGINT))
    gc.collect()
    for _ in range(50):
      time.sleep(0.1)
  if FAIL.value == "disk":
    import atexit
    atexit.register(print, "and then it failed again", file=sys.stderr)
    with open("/dev/full", "wb", 0) as file:
      try:
        file.write(b"x")
      except OSError as error:
        raise ValueError(f"RESOURCE_EXHAUSTED: {error}") from error
  if FAIL.value == "limit":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with open("large", "wb", 0) as file:
      file.write(bytes(1000))
      file.write(b"x")
  if FAIL.value == "host":
    bytearray(1 << 60)
  if FAIL.value == "memory":
    def resident():
      return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    before, block = resident(), b"x" * 200_000_000
    del block
    print(resident() - before > 150_000_000)
  if FAIL.value == "closed":
    with open("written", "w") as file:
      os.write(1, b"of a library")
      os.write(2, b"of a library")
      file.write("mine")
  if FAIL.value == "pipe":
    print("x" * 10_000_000)


if __name__ == "__main__":
  command_line.run(main)
'''

SWALLOWS = """import os, signal
try:
  os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
  pass
"""

CONFIG = """import dataclasses

@dataclasses.dataclass(frozen=True)
class Config:
  learning_rate: float = 0.5
  clip: float = 1.0

def get_config():
  return Config()
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
  """Runs the program: toy(*arguments) -> (exit code, standard output, standard error)."""
  folder = tmp_path_factory.mktemp("toy")
  (folder / "toy.py").write_text(PROGRAM)
  (folder / "config.py").write_text(CONFIG)
  (folder / "swallows.py").write_text(SWALLOWS)

  def call(*arguments, before=":"):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment.pop("PYTHONUNBUFFERED", None)
    environment["PYTHONPATH"] = SEARCH
    bash = ["bash", "-c", f'{before}; exec "$@"', ""]
    command = [*bash, sys.executable, str(folder / "toy.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr

  return call


@pytest.fixture
def usage(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "launch"))
  from command_line import usage

  return usage


def own_flags(values):
  return [flag for module in values.flags_by_module_dict().values() for flag in module]


def test_each_flag_says_what_it_is_for_in_words_that_need_no_source(helps):
  for name in ("export", "import_weights"):
    assert describe_formats() in " ".join(helps[name].split())  # --help wraps
  for name, help in helps.items():
    assert f"launch/{name}.py" in help, f"{name}.py has no example command in its docstring"
    assert "--verbosity" not in help, f"{name}.py imports more than it needs before main()"
    about = help[help.index("\nwhat to") :]
    assert not re.search(r"^  --\w+ *$|\bsee [\w.]*_\w+|`", about, re.MULTILINE)


@pytest.mark.parametrize("name", ["evaluate", "generate", "list_tasks", "predict", "label"])
def test_a_signature_is_read_as_python_has_it(monkeypatch, name):
  monkeypatch.syspath_prepend(str(ROOT / "launch"))
  from command_line import definitions

  folder = "apps.label" if name == "label" else "programs"
  module = importlib.import_module(f"gpt_jax.{folder}.{name}")
  signature, about = definitions._read_run(Path(module.__file__).read_text())
  parameters = inspect.signature(module.run).parameters
  assert about.keys() == parameters.keys() == signature.parameters.keys()
  for parameter in parameters.values():
    assert signature.parameters[parameter.name].default == parameter.default


GOOD = ("--config=config.py", "--workdir=w")


def test_overrides_workdir_and_cache(toy):
  code, out, err = toy("--config.learning_rate=3", *GOOD, "--config.clip", "-2")
  assert (code, err) == (0, "")
  settings, jax_imported = out.splitlines()
  assert settings.startswith(f"3.0 -2.0 w {os.environ['XDG_CACHE_HOME']}/gpt_jax/compiled/")
  assert jax_imported == "False"


def test_a_config_that_asks_jax_is_not_refused_without_it(toy, tmp_path):
  """Fields are checked with stand-ins for JAX, which have no values."""
  asks = "import jax\nCOUNT = jax.device_count() if jax.device_count() > 1 else 1.0\n"
  (tmp_path / "asks.py").write_text(asks + CONFIG.replace("0.5", "COUNT / COUNT"))
  code, out, err = toy(f"--config={tmp_path}/asks.py", "--workdir=w")
  assert (code, err) == (0, "") and out.splitlines()[0].startswith("1.0 1.0 w ")


@pytest.mark.parametrize(
  "code, is_told",
  [
    ("import jax\nx = 2 * jax.device_count()", False),
    ("import jax\nx = isinstance(2, jax.Array)", False),
    ("import jax\nx = f'{jax.__version__:>9}' + ','.join([jax.default_backend()])", False),
    ("import jax\nwith jax.default_device(None): x = 2", False),
    ("import jax.numpy as jnp\nx = [d for d in jnp.ones(3)]", False),
    ("x = 2 * nothing", True),
  ],
)
def test_what_stand_ins_cannot_do_is_not_the_config_file_s_fault(tmp_path, code, is_told):
  (tmp_path / "given.py").write_text(code)
  script = "from command_line import fields\nfrom gpt_jax.programs import config_files\n"
  script += "print(fields.ahead(lambda: config_files.load_config('given.py')))"
  words, env = [sys.executable, "-c", script], os.environ | {"PYTHONPATH": SEARCH}
  done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
  told = "given.py:1: NameError: name 'nothing' is not defined" in done.stderr
  assert (told, done.stdout == "False\n") == (is_told, not is_told), done.stderr


def test_a_refusal_of_a_name_that_is_no_utf_8_is_one_line(tmp_path):
  script = """from command_line import fields
from gpt_jax.errors import InputError
def refuse(): raise InputError("tracker a\\udcff")
try: fields.ahead(refuse)
except InputError as error: print(ascii(str(error)))"""
  words, env = [sys.executable, "-c", script], os.environ | {"PYTHONPATH": SEARCH}
  done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
  assert (done.stdout, done.stderr) == ("'tracker a\\udcff'\n", "")


def test_print_config_needs_only_the_config(toy):
  code, out, err = toy("--config=config.py", "--print_config", "--config.clip=4")
  assert (code, err) == (0, "")
  assert [line.split() for line in out.splitlines()] == [
    ["[Config]"],
    ["learning_rate", "=", "0.5"],
    ["clip", "=", "4.0", "(in", "the", "file", "1.0)"],
  ]


def test_help_has_the_docstring_and_groups_with_the_required_flags_first(toy):
  code, out, err = toy("--help")
  assert (code, err) == (0, "")
  about = "Prints its settings.\n\n  python launch/toy.py --config=FILE\n\nwhat to read:\n"
  assert out.startswith(about + "  --config ") and "(required)" in out
  lines = out.splitlines()
  heads = ["what to read:", "what to write:", "how:", "several processes:"]
  assert [line for line in lines if re.fullmatch(r"\w[\w ]*:", line)] == heads
  names = [line.split()[0][2:] for line in lines if line.startswith("  --")]
  processes = ["distributed", "coordinator", "num_processes", "process_id"]
  assert names == ["config", "workdir", "print_config", "fail", *processes]
  assert max(map(len, lines)) <= 100


def test_required_flags_come_first_in_their_group(usage, monkeypatch):
  values = flags.FlagValues()
  flags.DEFINE_string("data", "d", "first defined", flag_values=values)
  flags.DEFINE_multi_string("prompt", [], "of many", flag_values=values)
  flags.DEFINE_string("checkpoint", None, "last " * 40, required=True, flag_values=values)
  for columns in (70, 300):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = usage.describe("Doc.", own_flags(values))
    assert re.findall(r"^  --(\w+)", text, re.MULTILINE) == ["checkpoint", "data", "prompt"]
    assert max(map(len, text.splitlines())) <= min(100, columns)
    assert "--prompt      of many; may be repeated" in text and "repeat this option" not in text
    assert "may be left out" not in text
  text = usage.describe("Doc.", own_flags(values), "checkpoint")
  assert "(required; --checkpoint= may be left out)" in " ".join(text.split())


def test_an_installed_command_names_commands(usage, monkeypatch):
  text = "python launch/zero_shot.py --config=configs/gpt1.py, as launch/prepare.py wrote"
  assert usage.as_typed(text) == text
  monkeypatch.setattr(installed, "typed", "/bin/gpt-jax-prepare")
  # Without a config's name: in an error it may be a file of the user's.
  typed = "gpt-jax-zero-shot --config=configs/gpt1.py, as gpt-jax-prepare wrote"
  assert usage.as_typed(text) == typed
  assert usage.describe(text, []) == "gpt-jax-zero-shot --config=gpt1, as gpt-jax-prepare wrote"


@pytest.mark.parametrize(
  "message, shown",
  [
    ("out=a.csv exists; give overwrite=True", "--out=a.csv exists; give --overwrite"),
    ("data_dir=x: no folder (out=y)", "--data=x: no folder (--out=y)"),
    ("another (seed=3); config.train.steps=0", "another (seed=3); --config.train.steps=0"),
    ("--out=a: as typed; a/out=b.csv:3: 'out=3'", "--out=a: as typed; a/out=b.csv:3: 'out=3'"),
    ("as PrepareConfig(sentences=True) does", "as --sentences=True does"),
    ("only predict.run reads a file.run", "only launch/predict.py reads a file.run"),
  ],
)
def test_arguments_in_messages_become_flags(usage, message, shown):
  values = flags.FlagValues()
  flags.DEFINE_string("data", "", "a folder", flag_values=values)
  flags.DEFINE_string("out", "", "a file", flag_values=values)
  flags.DEFINE_boolean("overwrite", False, "replace it", flag_values=values)
  assert usage.with_flags(message, own_flags(values)) == shown


def test_commands_that_come_next_work_where_the_user_stands(usage, monkeypatch, tmp_path):
  monkeypatch.setattr(sys, "argv", ["launch/prepare.py"])
  assert usage.command("import_weights") == ["python", "launch/import_weights.py"]
  monkeypatch.chdir(ROOT)
  assert usage.config_path("finetune:TASK") == "configs/finetune.py:TASK"
  monkeypatch.chdir(tmp_path)
  assert usage.config_path("finetune:TASK") == "finetune:TASK"

  typed = tmp_path / "gpt-jax-prepare"
  typed.touch(mode=0o755)
  monkeypatch.setattr(installed, "typed", str(typed))
  monkeypatch.chdir(ROOT)
  assert usage.config_path("finetune:TASK") == "finetune:TASK"
  assert usage.command("import_weights") == [f"{tmp_path}/gpt-jax-import-weights"]
  monkeypatch.setenv("PATH", str(tmp_path))
  assert usage.command("import_weights") == ["gpt-jax-import-weights"]


def test_every_flag_of_a_group_exists(usage, helps):
  listed = {*re.findall(r"^  --(\w+)  ", "".join(helps.values()), re.MULTILINE)}
  assert set(sum(usage.GROUPS.values(), ())) <= listed


@pytest.mark.parametrize(
  "line, completions",
  [
    ("toy.py --dist", ["--distributed"]),
    ("toy.py --config=gpt1", ["--config=gpt1"]),
    ("toy.py --config=conf", ["--config=config.py"]),
    ("toy.py --config=config.py --config.c", ["--config.clip"]),
    ("toy.py --config=absent.py --config.c", []),
  ],
)
def test_completion(toy, monkeypatch, tmp_path, line, completions):
  pytest.importorskip("argcomplete")
  monkeypatch.setenv("_ARGCOMPLETE", "1")
  monkeypatch.setenv("_ARGCOMPLETE_STDOUT_FILENAME", str(tmp_path / "completions"))
  monkeypatch.setenv("COMP_LINE", line)
  monkeypatch.setenv("COMP_POINT", str(len(line)))
  assert toy()[0] == 0
  found = (tmp_path / "completions").read_text().split("\013")
  assert [word.strip() for word in found if word.strip()] == completions


MISTAKES = """\
=> missing --config, --workdir (--help describes the flags)
--config=config.py => missing --workdir (--help describes the flags)
--config=confg.py --workdir=w =>
    cannot read config file 'confg.py': No such file or directory; there: config.py
--config=config.py --workdir=w
  --wrkdir=x => unknown flag --wrkdir; did you mean --workdir? (--help lists the flags)
  --clip.x=3 => unknown flag --clip.x; did you mean --config.clip.x? (--help lists the flags)
  stray => unexpected argument 'stray': every setting is a flag, --NAME=VALUE (--help lists them)
  --config.clp=3 =>
    config has no field 'clp'; did you mean clip? (fields of config: learning_rate, clip)
  --config.clip=x => clip = 'x': must be a number
  --fail=a --fail a => --fail is given 2 times: it takes one value
  --distributed --nodistributed => --distributed is given 2 times: it takes one value
  --config.clip=3 --config.clip=4 --config.clip=5 =>
    --config.clip=… is given 3 times: it takes one value
  --config.clip => --config.clip needs a value: --config.clip=VALUE
  --process_id=x => --process_id=x: should be an integer
  --distributed=maybe => --distributed=maybe: should be true or false
  --process_id=1 => --process_id needs --distributed
  --distributed =>
    --distributed found no cluster: this is no task of Slurm's srun and no host of a Cloud TPU; \
give --coordinator, --num_processes, --process_id
  --distributed --process_id=1 => --coordinator, --num_processes needed beside --process_id
  --distributed --process_id=0 --num_processes=1 --coordinator=host =>
    --coordinator=host: must be HOST:PORT
  --help=config =>
    --help=config: --help alone describes the flags; --print_config lists the fields of the config
  --fail=input => line 3: broken badly
"""


@pytest.mark.parametrize("arguments, message", table(MISTAKES))
def test_user_errors_are_one_line(toy, arguments, message):
  code, _, err = toy(*arguments.split())
  assert (code, err) == (2, f"error: {message}\n")


SMALLER = r".*a larger --config.train.microbatches, a smaller --config\..*"
ENDS = {  # how the program fails -> exit code, a pattern of what it prints
  "warn": (0, "warning: --fail=high: too high, as launch/evaluate.py says"),
  "interrupt": (130, "interrupted"),
  "collector": (130, "interrupted"),
  "import": (130, "interrupted"),
  "store": (75, "error: gs://b/a: Server disconnected; the command can be given again"),
  "unavailable": (75, "error: gs://b/a: cannot be read"),
  "outage": (75, "error: gs://b/a: cannot be written"),
  "forbidden": (2, "error: gs://b/a: cannot be written"),
  "circular": (2, "error: first"),
  "refused": (2, "error: gs://b/a: Forbidden"),
  "disk": (2, "error: No space left on device; free some space and repeat the command"),
  "limit": (2, "error: File too large; raise the limit of a file's size .ulimit -f. and repeat .*"),
  "listing": (2, "error: a/checkpoints: Permission denied"),
  "threads": (2, "error: .*raise the limit .ulimit -u."),
  "oom": (2, f"error: out of memory.*0.01 GB{SMALLER}"),
  "host": (2, f"error: out of memory{SMALLER}"),
  "bug": (1, r"(.+\n)*Traceback(.*\n)+ValueError: ours"),
}


@pytest.mark.parametrize("fail", ENDS)
def test_other_ends(toy, fail):
  code, out, err = toy(*GOOD, f"--fail={fail}")
  assert code == ENDS[fail][0] and re.fullmatch(ENDS[fail][1] + "\n", err), err
  if fail == "disk":
    assert out.endswith("False\n")  # earlier output is flushed


def test_closed_streams_lose_nothing(toy, tmp_path):
  """Nor does what a library prints come into a file that the program opens."""
  (tmp_path / "config.py").write_text(CONFIG)
  before = f"cd {tmp_path}; exec <&- >&- 2>&-"
  assert toy(*GOOD, "--fail=closed", before=before) == (0, "", "")
  assert (tmp_path / "written").read_text() == "mine"
  code, out, err = toy(*GOOD, "--fail=input", before="exec >&-")
  assert (code, out, err) == (2, "", "error: line 3: broken badly\n")


def test_a_working_folder_that_is_gone_is_one_line(toy, tmp_path):
  gone = tmp_path / "gone"
  code, out, err = toy(*GOOD, before=f"mkdir {gone}; cd {gone}; rmdir {gone}")
  assert (code, out) == (2, "")
  assert err.startswith("error: the folder in which this command was given is not there (")
  assert err.count("\n") == 1


@pytest.mark.skipif(
  not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
  reason="glibc only",
)
def test_freed_memory_is_kept(toy):
  assert toy(*GOOD, "--fail=memory")[1].splitlines()[-1] == "True"


# Runs command lines in forks of a process that has imported what all of them share.
FORKS = """import json, os, runpy, sys
import command_line

folder, calls = sys.argv[1:]
for index, (_, script, *arguments) in enumerate(json.loads(calls)):
  if not os.fork():
    for number, kind in enumerate(("out", "err"), 1):
      os.dup2(os.open(os.path.join(folder, f"{index}.{kind}"), os.O_WRONLY | os.O_CREAT), number)
    sys.argv = [script, *arguments]
    try:
      runpy.run_path(script, run_name="__main__")
    finally:
      sys.stdout.flush()
      os._exit("jax" in sys.modules)
  if os.wait()[1]:
    sys.exit(f"{script} {arguments} imports JAX")
"""


def in_forks(folder, calls):
  """Runs (name, script, *arguments), none of which may import JAX; returns {name: (out, err)}."""
  # A program would start itself anew to set this.
  env = os.environ | {"PYTHONPATH": SEARCH, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
  words = [sys.executable, "-c", FORKS, folder, json.dumps(calls)]
  subprocess.run(words, env=env, cwd=folder, check=True)
  return {
    name: tuple((folder / f"{index}.{kind}").read_text() for kind in ("out", "err"))
    for index, (name, *_) in enumerate(calls)
  }


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
  """What each program prints with --help, by name; each must print no error and not import JAX."""
  calls = [(name, f"{ROOT}/launch/{name}.py", "--help") for name in programs()]
  printed = in_forks(tmp_path_factory.mktemp("help"), calls)
  assert {err for _, err in printed.values()} == {""}
  return {name: out for name, (out, _) in printed.items()}


FREQUENT = """\
pretrain --config=gpt1:small --workdir=new
  --data=tickets => --data=tickets: no such folder; did you mean tickets.
pretrain --config=storry --workdir=new --data=. => known names: story
pretrain --workdir=new --data=.
  --config=story.py => 'story.py': No such file or directory; did you mean --config=story?
  --config=gpt2-medium => did you mean --config=gpt2:medium?
  --config=gpt1-small => did you mean --config=gpt1:small?
  --config=gpt2:medum =>
    gpt2:medum: the sizes are small, medium, large, xl; did you mean --config=gpt2:medium?
  --config=tickets.csv => invalid syntax; a config is a Python file
  --config=gpt2 => gpt2:SIZE, one of small, medium, large, xl
  --config=finetune:cola => a FinetuneConfig; pre-training takes a PretrainConfig
  --config=gpt1 => note.txt is text, of which tokens are made first: python launch/prepare
pretrain --config=gpt1:small --workdir=new --data=gs://b/a
  --config.optim.warmup=300 => did you mean optim.warmup_steps or optim.warmup_share?
  --config.optim.warmup_share=10% => from 0.0 to 1.0, or none; did you mean 0.1?
  --batch_size=8 => unknown flag --batch_size; did you mean --config.data.batch_size?
  --config.train.steps=16k => from 0 to 1,000,000,000; did you mean 16000?
  --config.mesh.model=x => mesh.model = 'x': must be an integer from 1
  --tracker=wandB => --tracker=wandB: must be of tensorboard, wandb; did you mean wandb?
  --profile=5 => --profile=5: must be START:STOP
finetune --checkpoint=. --data=. --workdir=new
  --config=finetune:colla => no task 'colla'; did you mean cola?
plan --config=gpt2:medium
  --topology=v5e-16 => --topology=v5e-16: did you mean v5e:4x4?
  --topology=8xh100 => 8xh100 is not known; did you mean h100 or v100 or h200? (GPUs are a
  --topology=v9:4x4 => v9 is not known (GPUs are a100, a100-pcie-40gb, a100-sxm4-40gb,
  --topology=v5:4x4 => v5 is not known; did you mean v5p or v5e?
  --topology=v5e:4by4 => --topology=v5e:4by4: name the shape of the chips (examples: v5e:4x4
  --topology=v5e => --topology=v5e: name the shape of the chips (examples: v5e:4x4
  --topology=h100:8 --price=1,2 => --price=1,2: should be a number; did you mean 1.2? (with a dec
  --topology=h100:8 --vary=train.remt=none => did you mean train.remat?
predict --checkpoint=. --input=old.csv => --input=old.csv: a link to gone.csv, which is not there
predict --checkpoint=. --input=tickets.csv
  --precision=95 => 95.0 is not a number in the range [0, 1]; did you mean 0.95?
export --checkpoint=. --out=new
  --format=gguf => --format=gguf: must be one of hf, npz, onnx, onnx_int8, openai, peft
verify --checkpoint=. --checkpoint=.
  --replay => --replay needs a value: --replay=VALUE
prepare --out=new note.txt => --NAME=VALUE; did you mean --source=note.txt? (--help
prepare --source=. --out=new
  --vocab_size=16k => --vocab_size=16k: should be an integer; did you mean 16000?
cluster/check slurm
  train --config=gpt1 => train: is no program; did you mean pretrain? (on a cluster run eval
  --exclusive --nodes 2 pretrain => 2: is no program; did you mean --nodes=2? (on a
  --nodes=two pretrain => --nodes=two: should be a number, such as --nodes=2
  --gpus-per-node=h100:eight pretrain => --gpus-per-node=h100:eight: should be a number, su
  pretrain --config=gpt1 => missing --data, --workdir
  --ntasks-per-node=1 --gpus-per-node=h100:8 pretrain --config=gpt1 --data=. --workdir=new =>
    --gpus-per-node=h100:8: each task trains on one GPU; for 8 on a node give --ntasks-per-node=8
  --ntasks-per-node=8 --gres=gpu:h100:8,disk:9 pretrain --config=gpt1 --data=a/b --workdir=new =>
    --data=a/b: no such folder
  --gres=disk:9 pretrain --config=gpt1 --data=a/b --workdir=new => --data=a/b: no such folder
cluster/check tpu
  label tickets.csv => label: runs in one process (on a cluster run evaluate, finetune, pretrain)
  pretrain --config=gpt1 --data=gs://b/a => missing --workdir
  pretrain --config=gpt1 --data=data/x --workdir=gs://b/r =>
    --data=data/x: a path of this machine, or of each host alone; give gs://BUCKET/
  pretrain --config=gpt1 --data=gs://b/a --workdir=runs/y => --workdir=runs/y: a path of this mach
  --accelerator_type=v5litepod-8 pretrain --config=gpt1 --data=data/x --workdir=runs/y => --data=
  --setup=mount pretrain --config=gpt1 --data=/m/x --workdir=/m/y --config.lr=1 => did you mean
generate --checkpoint=tfidf/best --prompt=a => tfidf/best: a TF-IDF classifier of launch/label.py
generate --checkpoint=runs/small --prompt=a => --checkpoint=runs/small: no such fol
label --checkpoint=. --workdir=new
  ticket.csv => --input=ticket.csv: no such file; did you mean tickets.csv
  tickets.xlsx => tickets.xlsx: a zip archive
  tickets.csv => which of its columns is the label? --label=NAME says it
  tickets.csv --text=body --label=x => no column 'x' (the columns are 'subject'
"""


def test_frequent_mistakes_are_told_before_jax_is_imported(tmp_path):
  (tmp_path / "tickets.csv").write_text("subject,body,team\nlate,where is it?,post\n")
  (tmp_path / "tickets.xlsx").write_bytes(b"PK\x03\x04")
  (tmp_path / "note.txt").write_text("It was late.\n")
  (tmp_path / "old.csv").symlink_to("gone.csv")
  (tmp_path / "tfidf").mkdir()
  (tmp_path / "tfidf" / "classifier.npz").touch()
  calls = []
  for command, _ in table(FREQUENT):
    program, *arguments = command.split()
    calls.append((command, f"{ROOT}/launch/{program}.py", *arguments))
  printed = in_forks(tmp_path, calls)
  for command, message in table(FREQUENT):
    out, err = printed[command]
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_a_plan_by_a_formula_takes_no_jax(tmp_path):
  command = "plan", f"{ROOT}/launch/plan.py", "--config=gpt2:medium", "--topology=h100:8"
  out, err = in_forks(tmp_path, [command])["plan"]
  assert err == "" and "DOES NOT FIT; it fits with --config.train.microbatches=8, which" in out


def test_help_has_the_configs_that_a_program_takes(helps):
  for program, takes, refuses in (
    ("finetune", "finetune, finetune_elmo, finetune_encoder,", "gpt1"),
    ("pretrain", "gpt1, gpt2, lstm", "finetune, "),
    ("plan", "masked_small, mixture, roberta, story", "finetune, "),
  ):
    help = helps[program]
    about = " ".join(help[help.index("  --config") : help.index("get_config()")].split())
    assert takes in about and refuses not in about


HUGE = """import os, sys
import command_line
from absl import flags

flags.DEFINE_string("fail", "", "how to end")

def main():
  print(os.environ.get("GLIBC_TUNABLES"), os.getpid(), sys.argv[1:])

if "IMPORTED" in os.environ:
  import jax
command_line.process._HUGE_PAGES = sys.argv[0] + ".pages"
print("begun", flush=True)
command_line.run(main)
"""
OFFERED, TUNED = "always [madvise] never", "glibc.malloc.hugetlb=1"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize(
  "pages, before, after, starts",
  [
    (OFFERED, {}, TUNED, 2),
    (OFFERED, {"GLIBC_TUNABLES": "a=1"}, f"a=1:{TUNED}", 2),
    (OFFERED, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0", 1),
    (OFFERED, {"IMPORTED": "1"}, "None", 1),
    ("[always] madvise never", {}, "None", 1),
    (None, {}, "None", 1),
  ],
)
def test_commands_get_huge_pages_where_they_are_offered(tmp_path, pages, before, after, starts):
  """At most one more start of the same process, with the same arguments."""
  script = tmp_path / "huge.py"
  script.write_text(HUGE)
  if pages is not None:
    (tmp_path / "huge.py.pages").write_text(pages)
  env = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
  words, env = [sys.executable, script, "--fail=a b"], env | {"PYTHONPATH": SEARCH, **before}
  process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
  out = process.communicate()[0]
  assert out == "begun\n" * starts + f"{after} {process.pid} ['--fail=a b']\n"
