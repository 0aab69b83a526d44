"""ULMFiT's slanted triangles (Howard & Ruder 2018, section 3.2)."""

import math

import jax
import jax.numpy as jnp


def shape(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """(1 + 31 p) / 32, with p = t / cut, then 1 - (t - cut) / (cut (n / w - 1)); 32 is their ratio,
  w = n cut_frac and cut = floor(w).
  """
  cut = math.floor(w)
  fall = 1.0 - (t - cut) / max(cut * (n / w - 1.0) if cut else n, 1.0)
  p = jnp.where(t < cut, t / max(cut, 1), fall)
  return peak * (1.0 + 31.0 * jnp.clip(p, 0.0, 1.0)) / 32.0
