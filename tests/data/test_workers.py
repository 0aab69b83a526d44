import itertools
import os
import subprocess
import sys

import pytest

from gpt_jax.data.workers import map_in_order, worker_pool


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_order_and_few_tasks_are_held(count):
  taken = 0

  def tasks():
    nonlocal taken
    for taken in itertools.count(1):
      yield f"{taken}"

  with worker_pool(count) as pool:
    results = itertools.islice(map_in_order(pool, int, tasks()), 40)
    assert list(results) == [(f"{i}", i) for i in range(1, 41)]
    assert taken <= 40 + 20
    pids = {pid for _, pid in map_in_order(pool, _pid, range(4))}
  assert (os.getpid() in pids) == (count == 1)


PEAK = """
from gpt_jax.data.workers import map_in_order, peak_memory, worker_pool

if __name__ == "__main__":
  with worker_pool(2) as pool:
    list(map_in_order(pool, bytearray, [1000, {size}, 1000]))
  print(peak_memory())
"""


def test_the_peak_of_memory_is_that_of_the_largest_worker(tmp_path):
  peaks = []
  for size in (1 << 20, 200 << 20):
    (tmp_path / "peak.py").write_text(PEAK.format(size=size))
    done = subprocess.run(
      [sys.executable, "peak.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    peaks.append(int(done.stdout))
  assert peaks[1] - peaks[0] > 150 << 20


def _pid(_) -> int:
  return os.getpid()
