"""launch/<program>.py in processes of their own, alone or as those of one distributed run."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Program:
  """A running launch/<program>.py; a context manager that kills what still runs."""

  def __init__(self, program, log, *flags, devices=1, root=ROOT):
    os.makedirs(os.path.dirname(log), exist_ok=True)
    self.log = log
    with open(log, "wb") as errors, open(f"{log}.out", "wb") as output:
      self.process = subprocess.Popen(
        [sys.executable, f"launch/{program}.py", *flags],
        cwd=root,
        env=os.environ
        | {
          "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("count=8", f"count={devices}"),
          "PYTHONPATH": str(root),
        },
        stdout=output,
        stderr=errors,
      )

  def log_text(self) -> str:
    return Path(self.log).read_text(encoding="utf-8", errors="replace")

  def output_text(self) -> str:
    """Standard output, without the lines of the library that joins processes on CPUs."""
    lines = Path(f"{self.log}.out").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo]"))

  def errors(self) -> list[str]:
    """The lines that say why it has ended, without a traceback beside them."""
    assert "Traceback" not in self.log_text(), self.log_text()
    return [line for line in self.log_text().splitlines() if line.startswith("error: ")]

  def wait_for(self, pattern: str, seconds: float = 240) -> None:
    """Waits until the log has the pattern or the process has ended."""
    end = time.monotonic() + seconds
    while not re.search(pattern, self.log_text()) and self.process.poll() is None:
      assert time.monotonic() < end, self.log_text()
      time.sleep(0.02)

  def ends(self, code: int = 0, seconds: float = 240) -> None:
    assert self.process.wait(seconds) == code, self.log_text()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
      self.process.wait()


def start_distributed(program, log, *flags, processes=2, devices=1, **of_last):
  """The processes of one distributed run, each with its own simulated devices.

  of_last: what is different for the last one: its flags, the root of its clone.
  """
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
  distributed = ("--distributed", f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}")
  programs = []
  for number in range(processes):
    own = {"flags": flags, "root": ROOT} | (of_last if number == processes - 1 else {})
    every = (*own["flags"], *distributed, f"--process_id={number}")
    log_of_one = f"{log}-{number}.log"
    programs.append(Program(program, log_of_one, *every, devices=devices, root=own["root"]))
  return programs


def trained(workdir) -> dict[int, float]:
  """The losses in metrics.jsonl by step, which must be in order and without gap or repetition."""
  with open(f"{workdir}/metrics.jsonl", encoding="utf-8") as file:
    losses = [(entry["step"], entry["loss"]) for entry in map(json.loads, file) if "loss" in entry]
  assert [step for step, _ in losses] == list(range(1, len(losses) + 1))
  return dict(losses)
