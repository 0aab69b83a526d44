"""TensorFlow's Adagrad: lr g / sqrt(eps + sum g^2), with eps as its first sum of squares."""

import optax


def rule(
  schedule: optax.Schedule, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """Adagrad, times the learning rate; without moments and decay."""
  del b1, b2, weight_decay
  sums = optax.scale_by_rss(initial_accumulator_value=eps, eps=0.0)
  return optax.chain(sums, optax.scale_by_learning_rate(schedule))
