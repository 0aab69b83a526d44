"""Checks a command before it waits for a cluster; slurm.sh and tpu_vm.sh call it.

python launch/cluster/check.py slurm SBATCH_FLAGS… PROGRAM FLAGS…
python launch/cluster/check.py tpu [--setup=COMMAND] [--accelerator_type=TYPE] PROGRAM FLAGS…
"""

import itertools
import os
import re
import runpy
import sys
from pathlib import Path

LAUNCH = Path(__file__).resolve().parents[1]
sys.path[0] = str(LAUNCH)  # where the programs find command_line

import command_line  # noqa: E402
from command_line.failures import with_flags  # noqa: E402
from gpt_jax.errors import InputError, did_you_mean  # noqa: E402
from gpt_jax.files import is_url, split_names  # noqa: E402

# Flags of sbatch, which are a number, or one after the kind of a GPU
_COUNTS = {"--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task"}
_COUNTS |= {"--gpus", "--gpus-per-node", "--gpus-per-task"}
_ONE_HOST = 8  # the last number in the name of a TPU of one host is at most so large


def check(cluster: str, before: dict[str, str], words: list[str]) -> None:
  """Refuses a command: flags before the program, and the program with its own."""
  program, *arguments = words or [""]
  last = next(reversed(before), "")
  _check_program(program, "" if before.get(last) else last)
  script = str(LAUNCH / f"{program}.py")
  doc = runpy.run_path(script, run_name=program)["__doc__"]  # which defines its flags
  if cluster == "slurm":
    _check_tasks(before)
  if not command_line.check([script, *arguments], doc or "", looks=cluster == "slurm"):
    sys.exit(2)  # --help has been answered
  if cluster == "tpu" and not before.get("--setup"):
    count = before.get("--accelerator_type", "").rpartition("-")[2]
    _check_places(is_one=count.isdecimal() and int(count) <= _ONE_HOST)


def _check_program(program: str, bare: str) -> None:
  """Refuses what runs on no cluster; bare: the flag before it, if that has no value."""
  scripts = {path.stem: path.read_text(encoding="utf-8") for path in LAUNCH.glob("*.py")}
  several = sorted(name for name, text in scripts.items() if "define_distributed()" in text)
  if not program:
    raise InputError("which program of launch/, such as pretrain?")
  if program not in several:
    there, guess = "runs in one process", did_you_mean(program, several)
    if program not in scripts:  # it may be the value of the flag before it
      there = "is no program"
      equals = "=" if bare.startswith("--") else ""  # short flags have none
      guess = guess or (bare and f"; did you mean {bare}{equals}{program}?")
    raise InputError(f"{program}: {there}{guess} (on a cluster run {', '.join(several)})")


def _check_tasks(flags: dict[str, str]) -> None:
  """Refuses another number of tasks on a node than of GPUs: JAX gives each task of Slurm one."""
  for flag in sorted(_COUNTS & flags.keys()):
    if not re.fullmatch(r"(.*:)?\d[\d,:-]*[km]?", flags[flag], re.IGNORECASE):
      raise InputError(f"{flag}={flags[flag]}: should be a number, such as {flag}=2")
  given = {flag: value for flag, value in flags.items() if flag.startswith("--ntasks")}
  if given.keys() - {"--ntasks-per-node"}:  # Slurm spreads them
    return
  tasks = _last_number(given.get("--ntasks-per-node", "1"))
  for name in ("--gpus-per-node", "--gres", "--gpus-per-task"):
    value = flags.get(name, "")
    if name == "--gres":  # may name other things, too
      value = next((part for part in value.split(",") if part.startswith("gpu")), "")
    gpus = _last_number(value) * (tasks if name == "--gpus-per-task" else 1)
    if gpus and gpus != tasks:
      raise InputError(
        f"--ntasks-per-node={tasks} {name}={flags[name]}: each task trains on one GPU; for {gpus} "
        f"on a node give --ntasks-per-node={gpus} --gpus-per-node={gpus}"
      )


def _last_number(text: str) -> int:
  """8 of "h100:8" and of "gpu:h100:8"; 0 without one."""
  number = text.rpartition(":")[2]
  return int(number) if number.isdecimal() else 0


def _check_places(is_one: bool) -> None:
  """Refuses paths of this machine, of which the hosts of a TPU get the clone's commit alone."""
  for name in ("data", "checkpoint", "tokenizer", "workdir"):
    value = command_line.FLAGS[name].value if name in command_line.FLAGS else ""
    for path in [value] if isinstance(value, str) else value or []:
      local = [part for part in split_names(path) if part not in ("", "none") and not is_url(part)]
      if local and not (is_one and name == "workdir"):
        raise InputError(
          f"--{name}={path}: a path of this machine, or of each host alone; give gs://BUCKET/…, or "
          "before the program a --setup=COMMAND that mounts or copies it on every host"
        )
  config = command_line.FLAGS.config if "config" in command_line.FLAGS else ""
  if os.path.isfile(config) and LAUNCH.parent not in Path(config).resolve().parents:
    raise InputError(f"--config={config}: not in the clone, of which the hosts get the last commit")


if __name__ == "__main__":
  cluster, *given = sys.argv[1:]
  flags = list(itertools.takewhile(lambda word: word.startswith("-"), given))
  before = {name: value for name, _, value in (flag.partition("=") for flag in flags)}
  try:
    check(cluster, before, given[len(flags) :])
  except InputError as error:
    print("error:", with_flags(str(error)), file=sys.stderr)
    sys.exit(2)
