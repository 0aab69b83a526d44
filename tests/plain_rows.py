"""Rows that are whole texts, from their first token on."""

from typing import Any

import numpy as np

from gpt_jax.batch import Rows


def plain_rows(ids: Any, segments: Any = None) -> Rows:
  """Rows [B, T] at the positions 0 to T - 1."""
  ids = np.asarray(ids, np.int32)
  positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
  return Rows(ids, positions, segments)
