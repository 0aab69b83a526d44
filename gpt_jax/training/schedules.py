"""Learning-rate schedules of OpenAI's code (`openai/opt.py`), BERT, fairseq and T5."""

import jax.numpy as jnp
import optax

SHAPES = ("cosine", "linear", "constant", "bert_linear", "fairseq_linear", "inverse_sqrt")


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
  """The learning rate as a function of the number of updates made before, t.

  With a warm-up the first update has rate 0, except for inverse_sqrt. With w = warmup, n =
  total_steps:

    cosine          t / w, then (1 + cos(pi t / n)) / 2. Unlike optax's it is not shifted by the
                    warm-up, and so starts a little below its peak.
    linear          t / w (1 - t / n), then 1 - t / n.
    constant        t / w, then 1.
    bert_linear     t / w, then 1 - t / n, again not shifted: at the end of the warm-up the rate
                    jumps down (google-research/bert, optimization.py).
    fairseq_linear  t / w, then 1 - (t - w) / (n - w) (fairseq's polynomial decay of power 1).
    inverse_sqrt    sqrt(w / max(t, w)): constant, then falling. A peak of 0.01 with w = 10^4 is
                    T5's 1 / sqrt(max(t, 10^4)).

  Args:
    shape: one of SHAPES.
    learning_rate: the peak.
    warmup: updates until the peak (inverse_sqrt: at the peak); 0: no warm-up.
    total_steps: length of the run; the rate stays at its last value afterwards.
  """

  def schedule(count):
    t = jnp.asarray(count, jnp.float32)
    x = jnp.minimum(t / total_steps, 1.0)
    rise, warming = (t / warmup, t <= warmup) if warmup else (1.0, False)
    if shape == "cosine":
      return learning_rate * jnp.where(warming, rise, 0.5 * (1.0 + jnp.cos(jnp.pi * x)))
    if shape == "bert_linear":
      return learning_rate * jnp.where(t < warmup, rise, 1.0 - x)
    if shape == "fairseq_linear":
      left = (total_steps - t) / max(total_steps - warmup, 1.0)
      return learning_rate * jnp.where(warming, rise, jnp.clip(left, 0.0, 1.0))
    if shape == "inverse_sqrt":
      peak = max(warmup, 1.0)
      return learning_rate * jnp.sqrt(peak / jnp.maximum(t, peak))
    fall = 1.0 - x if shape == "linear" else jnp.ones_like(x)
    return learning_rate * jnp.where(warming, rise, 1.0) * fall

  return schedule
