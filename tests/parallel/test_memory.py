"""Memory of processes, in processes of their own."""

import ctypes
import subprocess
import sys

import pytest

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


def run_python(script, folder):
  (folder / "script.py").write_text(script)
  command = [sys.executable, "script.py"]
  return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_peak_of_memory_is_that_of_the_largest_worker(tmp_path):
  """Whatever the process held that starts the one that has workers; and without JAX."""
  held = b"x" * (300 << 20)
  del held
  peaks = []
  for size in (1 << 20, 200 << 20):
    peak, imports_jax = run_python(PEAK.format(size=size), tmp_path).split()
    assert imports_jax == "False"
    peaks.append(int(peak))
  assert peaks[1] - peaks[0] > 150 << 20


KEPT = """
import ctypes
from gpt_jax.parallel.memory import FreedMemory, _process

MB, libc = 10**6, ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.mallopt(-4, 0)  # M_MMAP_MAX, as launch/command_line/process.py sets it
libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
waits = []

def step(freed, size):
  block = libc.malloc(size)
  libc.memset(block, 1, size)
  libc.free(block)
  before = _process("VmRSS")
  freed.give_back(lambda: waits.append(size))
  return round((before - _process("VmRSS")) / MB)

freed, never = FreedMemory(room=301 * MB, waits=True), FreedMemory(room=0, waits=True)
print(step(freed, 250 * MB), step(freed, 350 * MB), step(freed, 250 * MB), step(never, 500 * MB))
print(len(waits))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_memory_goes_back_where_there_is_more_than_a_step_needs(tmp_path):
  within, beyond, within_again, never, waits = map(int, run_python(KEPT, tmp_path).split())
  # Waits before each step, and before memory is returned.
  assert beyond > 300 and (within, within_again, never, waits) == (0, 0, 0, 4)
