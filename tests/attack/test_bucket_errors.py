"""Runs on gs:// and s3:// whose requests fail now and then: nothing is lost.

`bash launch/test.sh -m store tests/attack/test_bucket_errors.py --budget=40`: 800 errors.
"""

import contextlib
import time

import pytest
from conftest import complete
from small_runs import results
from stores import Faults, gcs_environment, s3_environment

from gpt_jax.checkpoints.restore import saved_steps

pytestmark = pytest.mark.attack


@pytest.fixture
def behind_faults(stores, monkeypatch):
  """behind_faults(store, **settings): a block in which programs reach the store through Faults."""

  @contextlib.contextmanager
  def block(store, **settings):
    environment, url = gcs_environment, stores["STORAGE_EMULATOR_HOST"]
    if store.startswith("s3://"):
      environment, url = s3_environment, stores["AWS_ENDPOINT_URL"]
    port = int(url.rpartition(":")[2])
    with Faults(port, **settings) as faults, monkeypatch.context() as patch:
      for name, value in environment(faults.port).items():
        patch.setenv(name, value)
      yield faults

  return block


def test_errors(make, store, behind_faults, tmp_path, attempts, ledger):
  """Each run meets a few, and is the same as on a disk."""
  count, outcomes = attempts(10), []
  local = str(tmp_path / "whole")
  complete(make("pretrain", local))
  expected = results("pretrain", local)
  while len(outcomes) < count:
    workdir = f"{store}/{len(outcomes)}"
    with behind_faults(store, rate=0.04, seed=len(outcomes)) as faults:
      output = complete(make("pretrain", workdir))
    same = results("pretrain", workdir) == expected and "Traceback" not in output
    outcomes += faults.injected * ["harmless" if same else f"{workdir}: {output[-300:]}"]
  ledger(f"errors of {store[:5]} (429, 503, dropped connections)", outcomes)


@pytest.mark.parametrize("kind", ["stale", "missing"])
def test_wrong_answers(kind, make, store, behind_faults, tmp_path, random, attempts, ledger):
  """A killed run goes on among listings of before it was killed, or objects that are not found
  once: it ends as on a disk, or with one line, and does so when it is given again.
  """
  count, outcomes = attempts(0.4), []
  local = str(tmp_path / "whole")
  began = time.monotonic()
  complete(make("pretrain", local))
  duration = time.monotonic() - began
  expected = results("pretrain", local)
  while len(outcomes) < count:
    workdir = f"{store}/{len(outcomes)}"
    with behind_faults(store, rate=0, seed=len(outcomes), kinds=[kind]) as faults:
      process = make("pretrain", workdir)
      time.sleep(random.uniform(1, 2) * duration)
      process.kill()
      process.communicate()
      faults.rate = 0.2
      process = make("pretrain", workdir)
      output = complete(process, codes=(0, 2, 75))
      faults.rate = 0
      if process.returncode:
        complete(make("pretrain", workdir))
    one_line = process.returncode == 0 or output.splitlines()[-1].startswith("error: ")
    # Of a log whose parts are not listed, lines are lost.
    same = results("pretrain", workdir)[1:] == expected[1:]
    good = one_line and same and "Traceback" not in output
    outcome = "harmless" if good else f"{workdir}: same: {same}, {output[-600:]}"
    outcomes += max(1, faults.injected) * [outcome]
  ledger(f"answers of {store[:5]}, {kind}", outcomes)


@pytest.mark.parametrize("refused", [1, 1000])
def test_a_checkpoint_that_is_refused_is_written_again(make, gs, behind_faults, refused):
  """If it is refused again, the run ends with one line."""
  with behind_faults(gs, rate=0, refuse="checkpoints%2F9%2Fstate", refused=refused):
    output = complete(make("pretrain", gs), codes=(0 if refused == 1 else 75,))
  _, rest = output.split(f"{gs}/checkpoints/9: not written; trying again\n")
  assert saved_steps(gs)[-1] == (24 if refused == 1 else 6)
  if refused == 1:
    return
  *_, report, error = rest.splitlines()
  assert report.startswith("report: ") and error.startswith(f"error: {gs}/checkpoints: cannot be")
  assert "Traceback" not in output and "asyncio" not in output
