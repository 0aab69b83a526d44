"""Predict every token from those before it (eq. 1)."""

import dataclasses

import numpy as np

from gpt_jax.batch import TextBatch
from gpt_jax.config import register


@register("causal")
@dataclasses.dataclass(frozen=True)
class Causal:
  """The paper's pre-training objective."""

  @property
  def causal(self) -> bool:
    """Whether a place may look only at what stands before it."""
    return True

  def __call__(self, rows: np.ndarray, rng: np.random.Generator | None = None) -> TextBatch:
    """Rows int32 [B, T + 1], -1 behind a text's end, to a TextBatch [B, T]. Nothing here is
    random.
    """
    del rng
    inputs, targets = rows[:, :-1], rows[:, 1:]
    positions = np.broadcast_to(np.arange(inputs.shape[1], dtype=np.int32), inputs.shape)
    weights = (targets >= 0).astype(np.float32)
    return TextBatch(np.maximum(inputs, 0), np.maximum(targets, 0), weights, positions, None)
