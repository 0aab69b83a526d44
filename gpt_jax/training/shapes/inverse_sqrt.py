"""T5's schedule."""

import jax
import jax.numpy as jnp


def shape(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """sqrt(w / max(t, w)): constant, then falling.

  A peak of 0.01 with w = 10^4 is T5's 1 / sqrt(max(t, 10^4)).
  """
  del n
  first = max(w, 1.0)
  return peak * jnp.sqrt(first / jnp.maximum(t, first))
