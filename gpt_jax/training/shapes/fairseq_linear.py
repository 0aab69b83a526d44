"""fairseq's schedule."""

import jax
import jax.numpy as jnp

from gpt_jax.training.schedules import warmed


def shape(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - (t - w) / (n - w): fairseq's polynomial decay of power 1."""
  return peak * warmed(t, w, jnp.clip((n - t) / max(n - w, 1.0), 0.0, 1.0))
