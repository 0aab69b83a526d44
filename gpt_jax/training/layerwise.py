"""Layers that train later or more slowly than the head: gradual unfreezing and discriminative rates
(Howard & Ruder 2018, *Universal Language Model Fine-tuning*, sections 3.2 and 3.3).
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.errors import InputError, counted
from gpt_jax.models.trunk import TrunkConfig


class Layerwise(NamedTuple):
  """How parameters differ in their training, by path, such as "trunk/block_0/mlp/in/kernel".

  Attributes:
    scale: the factor on a parameter's learning rate; None: 1 for all.
    start: how many updates are made before a parameter begins to train; None: 0 for all.
  """

  scale: Callable[[str], float] | None = None
  start: Callable[[str], int] | None = None


def below_head(paths: Iterable[str], trunk: TrunkConfig) -> Callable[[str], int]:
  """The function from a parameter's path to how far it is below the heads: 0 a head, 1 the last
  block, 2 the one before it, and so on to the embeddings.
  """
  inside = "trunk/"
  # ALBERT has one block for all layers, so `last` is 1 there.
  last = max(trunk.depth(path.removeprefix(inside)) for path in paths if path.startswith(inside))

  def distance(path: str) -> int:
    return last + 1 - trunk.depth(path.removeprefix(inside)) if path.startswith(inside) else 0

  return distance


def trained_layers(
  paths: Iterable[str],
  trunk: TrunkConfig,
  train_layers: int | None,
  decay: float = 1.0,
  steps_per_layer: int | None = None,
) -> tuple[list[str], Layerwise]:
  """Patterns of the paths of frozen parameters, and what trains later or more slowly.

  Args:
    paths: of all parameters of the model.
    trunk: its config.
    train_layers: layers of the trunk that train from the beginning, from the top; None: all.
    decay: learning rate of a layer as a share of that of the layer above it.
    steps_per_layer: updates after which the next layer begins to train, from the top; None: it
      stays frozen.

  Raises:
    InputError: more layers than the trunk has.
  """
  paths = list(paths)
  below = below_head(paths, trunk)
  blocks = max(map(below, paths)) - 1
  if train_layers is not None and train_layers > blocks:
    raise InputError(
      f"train_layers={train_layers}: the checkpoint has {counted(blocks, 'block')}; none trains "
      "all, with the embeddings"
    )
  # Discriminative rates (section 3.2): a layer has the rate of the layer above it times decay; the
  # paper divides by 2.6.
  # A head, 0 below, keeps the full rate.
  scale = (lambda path: decay ** below(path)) if decay < 1 else None
  if steps_per_layer is not None:
    # Gradual unfreezing (section 3.3): from the last layer down, one more every steps_per_layer.
    first = train_layers or 0
    return [], Layerwise(scale, lambda path: steps_per_layer * max(0, below(path) - first))
  if train_layers is None:
    return [], Layerwise(scale)
  frozen = [path for path in paths if below(path) > train_layers]
  # Whole paths: a pattern that is part of another path would freeze that one as well.
  return [f"^{re.escape(path)}$" for path in frozen], Layerwise(scale)


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
