"""The schedule of cross-view training's code (tensorflow/models, research/cvt_text, trainer.py)."""

import jax
import jax.numpy as jnp


def shape(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """min(t / w, 1) / (1 + 0.005 sqrt t); theirs has w = 5000 and a peak of 0.5, not reached."""
  del n
  return peak * jnp.minimum(t / w if w else 1.0, 1.0) / (1.0 + 0.005 * jnp.sqrt(t))
