"""T5's Adafactor (Shazeer & Stern 2018)."""

import optax

from gpt_jax.training.matrices import per_matrix


def rule(
  schedule: optax.Schedule, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Adafactor with T5's settings, which are optax's defaults, on matrices; the learning rate is in
  it.

  Second moments factored where both axes have 128 or more, decay 1 - t^-0.8, an update clipped to
  RMS 1 and multiplied by the RMS of the parameter (at least 0.001); no momentum, no weight decay.
  """
  del b1, b2, eps, weight_decay
  return per_matrix(optax.adafactor(schedule))
