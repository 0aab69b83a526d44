"""BERT's schedule (google-research/bert, optimization.py)."""

import jax
import jax.numpy as jnp

from gpt_jax.training.schedules import done


def shape(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - t / n.

  It is not shifted by the warm-up, at whose end the rate jumps down.
  """
  # t < w, where OpenAI's has t <= w (see schedules.warmed).
  fall = 1.0 - done(t, n)
  return peak * (jnp.where(t < w, t / w, fall) if w else fall)
