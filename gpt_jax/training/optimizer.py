"""Optimizers: an update rule and its schedule."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError
from gpt_jax.training.schedules import SHAPES, make_schedule, warmup_length
from gpt_jax.training.update_rules import RULES, averaged, clip_by_global_norm


@register("optimizer")
@dataclasses.dataclass(frozen=True)
class OptimConfig(Config):
  """The optimizer and its schedule; the defaults are the paper's for pre-training (section 4.1).

  The paper's fine-tuning has `learning_rate=6.25e-5, schedule="linear", warmup_steps=0,
  warmup_share=0.002`; for models of other sizes see training/defaults.py. Below 500 updates that
  warm-up is only the first update, whose learning rate is 0, as in OpenAI's code;
  `min_warmup_steps` makes it longer.
  """

  optimizer: str = option(
    "openai",
    "the Adam of OpenAI, optax (adamw), BERT or fairseq; ALBERT's LAMB; T5's Adafactor, which has "
    "no weight_decay, b1, b2 and eps; Adagrad, of which eps is the first sum of squares; momentum "
    "of b1",
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
    needs="warmup_steps=0",
  )
  min_warmup_steps: int = option(0, "the warm-up is at least this long", unit="updates", low=0)
  weight_decay: float = option(
    0.01, "weight decay, decoupled, of all but biases and gains; fairseq: of all", low=0.0, high=1e3
  )
  clip_norm: float = option(1.0, "largest global norm of the gradient; 0: no clipping", low=0.0)
  b1: float = option(0.9, "decay of the first moment", low=0.0, high=0.9999)
  b2: float = option(0.999, "decay of the second moment", low=0.0, high=0.999999)
  eps: float = option(1e-8, "added to the root of the second moment", low=1e-12)
  average: float = option(
    0.0,
    "decay of an exponential mean of the weights, which is evaluated and saved; 0: no mean",
    low=0.0,
    high=0.99999,
  )

  def warmup_length(self, total_steps: int) -> float:
    """Updates until the learning rate peaks in a run of `total_steps`."""
    return warmup_length(
      total_steps, self.warmup_steps, self.warmup_share or 0.0, self.min_warmup_steps
    )

  def about_long_warmup(self, total_steps: int) -> str:
    """A warning, with a remedy, if the warm-up does not end within a run, or nothing trains in it;
    else "".
    """
    if self.learning_rate == 0:
      return "warning: nothing trains at config.optim.learning_rate=0; set one above 0"
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
  gate: Callable[[Any, jax.Array], Any] = lambda grads, updates: grads


def make_optimizer(config: OptimConfig, total_steps: int) -> Optimizer:
  """The optimizer of a run of `total_steps` updates in which all parameters train alike.

  For others see layerwise.layerwise_optimizer.
  """
  schedule = schedule_of(config, total_steps)
  rule = clipped(config, rule_of(config, schedule))
  return Optimizer(with_average(config, rule), schedule)  # the gate lets all train


def schedule_of(config: OptimConfig, total_steps: int) -> optax.Schedule:
  """Number of updates made before -> learning rate."""
  if config.learning_rate is None or config.warmup_share is None:
    raise InputError(
      "optim.learning_rate and optim.warmup_share: must be numbers when pre-training"
    )
  warmup = config.warmup_length(total_steps)
  return make_schedule(config.schedule, config.learning_rate, warmup, total_steps)


def rule_of(config: OptimConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
  """The update rule, which multiplies by the learning rate of a schedule."""
  return RULES[config.optimizer](schedule, config.b1, config.b2, config.eps, config.weight_decay)


def clipped(
  config: OptimConfig, rule: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
  """A rule whose moments are those of the clipped gradient."""
  # The norm is that of all gradients together, after they were averaged over devices.
  clip_norm = clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  return optax.with_extra_args_support(optax.chain(clip_norm, rule))


def with_average(
  config: OptimConfig, rule: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
  """The rule of the weights' mean, if the config asks for one; see update_rules.averaged."""
  return optax.chain(rule, averaged(config.average)) if config.average else rule
