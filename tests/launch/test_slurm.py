"""launch/cluster/slurm.sh against stand-ins for sbatch, srun and scontrol."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from stand_ins import CHECK, read_calls, run, write_command, write_stand_in

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
# The loop of training in the processes of a run; the state is the number of steps, and a restart
# makes three more.
COUNTS = '''"""Counts steps.

python launch/pretrain.py --workdir=DIR
"""

from absl import flags

import command_line

WORKDIR = flags.DEFINE_string("workdir", None, "a folder", required=True)
command_line.define_distributed()


def main():
  import os
  import types
  from pathlib import Path

  import jax
  import jax.numpy as jnp

  from gpt_jax.training import hooks, loop

  folder, index = Path(WORKDIR.value), jax.process_index()
  saved = folder / f"saved_{index}"
  start = int(saved.read_text()) if saved.exists() else 0
  end = start + 3 if "SLURM_RESTART_COUNT" in os.environ else 10**6
  print(f"process {index} of {jax.process_count()} begins at {start}", flush=True)

  def step(state, batch):
    if index == 0:
      with open(folder / "steps", "a") as file:
        print(batch + 1, file=file)
    return state, {"loss": jnp.float32(1), "finite": jnp.array(True)}

  def save(moment):
    saved.write_text(str(moment.step))

  hook = hooks.Hook(save, hooks.every(0), at_end=False, on_stop=True)
  loop.fit(types.SimpleNamespace(step=start), step, lambda number: number, end, [hook])


if __name__ == "__main__":
  command_line.run(main)
'''
# Ends with the next of the codes in a file.
PROGRAM = """
import sys
from pathlib import Path
path = Path(sys.argv[-1])
code, _, rest = path.read_text().partition(" ")
path.write_text(rest)
sys.exit(int(code))
"""


class Cluster:
  """A clone whose program `pretrain` ends with given codes; its Slurm is a stand-in."""

  def __init__(self, folder: Path):
    self.folder = folder
    launch = folder / "clone" / "launch"
    (launch / "cluster").mkdir(parents=True)
    (launch / "pretrain.py").write_text(PROGRAM)
    (launch / "cluster" / "check.py").write_text(CHECK)
    shutil.copy(ROOT / "launch" / "cluster" / "slurm.sh", launch / "cluster")
    write_command(folder / "clone/.venv/bin/python", f'exec {sys.executable} "$@"')
    for name in ("sbatch", "srun", "scontrol"):
      write_stand_in(folder / "bin" / name, "slurm_stand_in.py", name)

  def ends_with(self, *codes: int) -> tuple[int, int, int]:
    """Exit code, starts and requests to requeue of a job whose program ends so."""
    path = self.folder / "codes"
    path.write_text(" ".join(map(str, codes)))
    code, *_ = self("pretrain", str(path))
    names = [call["name"] for call in self.calls()]
    return code, names.count("srun"), names.count("scontrol")

  def calls(self) -> list[dict]:
    return read_calls(self.folder)

  def log(self) -> str:
    return (self.folder / "clone" / "slurm-job.log").read_text()

  def __call__(self, *arguments: str) -> tuple[int, str, str]:
    script = self.folder / "clone" / "launch" / "cluster" / "slurm.sh"
    environment = {
      "CLUSTER": str(self.folder),
      "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", "count=2"),
      "PYTHONPATH": str(ROOT),
    }
    return run(self.folder, ["bash", script, *arguments], self.folder, **environment)


@pytest.fixture
def cluster(tmp_path):
  return Cluster(tmp_path)


def test_two_tasks_find_each_other_save_at_the_time_limit_and_resume(cluster):
  launch, workdir = cluster.folder / "clone" / "launch", cluster.folder / "run"
  (launch / "command_line").symlink_to(ROOT / "launch" / "command_line")
  for path in (ROOT / "launch").glob("*.py"):
    if path.name != "pretrain.py":
      (launch / path.name).symlink_to(path)
  (launch / "pretrain.py").write_text(COUNTS)
  workdir.mkdir()
  (cluster.folder / "limit").write_text(str(workdir / "steps"))
  code, _, err = cluster("--ntasks=2", "pretrain", f"--workdir={workdir}")
  assert code == 0, (err, cluster.log())
  names = [call["name"] for call in cluster.calls()]
  assert names == ["sbatch", "srun", "scontrol", "srun"]
  steps = [int(line) for line in (workdir / "steps").read_text().splitlines()]
  assert steps == list(range(1, steps[-1] + 1))
  stopped = [int((workdir / f"saved_{index}").read_text()) for index in (0, 1)]
  assert stopped == [steps[-1] - 3] * 2  # both at the same step, from which both went on
  for start in (0, stopped[0]):
    for index in (0, 1):
      assert f"process {index} of 2 begins at {start}\n" in cluster.log()


def test_the_flags_before_the_program_are_sbatch_s(cluster):
  (cluster.folder / "codes").write_text("0")
  assert cluster("--nodes=1", "--comment=a b", "pretrain", "--x=c d", "../codes")[0] == 0
  sbatch, srun = cluster.calls()
  program = ["pretrain", "--x=c d", "../codes"]
  assert sbatch["words"] == ["--nodes=1", "--comment=a b", "launch/cluster/slurm.sh", *program]
  command = [".venv/bin/python", "launch/pretrain.py", "--distributed", *program[1:]]
  assert srun["words"] == ["--kill-on-bad-exit=1", *command]
  assert srun["cpus"] == "8"  # which srun does not take from the job itself


def test_a_saved_run_goes_on_and_others_end(cluster):
  assert cluster.ends_with(143, 129, 138, 143, 143, 0) == (0, 6, 5)
  assert cluster.ends_with(2) == (2, 1, 0)
  assert cluster.ends_with(130) == (130, 1, 0)


def test_a_program_that_fails_is_started_again_three_times(cluster):
  assert cluster.ends_with(1, 143, 137, 1, 1, 0) == (1, 5, 4)
  assert "error: failed 4 times, the last with exit code 1" in cluster.log()


@pytest.mark.parametrize(
  "arguments",
  [
    ("--dry_run", "--nodes=2", "pretrain", "--workdir=a b"),
    ("--nodes=2", "pretrain", "--workdir=a b", "--dry_run"),
    ("--nodes=2", "pretrain", "--dry-run", "--workdir=a b"),
  ],
)
def test_a_dry_run_prints_the_commands_and_runs_none(cluster, arguments):
  code, out, err = cluster(*arguments)
  assert (code, err) == (0, "") and cluster.calls() == []
  assert out.splitlines()[0] == "sbatch --nodes=2 launch/cluster/slurm.sh pretrain '--workdir=a b'"
  assert ".venv/bin/python launch/pretrain.py --distributed '--workdir=a b'\n" in out
  assert "\nscontrol requeue " in out


@pytest.mark.parametrize(
  "arguments, message",
  [
    ((), "which program of launch/"),
    (("--nodes=2",), "which program of launch/"),
    (("--nodes=2", "pretrain", "--wrong"), "error: refused"),
    (("-N", "2", "pretrain"), "-N: write sbatch's flags as --NAME=VALUE"),
  ],
)
def test_a_mistake_is_one_line_before_the_queue(cluster, arguments, message):
  code, _, err = cluster(*arguments)
  assert code == 2 and message in err and err.count("\n") == 1
  assert cluster.calls() == []


def test_what_is_missing_is_said(cluster):
  (cluster.folder / "bin" / "sbatch").unlink()
  assert "sbatch is not here" in cluster("pretrain")[2]
  (cluster.folder / "clone" / ".venv" / "bin" / "python").unlink()
  python = cluster.folder / "bin" / "python3"
  write_command(python, "exit 1")
  code, _, err = cluster("pretrain")
  assert code == 2 and "there is no .venv here" in err and err.count("\n") == 1
  write_command(python, f'exec {sys.executable} "$@"')  # such as that of a conda environment
  assert cluster("pretrain", "--wrong")[::2] == (2, "error: refused\n")
  assert " python3 launch/pretrain.py --distributed" in cluster("--dry_run", "pretrain")[1]
