"""Optimizers: an update rule, its schedule, and which parameters train when."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.training.layerwise import (
  Layerwise,
  delayed,
  path_name,
  scale_by_path,
  zero_waiting,
)
from gpt_jax.training.schedules import SHAPES, make_schedule, warmup_length
from gpt_jax.training.update_rules import RULES, clip_by_global_norm


@register("optimizer")
@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """The optimizer and its schedule; the defaults are the paper's for pre-training (section 4.1).

  The paper's fine-tuning has `learning_rate=6.25e-5, schedule="linear", warmup_steps=0,
  warmup_share=0.002`; for models of other sizes see training/defaults.py. Below 500 updates that
  warm-up is only the first update, whose learning rate is 0, as in OpenAI's code;
  `min_warmup_steps` makes it longer.
  """

  optimizer: str = option(
    "openai",
    "the Adam of OpenAI, optax (adamw), BERT or fairseq; ALBERT's LAMB; T5's Adafactor, which has "
    "no weight_decay, b1, b2 and eps; Adagrad, of which eps is the first sum of squares",
    choices=tuple(RULES),
  )
  learning_rate: float | None = option(
    2.5e-4, "peak learning rate; none, when fine-tuning: chosen by model size", low=0.0, high=1e3
  )
  schedule: str = option(
    "cosine", "shape after the warm-up; linear is OpenAI's", choices=tuple(SHAPES)
  )
  warmup_steps: int = option(
    2000, "length of the warm-up; 0 if warmup_share is set", unit="updates", low=0
  )
  warmup_share: float | None = option(
    0.0,
    "length of the warm-up as a share of all updates; none, when fine-tuning: by model size",
    low=0.0,
    high=1.0,
  )
  min_warmup_steps: int = option(0, "the warm-up is at least this long", unit="updates", low=0)
  weight_decay: float = option(
    0.01, "weight decay, decoupled, of all but biases and gains; fairseq: of all", low=0.0, high=1e3
  )
  clip_norm: float = option(1.0, "largest global norm of the gradient; 0: no clipping", low=0.0)
  b1: float = option(0.9, "decay of the first moment", low=0.0, high=0.9999)
  b2: float = option(0.999, "decay of the second moment", low=0.0, high=0.999999)
  eps: float = option(1e-8, "added to the root of the second moment", low=1e-12)

  def __post_init__(self):
    validate(self)
    if self.warmup_steps and self.warmup_share:
      raise InputError(
        f"warmup_steps = {self.warmup_steps} and warmup_share = {self.warmup_share}: "
        "set one of them to 0"
      )

  def warmup_length(self, total_steps: int) -> float:
    """Updates until the learning rate peaks in a run of `total_steps`."""
    return warmup_length(
      total_steps, self.warmup_steps, self.warmup_share or 0.0, self.min_warmup_steps
    )

  def about_long_warmup(self, total_steps: int) -> str:
    """A warning, with a remedy, if the warm-up does not end within a run; else ""."""
    warmup = self.warmup_length(total_steps)
    if not total_steps or warmup < total_steps:
      return ""
    if make_schedule(self.schedule, 1.0, warmup, total_steps)(0) == 1.0:  # it begins at its peak
      return ""
    name, value = "warmup_steps", f"{max(1, total_steps // 10)}"
    if self.min_warmup_steps >= total_steps:
      name = "min_warmup_steps"
    elif self.warmup_share:
      name, value = "warmup_share", "0.1"
    return (
      f"warning: the warm-up of {warmup:,.0f} updates does not end within the run of "
      f"{total_steps:,}, so the learning rate never reaches {self.learning_rate:g}; a tenth of the "
      f"run is config.optim.{name}={value}"
    )


class Optimizer(NamedTuple):
  """An update rule with its schedule.

  Attributes:
    transformation: its update takes the global norm of the gradient as `norm=`, if known.
    schedule: number of updates made before -> learning rate.
    gate: (gradient, number of updates made before) -> the gradient with zeros for parameters that
      do not train; make_step applies it before it takes the norm.
  """

  transformation: optax.GradientTransformationExtraArgs
  schedule: optax.Schedule
  gate: Callable[[Any, jax.Array], Any]


def make_optimizer(
  config: OptimConfig,
  total_steps: int,
  frozen: Sequence[str] = (),
  layerwise: Layerwise = Layerwise(),  # noqa: B008  # a constant
) -> Optimizer:
  """The optimizer of a run.

  Args:
    config: rule and schedule.
    total_steps: updates of the run.
    frozen: regular expressions, searched for in the paths of parameters such as
      "trunk/block_0/mlp/in/kernel". A matching parameter has no moments, no update and no weight
      decay, and is not in the norm.
    layerwise: parameters with another learning rate, or that begin to train later. These too are
      in norm, moments and decay only from then on.
  """
  if config.learning_rate is None or config.warmup_share is None:
    raise InputError(
      "optim.learning_rate and optim.warmup_share: none is for fine-tuning; set a number"
    )
  warmup = config.warmup_length(total_steps)
  schedule = make_schedule(config.schedule, config.learning_rate, warmup, total_steps)
  if layerwise.start is None:
    rule = _rule(config, schedule)
  else:
    rule = _begin_later(config, schedule, layerwise.start)
  if layerwise.scale is not None:
    # After the rule, whose decay is scaled with the rest of the update. On the gradient a factor
    # would cancel in m / sqrt(v).
    rule = optax.chain(rule, scale_by_path(layerwise.scale))
  # The norm is that of all gradients together, after they were averaged over devices.
  clip_norm = clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  # Clipping comes first: moments are those of the clipped gradient.
  transformation = optax.with_extra_args_support(optax.chain(clip_norm, rule))
  if frozen:
    transformation = optax.partition(
      {"frozen": optax.set_to_zero(), "trained": transformation},
      lambda params: jax.tree.map(
        lambda frozen: "frozen" if frozen else "trained", is_frozen(params, frozen)
      ),
    )
  gate = functools.partial(_gate, frozen=tuple(frozen), start=layerwise.start)
  return Optimizer(transformation, schedule, gate)


def _rule(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
  rule = RULES[config.optimizer]
  return rule(schedule, config.b1, config.b2, config.eps, config.weight_decay)


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
      own_schedule = functools.partial(_shifted, schedule, first)
      # Padded with zeros: dicts of a state are sorted by key, so groups follow in order of time.
      rules[f"from_{first:09}"] = delayed(_rule(config, own_schedule), first)
    return optax.partition(rules, jax.tree.map(lambda first: f"from_{first:09}", starts))

  def init(params):
    return partitioned(params).init(params)

  def update(grads, state, params=None, **_):
    return partitioned(grads).update(grads, state, params)

  return optax.GradientTransformationExtraArgs(init, update)


def _shifted(schedule: optax.Schedule, first: int, count: jax.Array) -> jax.Array:
  return schedule(count + first)


def _gate(
  grads: Any, updates: jax.Array, frozen: tuple[str, ...], start: Callable[[str], int] | None
) -> Any:
  grads = zero_frozen(grads, frozen)
  return grads if start is None else zero_waiting(grads, updates, start)


def is_frozen(params: Any, patterns: Sequence[str]) -> Any:
  """A tree of bools: whether any of the patterns occurs in a parameter's path.

  Raises:
    ValueError: a pattern occurs in no path.
  """
  paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  for pattern in patterns:
    if not any(re.search(pattern, path) for path in paths):
      raise ValueError(f"frozen: {pattern!r} matches no parameter; they are {', '.join(paths)}")

  def matches(path, _):
    return any(re.search(pattern, path_name(path)) for pattern in patterns)

  return jax.tree_util.tree_map_with_path(matches, params)


def zero_frozen(grads: Any, patterns: Sequence[str]) -> Any:
  """The gradient with zeros for the parameters that `patterns` freeze: a gate of make_step."""
  if not patterns:
    return grads
  return jax.tree.map(
    lambda g, frozen: jnp.zeros_like(g) if frozen else g, grads, is_frozen(grads, patterns)
  )
