"""Adam as OpenAI's released code has it, or optax's AdamW, under the schedules of that code
(`opt.py`).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError

NOT_DECAYED = ("bias", "scale", "gain")


@register("optimizer")
@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """The update rule and its schedule; the defaults are those of the paper's pre-training (section
  4.1).

  Fine-tuning is `learning_rate=6.25e-5, schedule="linear", warmup_steps=0, warmup_share=0.002`.
  Below 500 updates that warm-up is no more than the first update, whose learning rate is 0, as it
  was for OpenAI; `min_warmup_steps` mends it.
  """

  optimizer: str = option(
    "openai", "update rule: OpenAI's Adam, or optax.adamw", choices=("openai", "adamw")
  )
  learning_rate: float = option(2.5e-4, "peak learning rate", low=0.0)
  schedule: str = option(
    "cosine", "shape after the warm-up", choices=("cosine", "linear", "constant")
  )
  warmup_steps: int = option(
    2000, "length of the warm-up; 0 where warmup_share gives it", unit="updates", low=0
  )
  warmup_share: float = option(
    0.0, "length of the warm-up as a share of all updates", low=0.0, high=1.0
  )
  min_warmup_steps: int = option(0, "the warm-up is at least this long", unit="updates", low=0)
  weight_decay: float = option(0.01, "decoupled decay of everything but biases and gains", low=0.0)
  clip_norm: float = option(1.0, "largest global norm of the gradient; 0: no clipping", low=0.0)
  b1: float = option(0.9, "decay of the first moment", low=0.0, high=0.9999)
  b2: float = option(0.999, "decay of the second moment", low=0.0, high=0.999999)
  eps: float = option(1e-8, "added to the root of the second moment", low=1e-12)

  def __post_init__(self):
    validate(self)
    if self.warmup_steps and self.warmup_share:
      raise InputError(
        f"warmup_steps = {self.warmup_steps} and warmup_share = {self.warmup_share}: set one of them to 0"
      )


def make_optimizer(
  config: OptimConfig, total_steps: int
) -> tuple[optax.GradientTransformationExtraArgs, optax.Schedule]:
  """The optimizer of a run of `total_steps` updates, and its learning rate as a function of
  completed updates.

  Its update takes the gradient's global norm as `norm=`, where the caller has it already.
  """
  schedule = make_schedule(config, total_steps)
  if config.optimizer == "openai":
    adam = scale_by_openai_adam(config.b1, config.b2, config.eps, config.weight_decay)
    optimizer = optax.chain(adam, optax.scale_by_learning_rate(schedule))
  else:
    optimizer = optax.adamw(
      schedule, config.b1, config.b2, config.eps, weight_decay=config.weight_decay, mask=decayed
    )
  # The norm is that of all gradients together, after they were averaged over devices.
  clip_norm = clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  return optax.with_extra_args_support(optax.chain(clip_norm, optimizer)), schedule


def clip_by_global_norm(limit: float) -> optax.GradientTransformationExtraArgs:
  """optax's, to rounding, as one multiplication: that fuses into what follows, and optax's own
  two passes do not.
  """

  def update(grads, state, params=None, *, norm=None, **_):
    norm = optax.tree.norm(grads) if norm is None else norm
    scale = jnp.where(norm > limit, limit / norm, 1.0)
    return jax.tree.map(lambda g: g * scale, grads), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def warmup_length(config: OptimConfig, total_steps: int) -> float:
  """Updates until the learning rate peaks; a fraction where a share of a short run is less than
  one update.
  """
  return float(max(config.warmup_steps, config.warmup_share * total_steps, config.min_warmup_steps))


def make_schedule(config: OptimConfig, total_steps: int) -> optax.Schedule:
  """OpenAI's `warmup_cosine`, `warmup_linear` and `warmup_constant`, as functions of the updates
  already made.

  The first update therefore has learning rate 0, the warm-up of the linear schedule bends by 1 - x,
  and the cosine, unlike optax's, is not shifted by the warm-up, so that it starts a little below
  its peak.
  """
  warmup = warmup_length(config, total_steps)

  def schedule(count):
    t = jnp.asarray(count, jnp.float32)
    x = jnp.minimum(t / total_steps, 1.0)
    rise, warming = (t / warmup, t <= warmup) if warmup else (1.0, False)
    if config.schedule == "cosine":
      return config.learning_rate * jnp.where(warming, rise, 0.5 * (1.0 + jnp.cos(jnp.pi * x)))
    fall = 1.0 - x if config.schedule == "linear" else jnp.ones_like(x)
    return config.learning_rate * jnp.where(warming, rise, 1.0) * fall

  return schedule


def scale_by_openai_adam(
  b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformation:
  """OpenAI's Adam with decoupled decay, still to be multiplied by the learning rate.

  It differs from `optax.adamw` in two places: eps is added to the uncorrected root of the second
  moment, and the decay too is multiplied by the bias correction, which for the first thousand
  updates makes it a fraction of nominal.
  """

  def init(params):
    decayed(params)  # raises early
    zeros = optax.tree.zeros_like
    return optax.ScaleByAdamState(
      count=jnp.zeros([], jnp.int32), mu=zeros(params), nu=zeros(params)
    )

  def update(grads, state, params):
    count = optax.safe_increment(state.count)
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
    t = count.astype(jnp.float32)
    correction = jnp.sqrt(1 - b2**t) / (1 - b1**t)

    def direction(m, v, p, decay):
      return correction * (m / (jnp.sqrt(v) + eps) + (weight_decay * p if decay else 0.0))

    updates = jax.tree.map(direction, mu, nu, params, decayed(params))
    return updates, optax.ScaleByAdamState(count, mu, nu)

  return optax.GradientTransformation(init, update)


def decayed(params):
  """Which parameters decay: all but biases and gains, known by name, since our kernels and biases
  have any rank.

  Raises:
    ValueError: a vector that is not named as a bias or a gain, which the paper would not decay.
  """

  def by_name(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    decays = name.rsplit("/", 1)[-1] not in NOT_DECAYED
    if decays and len(leaf.shape) < 2:
      raise ValueError(
        f"parameter {name} of shape {leaf.shape} must be named one of {', '.join(NOT_DECAYED)}"
      )
    return decays

  return jax.tree_util.tree_map_with_path(by_name, params)
