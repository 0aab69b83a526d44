"""Learning-rate schedules of OpenAI's code (`openai/opt.py`). Others are in shapes/.

Letters: t updates made before, w updates of the warm-up, n updates of the run. With a warm-up the
first update has rate 0, except for inverse_sqrt and slanted_triangle.
"""

import importlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from gpt_jax.extensions import extensions


def _cosine(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then (1 + cos(pi t / n)) / 2.

  Unlike optax's it is not shifted by the warm-up, and so starts a little below its peak.
  """
  return peak * warmed(t, w, 0.5 * (1.0 + jnp.cos(jnp.pi * done(t, n))))


def _linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w (1 - t / n), then 1 - t / n."""
  return _constant(peak, t, w, n) * (1.0 - done(t, n))


def _constant(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1."""
  del n
  return peak * warmed(t, w, jnp.ones_like(t))


def warmed(t: jax.Array, w: float, after: jax.Array) -> jax.Array:
  """t / w during the warm-up, then `after`."""
  # openai/opt.py counts completed updates, so the first one has rate 0; with w below 1 that is all
  # the warm-up there is.
  return jnp.where(t <= w, t / w, after) if w else after


def done(t: jax.Array, n: int) -> jax.Array:
  """The share of a run that is behind it."""
  return jnp.minimum(t / n, 1.0)


# (peak, t, w, n) -> learning rate.
Shape = Callable[[float, jax.Array, float, int], jax.Array]

_FURTHER = f"{__package__}.shapes"
_SHAPES: dict[str, Shape] = {"cosine": _cosine, "linear": _linear, "constant": _constant}


def shape_names() -> list[str]:
  """The names of all shapes: those of this file, and the files of shapes/."""
  return [*_SHAPES, *extensions(_FURTHER)]


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
    shape: one of shape_names().
    learning_rate: the peak.
    warmup: updates until the peak (inverse_sqrt: at the peak); 0: no warm-up.
    total_steps: length of the run; the rate stays at its last value afterwards.
  """
  curve = _SHAPES.get(shape) or importlib.import_module(extensions(_FURTHER)[shape]).shape
  return lambda count: curve(learning_rate, jnp.asarray(count, jnp.float32), warmup, total_steps)
