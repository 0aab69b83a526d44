"""Layers that train later or more slowly than the head, or not at all: gradual unfreezing and
discriminative rates (Howard & Ruder 2018, *Universal Language Model Fine-tuning*, 3.2, 3.3).
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gpt_jax.config import option, register
from gpt_jax.errors import InputError, counted
from gpt_jax.models.method import Method
from gpt_jax.models.model import parameter_shapes
from gpt_jax.models.trunk import TrunkConfig
from gpt_jax.parallel.mesh import path_name
from gpt_jax.training.optimizer import (
  OptimConfig,
  Optimizer,
  clipped,
  rule_of,
  schedule_of,
  with_average,
)


class Layerwise(NamedTuple):
  """How parameters differ in their training, by path, such as "trunk/block_0/mlp/in/kernel"."""

  scale: Callable[[str], float] | None = None  # the factor on its learning rate; None: 1 for all
  start: Callable[[str], int] | None = None  # updates before it begins to train; None: 0 for all
  # Regular expressions, searched for in the paths. A matching parameter has no moments, no update
  # and no weight decay, and is not in the norm.
  frozen: tuple[str, ...] = ()
  # Updates after which the learning rate takes its course anew, as fastai's `fit_one_cycle` for
  # each phase of unfreezing.
  cycles: tuple[int, ...] = ()


def layerwise_optimizer(config: OptimConfig, total_steps: int, layerwise: Layerwise) -> Optimizer:
  """The optimizer of a run whose parameters train at rates of their own, later or not at all; those
  that begin later, too, are in norm, moments and decay only from then on.
  """
  # Between two updates of `cycles` the learning rate is that of a run by itself.
  begins = [first for first in layerwise.cycles if first < total_steps]
  lengths = np.diff([0, *begins, total_steps]).tolist()
  schedule = optax.join_schedules([schedule_of(config, length) for length in lengths], begins)
  if layerwise.start is None:
    rule = rule_of(config, schedule)
  else:
    rule = _begin_later(config, schedule, layerwise.start)
  if layerwise.scale is not None:
    # After the rule, whose decay is scaled with the rest of the update. On the gradient a factor
    # would cancel in m / sqrt(v).
    rule = optax.chain(rule, _scaled_by_path(layerwise.scale))
  transformation = clipped(config, rule)
  if layerwise.frozen:
    transformation = optax.partition(
      {"frozen": optax.set_to_zero(), "trained": transformation},
      lambda params: jax.tree.map(
        lambda frozen: "frozen" if frozen else "trained", is_frozen(params, layerwise.frozen)
      ),
    )
  transformation = with_average(config, transformation)
  return Optimizer(transformation, schedule, functools.partial(_gate, layerwise=layerwise))


@dataclasses.dataclass(frozen=True)
class OptimizerOf:
  """Number of updates of a run -> its optimizer; equal ones give the same."""

  config: OptimConfig
  layerwise: Layerwise

  def __call__(self, total_steps: int) -> Optimizer:
    return layerwise_optimizer(self.config, total_steps, self.layerwise)


def _begin_later(
  config: OptimConfig, schedule: optax.Schedule, start: Callable[[str], int]
) -> optax.GradientTransformation:
  """The rule with a state of its own for each group of parameters that begin at the same update;
  all follow one schedule.
  """

  def partitioned(tree):
    # Labels have the structure of the parameters, which only init and update see.
    starts = jax.tree_util.tree_map_with_path(lambda path, _: start(path_name(path)), tree)
    rules = {}
    for first in set(jax.tree.leaves(starts)):
      # A group counts its updates from its own start; the schedule is that of the run.
      rule = rule_of(config, lambda count, first=first: schedule(count + first))
      # Padded with zeros: dicts of a state are sorted by key, so groups follow in order of time.
      rules[f"from_{first:09}"] = delayed(rule, first)
    return optax.partition(rules, jax.tree.map(lambda first: f"from_{first:09}", starts))

  def init(params):
    return partitioned(params).init(params)

  def update(grads, state, params=None, **_):
    return partitioned(grads).update(grads, state, params)

  return optax.GradientTransformationExtraArgs(init, update)


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


def _scaled_by_path(scale: Callable[[str], float]) -> optax.GradientTransformation:
  scaled = lambda path, x: x * scale(path_name(path))
  return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates))


def _gate(grads: Any, updates: jax.Array, layerwise: Layerwise) -> Any:
  """The gradient with zeros for parameters that do not train, or not yet after these updates."""
  if layerwise.frozen:
    frozen = is_frozen(grads, layerwise.frozen)
    grads = jax.tree.map(lambda g, frozen: jnp.zeros_like(g) if frozen else g, grads, frozen)
  start = layerwise.start
  if start is None:
    return grads

  def gated(path, g):
    first = start(path_name(path))
    # `first` is known when the step is traced: a parameter that trains from 0 on costs nothing.
    return jnp.where(updates >= first, g, 0) if first else g

  return jax.tree_util.tree_map_with_path(gated, grads)


def is_frozen(params: Any, patterns: Sequence[str]) -> Any:
  """A tree of bools: whether any of the patterns, each of which must occur in some parameter's path
  (ValueError), occurs in it.
  """
  paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  for pattern in patterns:
    if not any(re.search(pattern, path) for path in paths):
      raise ValueError(f"frozen: {pattern!r} matches no parameter; they are {', '.join(paths)}")

  def matches(path, _):
    return any(re.search(pattern, path_name(path)) for pattern in patterns)

  return jax.tree_util.tree_map_with_path(matches, params)


@register("unfreeze")
@dataclasses.dataclass(frozen=True)
class Unfreeze(Method):
  """Training begins with train_layers, by default 0, and with one layer more in each epoch."""

  epochs: int = option(
    0,
    "after which all layers train, each of them and the rest with a cycle of the learning rate of "
    "its own, as ULMFiT's code; 0: one layer more in each, to the last",
    low=0,
  )

  slot = "unfreeze"
  trains_trunk = True

  def change_layerwise(self, layerwise: Any, spec: Any, config: Any, steps_per_epoch: int) -> Any:
    return trained_layers(
      parameter_shapes(spec),
      spec.trunk,
      config.train_layers,
      config.layer_decay,
      steps_per_epoch,
      self.epochs * steps_per_epoch,
    )


def below_head(paths: Iterable[str], trunk: TrunkConfig) -> Callable[[str], int]:
  """Parameter's path -> how far it is below the heads: 0 a head, 1 the last block, 2 the one before
  it, and so on to the embeddings.
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
  steps_to_all: int = 0,
) -> Layerwise:
  """The parameters that train later, more slowly or not at all.

  Args:
    train_layers: layers of the trunk that train from the beginning, from the top; None: all.
    decay: learning rate of a layer as a share of that of the layer above it.
    steps_per_layer: updates after which the next layer begins to train; None: it stays frozen.
    steps_to_all: updates after which all layers train, also those whose turn has not come; each
      phase has a cycle of the rate (fastai's train_clas.py). 0: each waits for its turn.
  """
  paths = list(paths)
  below = below_head(paths, trunk)
  blocks = max(map(below, paths)) - 1
  if train_layers is not None and train_layers > blocks:
    raise InputError(
      f"train_layers={train_layers}: the model has {counted(blocks, 'block')}; none trains "
      "all, with the embeddings"
    )
  # Discriminative rates (section 3.2): a layer has the rate of the layer above it times decay; the
  # paper divides by 2.6.
  # A head, 0 below, keeps the full rate.
  scale = (lambda path: decay ** below(path)) if decay < 1 else None
  if steps_per_layer is not None:
    # Gradual unfreezing (section 3.3): from the last layer down, one more every steps_per_layer.
    # A model that writes text has no head, so that its last layer is the first to train.
    first = max(train_layers or 0, min(map(below, paths)))
    last = steps_to_all or steps_per_layer * (blocks + 1)  # the embeddings are the last

    def start(path: str) -> int:
      return min(last, steps_per_layer * max(0, below(path) - first))

    cycles = range(steps_per_layer, steps_to_all + 1, steps_per_layer)
    return Layerwise(scale, start, cycles=tuple(cycles))
  if train_layers is None:
    return Layerwise(scale)
  frozen = [path for path in paths if below(path) > train_layers]
  if len(frozen) == len(paths):  # of a model that writes text, whose head is in the trunk
    raise InputError("train_layers=0: nothing trains, since the model has no head; use 1 or more")
  # Whole paths: a pattern that is part of another path would freeze that one as well.
  return Layerwise(scale, frozen=tuple(f"^{re.escape(path)}$" for path in frozen))
