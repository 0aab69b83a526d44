"""Stands in for sbatch, srun and scontrol, by its first argument: records the others in
$CLUSTER/calls, and keeps a cluster of one node.

A job is a copy of the script; it runs in sbatch's own process, again after each `scontrol requeue`.
Its steps are $SLURM_NTASKS processes. After $CLUSTER/limit is there, a file that names another,
they get SIGTERM as soon as that one has three lines, as before the time limit.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

cluster = Path(os.environ["CLUSTER"])


def free_port() -> int:
  """Of the 4,096 that JAX takes the coordinator's from, by the number of the job."""
  for port in range(61440 + os.getpid() % 4000, 65535):
    with socket.socket() as server:
      if server.connect_ex(("127.0.0.1", port)):
        return port
  raise OSError("no port")


def sbatch(arguments: list[str]) -> int:
  at = next(i for i, word in enumerate(arguments) if not word.startswith("--"))
  script, rest = arguments[at], arguments[at + 1 :]
  directives = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", Path(script).read_text(), re.MULTILINE)
  options = dict(directives) | dict(
    word.removeprefix("--").partition("=")[::2] for word in arguments[:at]
  )
  copy = shutil.copy(script, cluster / "job")
  job = free_port() - 61440
  environment = os.environ | {
    "SLURM_JOB_ID": str(job),
    "SLURM_SUBMIT_DIR": os.getcwd(),
    "SLURM_NTASKS": options.get("ntasks", "1"),
    "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
  }
  for restarts in range(9):
    if restarts:
      environment["SLURM_RESTART_COUNT"] = str(restarts)
    mode = "a" if options.get("open-mode") == "append" else "w"
    with open(options["output"].replace("%j", "job"), mode) as log:
      code = subprocess.run(
        ["bash", copy, *rest], env=environment, stdout=log, stderr=log
      ).returncode
    if "requeue" not in options or not (cluster / "requeued").exists():
      break
    (cluster / "requeued").unlink()
  return code


def srun(arguments: list[str]) -> int:
  at = next(i for i, word in enumerate(arguments) if not word.startswith("--"))
  tasks = [
    subprocess.Popen(
      arguments[at:],
      env=os.environ
      | {
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": str(index),
      },
    )
    for index in range(int(os.environ["SLURM_NTASKS"]))
  ]
  limit = cluster / "limit"
  while limit.exists() and any(task.poll() is None for task in tasks):
    watched = Path(limit.read_text())
    if watched.exists() and watched.read_text().count("\n") > 2:
      for task in tasks:
        task.send_signal(signal.SIGTERM)
      limit.unlink()
    time.sleep(0.01)
  return max(task.wait() for task in tasks)


def scontrol(arguments: list[str]) -> int:
  assert arguments == ["requeue", os.environ["SLURM_JOB_ID"]]
  (cluster / "requeued").touch()
  return 0


name, *words = sys.argv[1:]
with (cluster / "calls").open("a") as file:
  cpus = os.environ.get("SRUN_CPUS_PER_TASK")
  print(json.dumps({"name": name, "words": words, "cpus": cpus}), file=file)
sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[name](words))
