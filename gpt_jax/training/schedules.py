"""Learning-rate schedules of OpenAI's code (`openai/opt.py`): cosine, linear, constant."""

import jax.numpy as jnp
import optax


def warmup_length(
  total_steps: int, warmup_steps: int, warmup_share: float = 0.0, min_warmup_steps: int = 0
) -> float:
  """Updates until the learning rate peaks; a fraction below 1 if a share of a short run is less
  than one update.
  """
  return float(max(warmup_steps, warmup_share * total_steps, min_warmup_steps))


def make_schedule(
  shape: str, learning_rate: float, warmup: float, total_steps: int
) -> optax.Schedule:
  """OpenAI's `warmup_cosine`, `warmup_linear` or `warmup_constant`, as a function of the number of
  updates made before.

  The first update therefore has learning rate 0. The linear schedule multiplies its warm-up by
  1 - x too; the cosine, unlike optax's, is not shifted by the warm-up and so starts a little below
  its peak.

  Args:
    shape: "cosine", "linear" or "constant".
    learning_rate: the peak.
    warmup: updates until the peak; 0: no warm-up.
    total_steps: length of the run; the rate stays at its last value afterwards.
  """

  def schedule(count):
    t = jnp.asarray(count, jnp.float32)
    x = jnp.minimum(t / total_steps, 1.0)
    rise, warming = (t / warmup, t <= warmup) if warmup else (1.0, False)
    if shape == "cosine":
      return learning_rate * jnp.where(warming, rise, 0.5 * (1.0 + jnp.cos(jnp.pi * x)))
    fall = 1.0 - x if shape == "linear" else jnp.ones_like(x)
    return learning_rate * jnp.where(warming, rise, 1.0) * fall

  return schedule
