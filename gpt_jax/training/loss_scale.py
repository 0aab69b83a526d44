"""Dynamic loss scaling, without which small gradients vanish in float16.

Micikevicius et al. 2018, Mixed Precision Training, section 3.2; the constants are PyTorch's but for
the first scale. flax.training.dynamic_scale halves without a floor, and its gradient function would
be a second path through a step with microbatches.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

FIRST = 2.0**15
GROWTH_INTERVAL = 2000  # finite gradients in a row before the scale is doubled


class LossScale(NamedTuple):
  """The factor on the loss before it is differentiated, by which the gradient is then divided.

  Attributes:
    scale: float32 scalar, a power of 2 of at least 1, so that no bit of the gradient is rounded.
    finite_steps: int32 scalar, finite gradients since the scale changed.
  """

  scale: jax.Array
  finite_steps: jax.Array


def first_loss_scale() -> LossScale:
  """The loss scale of a run's first step."""
  return LossScale(jnp.float32(FIRST), jnp.int32(0))


def adjusted(loss_scale: LossScale, finite: jax.Array) -> LossScale:
  """The loss scale of the next step, given whether this step's loss and gradient were finite."""
  scale, steps = loss_scale
  steps = jnp.where(finite, steps + 1, 0)
  grows = steps == GROWTH_INTERVAL
  grown = jnp.where(grows, scale * 2, scale)
  return LossScale(jnp.where(finite, grown, jnp.maximum(scale / 2, 1)), jnp.where(grows, 0, steps))


def unscaled(grads: Any, loss_scale: LossScale) -> Any:
  """The gradient of the loss itself."""
  return jax.tree.map(lambda g: g / loss_scale.scale, grads)
