"""Optimizers: an update rule and its schedule; cosine, linear and constant are OpenAI's
(`openai/opt.py`).

Letters of schedules: t updates made before, w updates of the warm-up, n updates of the run. With a
warm-up the first update has rate 0, except for inverse_sqrt and slanted_triangle.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError
from gpt_jax.training.update_rules import RULES, averaged, clip_by_global_norm


def _cosine(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then (1 + cos(pi t / n)) / 2.

  Unlike optax's it is not shifted by the warm-up, and so starts a little below its peak.
  """
  return peak * _warmed(t, w, 0.5 * (1.0 + jnp.cos(jnp.pi * _done(t, n))))


def _linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w (1 - t / n), then 1 - t / n."""
  return _constant(peak, t, w, n) * (1.0 - _done(t, n))


def _constant(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1."""
  return peak * _warmed(t, w, jnp.ones_like(t))


def _warmed(t: jax.Array, w: float, after: jax.Array) -> jax.Array:
  """t / w during the warm-up, then `after`."""
  # openai/opt.py counts completed updates, so the first one has rate 0; with w below 1 that is all
  # the warm-up there is.
  return jnp.where(t <= w, t / w, after) if w else after


def _done(t: jax.Array, n: int) -> jax.Array:
  """The share of a run that is behind it."""
  return jnp.minimum(t / n, 1.0)


def _bert_linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - t / n (google-research/bert, optimization.py).

  It is not shifted by the warm-up, at whose end the rate jumps down.
  """
  # t < w, where OpenAI's has t <= w (see _warmed).
  fall = 1.0 - _done(t, n)
  return peak * (jnp.where(t < w, t / w, fall) if w else fall)


def _cross_view(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """min(t / w, 1) / (1 + 0.005 sqrt t) (tensorflow/models, research/cvt_text, trainer.py).

  Theirs has w = 5000 and a peak of 0.5, not reached.
  """
  return peak * jnp.minimum(t / w if w else 1.0, 1.0) / (1.0 + 0.005 * jnp.sqrt(t))


def _fairseq_linear(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """t / w, then 1 - (t - w) / (n - w): fairseq's polynomial decay of power 1."""
  return peak * _warmed(t, w, jnp.clip((n - t) / max(n - w, 1.0), 0.0, 1.0))


def _inverse_sqrt(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """sqrt(w / max(t, w)): constant, then falling.

  A peak of 0.01 with w = 10^4 is T5's 1 / sqrt(max(t, 10^4)).
  """
  first = max(w, 1.0)
  return peak * jnp.sqrt(first / jnp.maximum(t, first))


def _slanted_triangle(peak: float, t: jax.Array, w: float, n: int) -> jax.Array:
  """(1 + 31 p) / 32, with p = t / cut, then 1 - (t - cut) / (cut (n / w - 1)); 32 is their ratio,
  w = n cut_frac and cut = floor(w) (ULMFiT, Howard & Ruder 2018, section 3.2).
  """
  cut = math.floor(w)
  fall = 1.0 - (t - cut) / max(cut * (n / w - 1.0) if cut else n, 1.0)
  p = jnp.where(t < cut, t / max(cut, 1), fall)
  return peak * (1.0 + 31.0 * jnp.clip(p, 0.0, 1.0)) / 32.0


# (peak, t, w, n) -> learning rate.
SHAPES: dict[str, Callable[[float, jax.Array, float, int], jax.Array]] = {
  "cosine": _cosine,
  "linear": _linear,
  "constant": _constant,
  "bert_linear": _bert_linear,
  "cross_view": _cross_view,
  "fairseq_linear": _fairseq_linear,
  "inverse_sqrt": _inverse_sqrt,
  "slanted_triangle": _slanted_triangle,
}


def make_schedule(
  shape: str, learning_rate: float, warmup: float, total_steps: int
) -> optax.Schedule:
  """The learning rate as a function of the number of updates made before.

  `warmup` is the updates until the peak (inverse_sqrt: at the peak). After a run of `total_steps`
  the rate stays at its last value.
  """
  curve = SHAPES[shape]
  return lambda count: curve(learning_rate, jnp.asarray(count, jnp.float32), warmup, total_steps)


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
    """Updates until the learning rate peaks, perhaps less than one; 0 in a run of a single one."""
    if total_steps == 1:
      return 0.0  # or its only update would have rate 0
    share = (self.warmup_share or 0.0) * total_steps
    return float(max(self.warmup_steps, share, self.min_warmup_steps))

  def warnings(self, total_steps: int) -> list[str]:
    """Faults of a run of so many updates, each with a remedy: nothing trains, the warm-up does not
    end, or the averaged weights are still close to the initial ones.
    """
    found = [self._about_long_warmup(total_steps)]
    first = self.average**total_steps if self.average and total_steps else 0.0  # their share
    if first > 0.1:
      decay = 0.01 ** (1 / total_steps)
      found.append(
        f"warning: the averaged weights, which are evaluated and saved, are still {first:.0%} the "
        f"initial ones after {total_steps:,} updates; config.optim.average={decay:.4g} leaves 1%"
      )
    return [warning for warning in found if warning]

  def _about_long_warmup(self, total_steps: int) -> str:
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
  """An update rule with its schedule."""

  # Its update takes the global norm of the gradient as `norm=`, if known.
  transformation: optax.GradientTransformationExtraArgs
  schedule: optax.Schedule  # number of updates made before -> learning rate
  # (gradient, number of updates made before) -> the gradient with zeros for parameters that do not
  # train; make_step applies it before it takes the norm.
  gate: Callable[[Any, jax.Array], Any] = lambda grads, updates: grads


def make_optimizer(config: OptimConfig, total_steps: int) -> Optimizer:
  """The optimizer of a run in which all parameters train alike; see also layerwise_optimizer."""
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
