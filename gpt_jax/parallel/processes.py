"""Which process of a run over several hosts this is, and what all of them agree on."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_main_process() -> bool:
  """Whether this process logs and writes what the run writes once; one process of a run does."""
  return jax.process_index() == 0


def largest(value: float) -> float:
  """The largest value that a process gives, as float32; all processes must call this."""
  if jax.process_count() == 1:
    return value
  return float(multihost_utils.process_allgather(np.float32(value)).max())


def smallest(value: float) -> float:
  """The smallest, as `largest`."""
  return -largest(-value)
