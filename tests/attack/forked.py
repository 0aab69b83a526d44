"""Programs in processes that are forked after their imports: several times as many kills an hour.

A killed process is as dead as another, and writes nothing while it imports.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOADED = ["gpt_jax.programs.pretrain", "gpt_jax.programs.finetune", "gpt_jax.programs.prepare"]


class Forked:
  """launch/<program>.py in a process of its own, with the methods of subprocess.Popen."""

  def __init__(self, program, flags, devices):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    self._log = tempfile.NamedTemporaryFile()
    self._process = context.Process(target=_run, args=(program, flags, devices, self._log.name))
    self._process.start()

  @property
  def returncode(self):
    return self._process.exitcode

  def poll(self):
    return self._process.exitcode

  def kill(self):
    self._process.kill()

  def send_signal(self, number):
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):  # it ends at this moment
        os.kill(self._process.pid, number)

  def communicate(self, timeout=None):
    self._process.join(timeout)
    assert self.poll() is not None, f"still running: {self.output()}"
    return self.output(), None

  def output(self):
    return Path(self._log.name).read_text(errors="replace")


def _run(program, flags, devices, log):
  with open(log, "ab") as file:
    for stream in (1, 2):
      os.dup2(file.fileno(), stream)
  signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of forks ignores it
  os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("count=8", f"count={devices}")
  script = ROOT / "launch" / f"{program}.py"
  sys.argv = [str(script), *flags]
  sys.path.insert(0, str(script.parent))
  os.chdir(ROOT)
  runpy.run_path(str(script), run_name="__main__")
