"""Forecast of a run's memory."""

from typing import NamedTuple


class Forecast(NamedTuple):
  """Expected memory of a run.

  Attributes:
    memory: bytes at the peak: of the fullest device or, on CPUs, of this process with evaluations,
      samples, checkpoints and the blocks that malloc keeps; 0: unknown.
    limit: bytes available to it now; 0: unknown.
    room, waits: see memory.FreedMemory.
  """

  memory: float = 0.0
  limit: float = 0.0
  room: float = 0.0
  waits: bool = False


def gigabytes(size: float) -> str:
  """Such as "0.25 GB" or "11.2 GB"; a GB has 10^9 bytes, as in launch/plan.py."""
  return f"{size / 1e9:.{1 if size >= 9.995e9 else 2}f} GB"
