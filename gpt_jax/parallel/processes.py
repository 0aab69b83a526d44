"""Processes of a multi-host run: the main one, and values gathered from all of them."""

import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax import errors

_PADDED = 1 << 14  # bytes; a program of its own is compiled for every size that is gathered


def is_main_process() -> bool:
  """Whether this process logs and writes what the run writes once; one process of a run does."""
  return jax.process_index() == 0


def log(text: str) -> None:
  """Prints to standard error on process 0."""
  if is_main_process():
    print(errors.for_user(text), file=sys.stderr, flush=True)


def largest(value: float) -> float:
  """The largest value that a process gives, as float32; all processes must call this."""
  if jax.process_count() == 1:
    return value
  return float(multihost_utils.process_allgather(np.float32(value)).max())


def smallest(value: float) -> float:
  """The smallest, as `largest`."""
  return -largest(-value)  # one collective serves both


def gather(text: str) -> list[str]:
  """The texts of all processes, in their order; all must call this."""
  content = text.encode()
  sizes = multihost_utils.process_allgather(np.int32(len(content))).reshape(-1)
  # An allgather takes arrays of one shape: texts are padded to the longest.
  padded = np.zeros(_PADDED * -(-int(sizes.max()) // _PADDED), np.uint8)
  padded[: len(content)] = np.frombuffer(content, np.uint8)
  rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
  return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]
