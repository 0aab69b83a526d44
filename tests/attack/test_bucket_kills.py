"""Runs on gs:// and s3:// that are killed with -9: nothing is lost.

`bash launch/test.sh -m store tests/attack/test_bucket_kills.py --budget=20`: 80 kills.
"""

import signal
import time

import pytest
from small_runs import complete, results

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("program", ["pretrain", "finetune"])
def test_kills(program, make, whole, store, random, attempts, ledger):
  count, outcomes = attempts(1), []
  expected, duration = whole(program)  # on a store it takes longer
  while len(outcomes) < count:
    workdir, met = f"{store}/{len(outcomes)}", 0
    while met < min(4, count - len(outcomes)):
      process = make(program, workdir)
      time.sleep(random.uniform(0, duration))
      if process.poll() is not None:
        complete(process)
        break
      process.send_signal(signal.SIGKILL)
      process.communicate()
      met += 1
    complete(make(program, workdir))
    same = results(program, workdir) == expected
    outcomes += met * ["harmless" if same else f"{workdir}: not the same"]
  ledger(f"kills, {program} on {store[:5]}", outcomes)
