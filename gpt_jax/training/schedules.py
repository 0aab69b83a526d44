"""Learning-rate schedules: cosine, linear and constant are OpenAI's (`openai/opt.py`).

Letters: t updates made before, w updates of the warm-up, n updates of the run. With a warm-up the
first update has rate 0, except for inverse_sqrt and slanted_triangle.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def _cosine(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then (1 + cos(pi t / n)) / 2.

  Unlike optax's it is not shifted by the warm-up, and so starts a little below its peak.
  """
  return peak * _warmed(t, w, 0.5 * (1.0 + jnp.cos(jnp.pi * _done(t, n))))


def _linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w (1 - t / n), then 1 - t / n."""
  return _constant(peak, t, w, n) * (1.0 - _done(t, n))


def _constant(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1."""
  del n
  return peak * _warmed(t, w, jnp.ones_like(t))


def _warmed(t: jax.Array, w: float, after: jax.Array) -> jax.Array:
  """t / w during the warm-up, then `after`."""
  # openai/opt.py counts completed updates, so the first one has rate 0; with w below 1 that is all
  # the warm-up there is.
  return jnp.where(t <= w, t / w, after) if w else after


def _done(t: jax.Array, n: int) -> jax.Array:
  """The share of a run that is behind it."""
  return jnp.minimum(t / n, 1.0)


def _bert_linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - t / n (google-research/bert, optimization.py).

  It is not shifted by the warm-up, at whose end the rate jumps down.
  """
  # t < w, where OpenAI's has t <= w (see _warmed).
  fall = 1.0 - _done(t, n)
  return peak * (jnp.where(t < w, t / w, fall) if w else fall)


def _cross_view(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """min(t / w, 1) / (1 + 0.005 sqrt t) (tensorflow/models, research/cvt_text, trainer.py).

  Theirs has w = 5000 and a peak of 0.5, not reached.
  """
  del n
  return peak * jnp.minimum(t / w if w else 1.0, 1.0) / (1.0 + 0.005 * jnp.sqrt(t))


def _fairseq_linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - (t - w) / (n - w): fairseq's polynomial decay of power 1."""
  return peak * _warmed(t, w, jnp.clip((n - t) / max(n - w, 1.0), 0.0, 1.0))


def _inverse_sqrt(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """sqrt(w / max(t, w)): constant, then falling.

  A peak of 0.01 with w = 10^4 is T5's 1 / sqrt(max(t, 10^4)).
  """
  del n
  first = max(w, 1.0)
  return peak * jnp.sqrt(first / jnp.maximum(t, first))


def _slanted_triangle(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """(1 + 31 p) / 32, with p = t / cut, then 1 - (t - cut) / (cut (n / w - 1)); 32 is their ratio,
  w = n cut_frac and cut = floor(w) (ULMFiT, Howard & Ruder 2018, section 3.2).
  """
  cut = math.floor(w)
  fall = 1.0 - (t - cut) / max(cut * (n / w - 1.0) if cut else n, 1.0)
  p = jnp.where(t < cut, t / max(cut, 1), fall)
  return peak * (1.0 + 31.0 * jnp.clip(p, 0.0, 1.0)) / 32.0


# (peak, t, w, n) -> learning rate.
Shape = Callable[[float, jax.Array, float, int], jax.Array]

SHAPES: dict[str, Shape] = {
  "cosine": _cosine,
  "linear": _linear,
  "constant": _constant,
  "bert_linear": _bert_linear,
  "cross_view": _cross_view,
  "fairseq_linear": _fairseq_linear,
  "inverse_sqrt": _inverse_sqrt,
  "slanted_triangle": _slanted_triangle,
}


def warmup_length(
  total_steps: int, warmup_steps: int, warmup_share: float = 0.0, min_warmup_steps: int = 0
) -> float:
  """Updates until the learning rate peaks; a fraction below 1 if a share of a short run is less
  than one update; 0 in a run of a single one, which would have rate 0.
  """
  if total_steps == 1:
    return 0.0
  return float(max(warmup_steps, warmup_share * total_steps, min_warmup_steps))


def make_schedule(
  shape: str, learning_rate: float, warmup: float, total_steps: int
) -> optax.Schedule:
  """The learning rate as a function of the number of updates made before.

  Args:
    warmup: updates until the peak (inverse_sqrt: at the peak); 0: no warm-up.
    total_steps: length of the run; the rate stays at its last value afterwards.
  """
  curve = SHAPES[shape]
  return lambda count: curve(learning_rate, jnp.asarray(count, jnp.float32), warmup, total_steps)
