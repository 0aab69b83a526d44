"""Which process of a run over several hosts this is."""

import jax


def is_main_process() -> bool:
  """Whether this process logs and writes what the run writes once; one process of a run does."""
  return jax.process_index() == 0
