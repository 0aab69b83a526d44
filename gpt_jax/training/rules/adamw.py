"""optax's AdamW."""

import optax

from gpt_jax.training.update_rules import decayed


def rule(
  schedule: optax.Schedule, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """AdamW, of which biases and gains have no decay."""
  return optax.adamw(schedule, b1, b2, eps, weight_decay=weight_decay, mask=decayed)
