"""Memory of processes, in processes of their own."""

import subprocess
import sys

PEAK = """
import sys
from gpt_jax.data.passes import map_in_order, worker_pool
from gpt_jax.parallel.memory import peak_with_workers

def fill(size):
  return len(b"x" * size)

if __name__ == "__main__":
  with worker_pool(2) as pool:
    list(map_in_order(pool, fill, [1000, {size}, 1000]))
  print(int(peak_with_workers()), "jax" in sys.modules)
"""


def test_the_peak_of_memory_is_that_of_the_largest_worker(tmp_path):
  """Whatever the process held that starts the one that has workers; and without JAX."""
  held = b"x" * (300 << 20)
  del held
  peaks = []
  for size in (1 << 20, 200 << 20):
    (tmp_path / "peak.py").write_text(PEAK.format(size=size))
    done = subprocess.run(
      [sys.executable, "peak.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    peak, imports_jax = done.stdout.split()
    assert imports_jax == "False"
    peaks.append(int(peak))
  assert peaks[1] - peaks[0] > 150 << 20
