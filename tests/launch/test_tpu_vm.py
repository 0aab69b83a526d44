"""launch/cluster/tpu_vm.sh against a stand-in for gcloud, whose hosts run a small program."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_ins import CHECK, read_calls, run, write_command, write_stand_in

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
TPU_VM = "launch/cluster/tpu_vm.sh"
PLACE = ("--zone=us-central2-b", "--project=my-project")
MAKE = ("--accelerator_type=v5litepod-16", "--spot")
RETRY = ("run", *MAKE, "--retry")
# Counts steps until SIGTERM, upon which it saves; --exit=CODE ends it at once.
PROGRAM = """
import signal, sys, time
def stop(number, frame):
  print("checkpoint saved", flush=True)
  sys.exit(143)
signal.signal(signal.SIGTERM, stop)
assert sys.argv[1] == "--distributed"
print("step 1,200/10,000  loss 3.2", flush=True)
for flag in sys.argv[2:]:
  if flag.startswith("--exit="):
    sys.exit(int(flag.partition("=")[2]))
while True:
  time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
  """A repository with the two scripts and a program `pretrain`; installing it does nothing."""
  clone = tmp_path_factory.mktemp("clone")
  (clone / "launch" / "cluster").mkdir(parents=True)
  for name in ("tpu_vm.sh", "tpu_worker.sh"):
    shutil.copy(ROOT / "launch" / "cluster" / name, clone / "launch" / "cluster")
  (clone / "launch" / "environment.sh").write_text(f"install() {{ python={sys.executable}; }}\n")
  (clone / "launch" / "pretrain.py").write_text(PROGRAM)
  git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
  for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
    subprocess.run([*git, *words], cwd=clone, check=True)
  write_command(clone / ".venv/bin/python", f'exec {sys.executable} "$@"')
  (clone / "launch" / "cluster" / "check.py").write_text(CHECK)
  return clone


class Cloud:
  """The stand-in's folder, and tpu_vm(COMMAND, …) -> (exit code, stdout, stderr)."""

  def __init__(self, folder: Path, clone: Path):
    self.folder, self._clone = folder, clone
    write_stand_in(folder / "bin" / "gcloud", "gcloud_stand_in.py")
    write_command(folder / "bin" / "sleep", "exec /bin/sleep 0.05")
    write_command(folder / "bin" / "sudo", "exit 1")
    (folder / "bin" / "python3.11").symlink_to(sys.executable)

  def set(self, **values: str) -> None:
    for name, value in values.items():
      (self.folder / name).write_text(value)

  def calls(self) -> list[str]:
    """`GROUP VERB` of each call since the last."""
    self.arguments = read_calls(self.folder)
    return [" ".join(arguments[2:4]) for arguments in self.arguments]

  def __call__(self, command: str, *arguments: str, place=PLACE) -> tuple[int, str, str]:
    return self.run("bash", TPU_VM, command, "node", *place, *arguments)

  def run(self, *words) -> tuple[int, str, str]:
    """Any command, in the stand-in's folder."""
    words = [self._clone / TPU_VM if word == TPU_VM else word for word in words]
    return run(self.folder, words, self.folder, CLOUD=str(self.folder))

  def wait(self, *, ended: bool = False) -> None:
    """Until both hosts are at a step, or have written an exit code."""
    for host in "01":
      folder = self.folder / host / "gpt_jax_run"
      for _ in range(3000):
        newest = (folder / "log").read_text().rpartition("launch/pretrain.py")[2]
        if (folder / "exit_code").exists() if ended else "loss" in newest:
          break
        time.sleep(0.01)
      else:
        raise AssertionError(newest)


@pytest.fixture
def cloud(tmp_path, clone):
  cloud = Cloud(tmp_path / "cloud", clone)
  yield cloud
  if (cloud.folder / "state").exists():
    cloud.set(state="ACTIVE", node="READY", broken="0")
    cloud("stop")


@pytest.fixture
def active(cloud):
  """With a TPU."""
  assert cloud("create", *MAKE)[0] == 0
  cloud.calls()
  return cloud


def test_a_run_from_the_queue_to_its_checkpoint(cloud):
  cloud.set(after_create="WAITING_FOR_RESOURCES")
  assert cloud("create", *MAKE, "--create_flag=--network=n")[0] == 0
  assert cloud.calls() == ["queued-resources create"]
  kind = "--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"
  flags = "--node-id=node", *kind, "--spot", "--async", "--network=n", *PLACE, "--quiet"
  assert cloud.arguments[0][4:] == ["node", *flags]
  assert "queued (WAITING_FOR_RESOURCES)" in cloud("status")[1]
  code, _, err = cloud("run", "pretrain")
  assert code == 1 and "is WAITING_FOR_RESOURCES, not ACTIVE" in err

  cloud.set(state="ACTIVE")
  code, out, err = cloud("run", "pretrain", "--workdir=a b")
  assert (code, err) == (0, "") and "starting pretrain" in out
  cloud.wait()
  assert "running step 1,200/10,000, 2 host(s)" in cloud("status")[1]
  log = cloud.folder / "0" / "gpt_jax_run" / "log"
  assert "launch/pretrain.py --workdir=a b\n" in log.read_text()
  assert "running step" in cloud("run", "pretrain", "--workdir=a b")[1]  # and starts no second
  code, _, err = cloud("run", "pretrain", "--workdir=other")
  assert code == 2 and "another command" in err and err.count("\n") == 1

  code, out, _ = cloud("stop")
  assert code == 0 and "stopped step 1,200/10,000" in out
  for host in "01":
    text = (cloud.folder / host / "gpt_jax_run" / "log").read_text()
    assert text.count("checkpoint saved") == 1 and "exit code 143" in text
  assert (cloud.folder / "state").exists()  # not deleted


def test_after_a_preemption_it_is_made_again_and_goes_on(active):
  run = (*RETRY, "pretrain")
  assert active(*run)[0] == 0
  active.wait()
  active.calls()
  assert active(*run)[0] == 0  # it runs: nothing is made or started
  assert {"queued-resources create", "tpu-vm scp"}.isdisjoint(active.calls())

  assert active("stop")[0] == 0  # as a preemption ends the program
  active.set(node="PREEMPTED")
  assert "preempted" in active("status")[1]
  active.calls()
  code, out, _ = active(*run)
  assert code == 0 and "making it again" in out
  made = ["queued-resources describe", "tpu-vm describe"]
  assert active.calls() == [*made, "queued-resources delete", "queued-resources create"]
  assert "--spot" in active.arguments[-1]
  assert "starting" in active(*run)[1]
  active.wait()


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_a_request_that_is_over_is_made_again(active, state):
  active.set(state=state)
  assert f"is {state}, not ACTIVE" in active("logs")[2]
  active.calls()
  assert active(*RETRY, "pretrain")[0] == 0
  assert active.calls()[1:] == ["queued-resources delete", "queued-resources create"]


@pytest.mark.parametrize("state", ["SUSPENDING", "PROVISIONING", "WAITING_FOR_RESOURCES"])
def test_a_request_that_is_on_its_way_is_left_alone(active, state):
  active.set(state=state)
  code, out, _ = active(*RETRY, "pretrain")
  assert code == 0 and f"{state}, waiting" in out
  assert active.calls() == ["queued-resources describe"]


def test_every_looks_until_the_program_has_ended_and_then_only_another_is_started(active):
  repeated = *RETRY, "--every=1", "pretrain", "--exit=0"
  code, out, err = active(*repeated)
  assert (code, err) == (0, "") and out.endswith("node: finished\n")
  active.set(state="SUSPENDED")
  code, out, _ = active(*repeated)
  assert code == 0 and out.index("making it again") < out.index("starting") < out.index("finished")
  active.calls()
  assert "finished" in active(*RETRY, "pretrain", "--exit=0")[1]
  assert "tpu-vm scp" not in active.calls()
  assert "starting" in active(*RETRY, "pretrain")[1]


@pytest.mark.parametrize(
  "code, ends, message", [(2, 2, "user error"), (130, 0, "was interrupted (exit code 130)")]
)
def test_a_user_error_or_an_interrupted_run_is_not_repeated(active, code, ends, message):
  returned, *streams = active(*RETRY, "--every=1", "pretrain", f"--exit={code}")
  assert returned == ends and message in "".join(streams)
  assert (active.folder / "0" / "gpt_jax_run" / "log").read_text().count("== ") == 2


def test_it_gives_up_where_the_program_gets_no_further(active):
  for earlier in (0, 3):
    (active.folder / "0" / "gpt_jax_run").mkdir(exist_ok=True)
    with (active.folder / "0" / "gpt_jax_run" / "failures").open("a") as file:
      file.write("1 step 1,200/10,000\n" * earlier)
    assert "starting" in active(*RETRY, "pretrain", "--exit=1")[1]
    active.wait(ended=True)
  code, _, err = active(*RETRY, "pretrain", "--exit=1")
  assert code == 1 and "failed 5 times with exit code 1 step 1,200/10,000" in err


def test_what_was_stopped_stays_so(active):
  assert active(*RETRY, "pretrain")[0] == 0
  active.wait()
  assert active("stop")[0] == 0
  code, out, _ = active(*RETRY, "--every=1", "pretrain")
  assert code == 0 and "was stopped" in out
  code, out, _ = active("stop", "--delete", "--yes")
  assert code == 0 and "deleted" in out
  active.calls()
  code, _, err = active(*RETRY, "--every=1", "pretrain")
  assert code == 2 and "there is no node" in err
  assert "queued-resources create" not in active.calls()


def test_nothing_is_deleted_that_has_not_stopped(active):
  assert active("run", "pretrain")[0] == 0
  active.wait()
  active.set(broken="1")
  code, _, err = active("stop", "--delete", "--yes")
  assert code == 1 and "nothing was deleted" in err
  assert (active.folder / "state").exists()


def test_a_connection_may_fail_twice(active):
  active.set(broken="2")
  assert active("status")[:2] == (0, "node: none, 2 host(s) answered\n")
  active.set(broken="3")
  code, _, err = active("status")
  assert code == 1 and err.startswith("error: node cannot be reached: ERROR")
  assert err.count("\n") == 1
  active.calls()
  active.set(broken="9")  # is no reason to make it again
  code, *_ = active(*RETRY, "pretrain")
  assert code == 1 and "queued-resources delete" not in active.calls()


def test_quota_is_said_in_one_line(cloud):
  cloud.set(create_error="RESOURCE_EXHAUSTED: Quota limit 'TPUV5s' has been exceeded. Limit: 16")
  code, _, err = cloud("create", *MAKE)
  assert code == 1 and "over the project's quota" in err and "Limit: 16" in err
  assert err.count("\n") == 1
  cloud.set(create_error="INVALID_ARGUMENT: no such accelerator")
  code, _, err = cloud("create", *MAKE)
  assert code == 2 and "no such accelerator" in err and err.count("\n") == 1


@pytest.mark.parametrize(
  "command, flags",
  [
    ("create", (*MAKE, "--dry_run")),
    ("run", ("--dry_run", "pretrain")),
    ("run", ("pretrain", "--config=gpt1", "--dry_run")),
    ("run", ("pretrain", "--dry-run", "--config=gpt1")),
    ("run", (*MAKE, "--retry", "--dry_run", "pretrain")),
    ("status", ("--dry_run",)),
    ("logs", ("--dry_run",)),
    ("stop", ("--delete", "--yes", "--dry_run")),
  ],
)
def test_a_dry_run_prints_all_commands_and_runs_none(cloud, command, flags):
  code, out, err = cloud(command, *flags)
  assert (code, err) == (0, "") and cloud.calls() == []
  assert "--dry" not in out
  lines = [line for line in out.splitlines() if not line.startswith("#")]
  assert all(line.startswith(("gcloud compute tpus ", "git archive ")) for line in lines), out
  expected = {
    "create": ["queued-resources create"],
    "run": ["queued-resources describe", "tpu-vm scp", "tpu-vm ssh", "tpu_worker.sh start"],
    "status": ["queued-resources describe", "tpu-vm describe", "tpu_worker.sh state"],
    "logs": ["queued-resources describe", "tpu_worker.sh log 100"],
    "stop": ["queued-resources describe", "tpu_worker.sh stop 300", "queued-resources delete"],
  }[command]
  if "--retry" in flags:
    expected += ["queued-resources delete", "queued-resources create"]
  assert [words for words in expected if words not in out] == []
  if "queued-resources create" in expected:  # a printed command can be given as it is
    (line,) = [line for line in lines if "queued-resources create" in line]
    cloud.set(state="")
    assert cloud.run("bash", "-c", line)[0] == 0
    assert cloud.calls() == ["queued-resources create"]


@pytest.mark.parametrize(
  "arguments, message",
  [
    (("create", "a node"), "NAME=a node: must be lower-case"),
    (("create", "Node"), "NAME=Node: must be lower-case"),
    (("create", ""), "create: the NAME of the TPU comes next, such as create my-tpu"),
    (("create", "--dry_run"), "create: the NAME of the TPU comes next"),
    (("--dry_run", "crate"), "no command 'crate': must be create"),
    (("crate", "node"), "no command 'crate': must be create, run, status, logs or stop"),
    (("delete", "node"), "no command 'delete': stop node --delete --yes saves"),
    (("status", "node", "--project=p"), "--zone=: give a zone"),
    (("status", "node", "--zone=us-central2-b"), "--project=: give the ID"),
    (("status", "node", "--zone=us central", "--project=p"), "--zone=us central: "),
    (("create", "node", *PLACE), "--accelerator_type=: must be such as"),
    (("create", "node", *PLACE, "--accelerator_type=tpu7x-8"), "launch/cluster/kubernetes.yaml"),
    (("run", "node", *PLACE), "which program of launch/"),
    (("run", "node", *PLACE, "pretrian"), "there is no launch/pretrian.py"),
    (("run", "node", *PLACE, "label", "a.csv"), "label: runs in one process"),
    (("run", "node", *PLACE, "--retry", "pretrain"), "--accelerator_type=: must be"),
    (("run", "node", *PLACE, "--every=5", "pretrain"), "--every needs --retry"),
    (("logs", "node", *PLACE, "--lines=-1"), "take a positive integer"),
    (("stop", "node", *PLACE, "--delete"), "--delete also needs --yes"),
    (("stop", "node", *PLACE, "--force"), "unknown flag --force"),
    (
      ("create", "node", *PLACE, "--accelerator_type", "v4-8"),
      "--accelerator_type needs a value: --",
    ),
    (("status", "node", *PLACE, "now"), "unexpected argument now of status"),
  ],
)
def test_a_mistake_is_one_line(cloud, arguments, message, monkeypatch):
  for name in ("CLOUDSDK_COMPUTE_ZONE", "CLOUDSDK_CORE_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  code, _, err = cloud.run("bash", ROOT / TPU_VM, *arguments)
  assert code == 2 and err.count("\n") == 1
  assert err.startswith("error: ") and message in err
  assert cloud.calls() == []


def test_a_dry_run_may_be_asked_for_first(cloud):
  assert cloud.run("bash", TPU_VM, "--dry_run", "status", "node", *PLACE)[0] == 0
  assert cloud.calls() == []


def test_zone_and_project_may_be_in_the_environment(active, monkeypatch):
  monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "us-central2-b")
  monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "my-project")
  assert active("status", place=())[0] == 0
