"""TensorFlow's momentum: lr m, m = b1 m + g."""

import optax


def rule(
  schedule: optax.Schedule, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Momentum, times the learning rate; without decay."""
  del b2, eps, weight_decay
  return optax.sgd(schedule, momentum=b1)
