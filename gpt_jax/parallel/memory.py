"""Memory: what a compiled program needs, what devices have, what is in use.

A CPU's devices share the memory of the machine, and of its control group if a container or a
cluster sets a limit; what is in use there is the resident memory of this process. The commands let
malloc keep what is freed (launch/command_line/process.py), so that is part of it, too.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # launch/prepare.py needs no JAX
  import jax

_GROUPS = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
_FREEING = 0.02  # seconds that temporaries may be there after their step has ended
_MIN_ROOM = 1e8  # bytes that a process grows by for other reasons, see FreedMemory


class Forecast(NamedTuple):
  """Expected memory of a run; 0: unknown."""

  # Bytes at the peak: of the fullest device or, on CPUs, of this process with evaluations, samples,
  # checkpoints and the blocks that malloc keeps.
  memory: float = 0.0
  limit: float = 0.0  # bytes available to it now
  # For FreedMemory:
  room: float = 0.0
  waits: bool = False


class Needed(NamedTuple):
  """Bytes at the peak of a run: of a device or, on CPUs, of this process."""

  # The training step and, on CPUs, a checkpoint that is being written and the temporaries of an
  # earlier step (see FreedMemory).
  most: float
  temporaries: float = 0.0  # bytes that a step on CPUs frees at its end; elsewhere 0


def needed(compiled: Any, devices: Sequence[jax.Device]) -> Needed:
  """Memory that a training run takes beside what is `in_use`."""
  step = bytes_needed(compiled)
  if devices[0].platform != "cpu":
    return Needed(step)
  memory = compiled.memory_analysis()
  state, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
  count = float(len(devices))
  return Needed(count * (step + state + temporaries), count * temporaries)


class FreedMemory:
  """Returns to the system what malloc keeps of the temporaries of earlier steps.

  glibc allocates a step's temporaries, one aligned block, from more bytes than it gets back when
  they are freed. Where something small has taken the rest, the next step cannot have their place,
  so that several such blocks come to lie there: six in 30 steps of gpt1:small. What is returned
  comes back as page faults, so some of it is kept.

  Args:
    room: bytes by which this process may grow before memory is returned; 0: nothing is returned.
    waits: whether each step waits for the end of the one before, which is slower; else the process
      may grow by a block of that step more, which is not seen yet.
  """

  def __init__(self, room: float, waits: bool = False):
    self._waits = waits
    self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if room else None
    self._room = max(room, _MIN_ROOM)
    self._least = _process("VmRSS")

  def give_back(self, wait: Callable[[], Any]) -> None:
    """Called before each step; `wait` returns when the step before it has ended."""
    if self._trim is None:
      return
    if self._waits:
      wait()
    if _process("VmRSS") > self._least + self._room:
      wait()
      time.sleep(_FREEING)
      self._trim(0)
      self._least = _process("VmRSS")


def bytes_needed(compiled: Any) -> int:
  """Bytes on each device for a run of a program: arguments, results, temporaries."""
  memory = compiled.memory_analysis()
  # Results are written over arguments, but for what cannot be (`alias`).
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return memory.argument_size_in_bytes + results + memory.temp_size_in_bytes


def capacity(devices: Sequence[jax.Device]) -> float:
  """Bytes that each of this process's devices has; 0: unknown."""
  if devices[0].platform == "cpu":
    return _machine()[0] / len(devices)
  return min(_stat(device, "bytes_limit") for device in devices)


def in_use(devices: Sequence[jax.Device]) -> float:
  """Bytes in use now, on the fullest device or, on CPUs, in this process; 0: unknown."""
  if devices[0].platform == "cpu":
    return _process("VmRSS")
  return max(_stat(device, "bytes_in_use") for device in devices)


def peak(devices: Sequence[jax.Device]) -> float:
  """The largest in_use so far; 0: unknown."""
  if devices[0].platform == "cpu":
    return _process("VmHWM")
  return max(_stat(device, "peak_bytes_in_use") for device in devices)


def peak_with_workers() -> float:
  """The largest resident memory of this process, or of one that it started and that has ended."""
  unit = 1 if sys.platform == "darwin" else 1024
  # A worker's begins with the peak of this process, this one's with that of what started it.
  workers = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
  own = _process("VmHWM") or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return float(max(own, workers))


def figures(devices: Sequence[jax.Device]) -> dict[str, float]:
  """Memory in use and its peak in bytes by their names in a log, where they are known, and the
  host's beside that of devices with their own.
  """
  values = {"memory_bytes": in_use(devices), "peak_memory_bytes": peak(devices)}
  if devices[0].platform != "cpu":
    values["host_memory_bytes"] = _process("VmRSS")
  return {name: value for name, value in values.items() if value}


def limit(devices: Sequence[jax.Device]) -> float:
  """The largest in_use that is possible now; 0: unknown."""
  if devices[0].platform == "cpu":
    return _machine()[1]
  return capacity(devices)


def _stat(device: jax.Device, name: str) -> float:
  return float((device.memory_stats() or {}).get(name, 0))


def _process(name: str) -> float:
  """A figure of this process; not from getrusage, whose peak a child inherits from its parent."""
  return _field("/proc/self/status", name)


def _machine() -> tuple[float, float]:
  """Total bytes of memory, and bytes that this process can hold now; 0: unknown."""
  total, available = (_field("/proc/meminfo", name) for name in ("MemTotal", "MemAvailable"))
  if not total:  # not Linux
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), 0.0
  allowed = min(_group_limits(), default=total)
  # MemAvailable lacks what this process holds already, which is its own to use.
  return min(total, allowed), min(available + _process("VmRSS"), allowed)


def _field(path: str, name: str) -> float:
  """The bytes in a line of /proc such as "VmRSS:  1024 kB"; 0 without one."""
  match = re.search(rf"^{name}:\s*(\d+) kB", _read(path), re.MULTILINE)
  return 1024.0 * int(match[1]) if match else 0.0


def _group_limits() -> list[float]:
  """The limits of this process's control group and of those around it, of both versions."""
  limits = []
  for line in _read("/proc/self/cgroup").splitlines():
    controllers, _, group = line.partition(":")[2].partition(":")
    if controllers not in ("", "memory"):
      continue
    names = [name for name in group.split("/") if name]
    folders = list(itertools.accumulate(names, os.path.join, initial=""))
    for root, file in _GROUPS:
      values = [_read(os.path.join(root, folder, file)).strip() for folder in folders]
      limits += [float(value) for value in values if value.isdecimal()]
  return limits


def _read(path: str) -> str:
  try:
    with open(path, encoding="utf-8") as file:
      return file.read()
  except OSError:
    return ""


def gigabytes(size: float) -> str:
  """Such as "0.25 GB" or "11.2 GB"; a GB has 10^9 bytes, as in launch/plan.py."""
  return f"{size / 1e9:.{1 if size >= 9.995e9 else 2}f} GB"
