"""Layers that train later or more slowly than the head: gradual unfreezing and discriminative rates
(Howard & Ruder 2018, *Universal Language Model Fine-tuning*, sections 3.2 and 3.3).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Layerwise(NamedTuple):
  """How parameters differ in their training, by path, such as "trunk/block_0/mlp/in/kernel".

  Attributes:
    scale: the factor on a parameter's learning rate; None: 1 for all.
    start: how many updates are made before a parameter begins to train; None: 0 for all.
  """

  scale: Callable[[str], float] | None = None
  start: Callable[[str], int] | None = None


class Delayed(NamedTuple):
  """`count`: updates made so far; `inner`: the state of the rule, which counts its own."""

  count: jax.Array  # type: ignore[assignment]  # optax's name, which tuples have too
  inner: Any


def delayed(rule: optax.GradientTransformation, start: int) -> optax.GradientTransformation:
  """The rule from update `start` on, with its moments and its bias correction from there; before,
  no update and no weight decay.
  """

  def init(params):
    return Delayed(jnp.zeros([], jnp.int32), rule.init(params))

  def update(grads, state, params=None):
    # Not a mask on the update: the moments must not see the gradients from before the start.
    updates, inner = jax.lax.cond(
      state.count >= start,
      lambda: rule.update(grads, state.inner, params),
      lambda: (optax.tree.zeros_like(grads), state.inner),
    )
    return updates, Delayed(optax.safe_increment(state.count), inner)

  return optax.GradientTransformation(init, update)


def scale_by_path(scale: Callable[[str], float]) -> optax.GradientTransformation:
  """Multiplies the update of each parameter by a factor of its own."""

  def scaled(updates, params):
    del params
    return jax.tree_util.tree_map_with_path(lambda path, x: x * scale(path_name(path)), updates)

  return optax.stateless(scaled)


def zero_waiting(grads: Any, updates: jax.Array, start: Callable[[str], int]) -> Any:
  """The gradient with zeros for the parameters that do not train yet after so many updates."""

  def gated(path, g):
    first = start(path_name(path))
    # `first` is known when the step is traced: a parameter that trains from 0 on costs nothing.
    return jnp.where(updates >= first, g, 0) if first else g

  return jax.tree_util.tree_map_with_path(gated, grads)


def path_name(path: tuple) -> str:
  """The path of a parameter as text, with slashes."""
  return jax.tree_util.keystr(path, simple=True, separator="/")
