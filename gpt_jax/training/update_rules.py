"""Update rules: the Adams of OpenAI, BERT and fairseq; LAMB, Adafactor and others; clipping;
means of weights.

No two of these Adams are equal in the first thousand updates, and none of them is optax's. With
m, v the moments, s = m / (sqrt(v) + eps) and c = sqrt(1 - b2^t) / (1 - b1^t), the bias correction:

  openai    lr c (s + wd p)       openai/opt.py
  bert      lr (s + wd p)         google-research/bert, optimization.py
  fairseq   lr (c s + wd p)       fairseq, optim/adam.py; decays biases and gains too
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation, GradientTransformationExtraArgs

from gpt_jax.parallel.mesh import path_name


class View(NamedTuple):
  """How a parameter of some rank becomes matrices, for rules that compute one number or one
  factorization per tensor (trust ratio, RMS, Adafactor).
  """

  pattern: str
  rank: int
  stacked: int | None  # the axis that enumerates several matrices; None: it is one
  rows: int  # leading axes, without `stacked`, that are the rows of a matrix; 0: it is a vector


# `qkv/kernel` is [D, 3, H, K], the output's `out/kernel` [H, K, D]; the LSTM's `read/kernel`
# [D, 4, U], `recur/kernel` [U, 4, U] and a translator's `feed/kernel` hold its four gates. T5's are
# matrices already.
VIEWS = (
  View(r"(^|/)qkv/kernel$", 4, 1, 1),
  View(r"(^|/)qkv/bias$", 3, 0, 0),
  View(r"(^|/)out/kernel$", 3, None, 2),
  View(r"(^|/)(read|recur|feed)/kernel$", 3, 1, 1),
  View(r"(^|/)(read|decoder/block_\d+)/bias$", 2, 0, 0),
)


def per_matrix(rule: GradientTransformation) -> GradientTransformationExtraArgs:
  """A rule that treats each matrix of a parameter as a parameter of its own: of queries, keys and
  values, one array [D, 3, H, K], its state has three, `qkv/kernel/0` and so on, [D, H K].
  """
  # Adafactor factors a parameter whose two largest axes are 128 or more, which [D, 3, H, 64] is
  # not; LAMB would have one trust ratio for queries, keys and values.
  rule = optax.with_extra_args_support(rule)

  def init(params):
    return rule.init(split_matrices(params))

  def update(updates, state, params=None, **extra):
    shapes = updates
    updates = split_matrices(updates)
    params = None if params is None else split_matrices(params)
    updates, state = rule.update(updates, state, params, **extra)
    return join_matrices(updates, shapes), state

  return GradientTransformationExtraArgs(init, update)


def split_matrices(tree: Any) -> Any:
  """The tree with a list of matrices in place of each parameter of VIEWS: three of [D, H K] of
  [D, 3, H, K]; three of [H K] of a bias [3, H, K]; one [H K, D] of [H, K, D].
  """

  def split(path, x):
    view = _view(path, x)
    if view is None:
      return x
    # Of [D, 3, H, K], three of [D, H, K]; the leading D are the rows of each.
    parts = [x] if view.stacked is None else list(jnp.moveaxis(x, view.stacked, 0))
    rows = parts[0].shape[: view.rows]
    return [part.reshape((math.prod(rows), -1) if rows else (-1,)) for part in parts]

  return jax.tree_util.tree_map_with_path(split, tree)


def join_matrices(parts: Any, like: Any) -> Any:
  """The inverse of split_matrices; `like` has the original structure and shapes."""

  def join(path, x, part):
    view = _view(path, x)
    if view is None:
      return part
    if view.stacked is None:
      return part[0].reshape(x.shape)
    shape = (*x.shape[: view.stacked], *x.shape[view.stacked + 1 :])
    return jnp.stack([matrix.reshape(shape) for matrix in part], view.stacked)

  return jax.tree_util.tree_map_with_path(join, like, parts)


def _view(path: tuple, x: Any) -> View | None:
  name = path_name(path)
  fits = (view for view in VIEWS if view.rank == x.ndim and re.search(view.pattern, name))
  return next(fits, None)


NOT_DECAYED = ("bias", "scale", "gain", "mixture")

# (schedule, b1, b2, eps, weight decay) -> the rule with its learning rate.
Rule = Callable[[optax.Schedule, float, float, float, float], GradientTransformation]


def openai_adam(b1: float, b2: float, eps: float, weight_decay: float) -> GradientTransformation:
  """OpenAI's Adam with decoupled decay, still to be multiplied by the learning rate.

  Unlike in `optax.adamw` eps is added to the uncorrected root of the second moment, and the decay
  too is multiplied by the bias correction, so that a fraction of it acts at first.
  """
  # `c` on the decay too: 0.15 of nominal after 10 updates, 0.63 after 500.
  return _adam(b1, b2, eps, weight_decay, lambda step, decay, c: c * (step + decay))


def bert_adam(b1: float, b2: float, eps: float, weight_decay: float) -> GradientTransformation:
  """BERT's Adam, still to be multiplied by the learning rate: there is no bias correction, so the
  first updates are (1 - b1) / sqrt(1 - b2) times as long as Adam's, with the usual b1 and b2 3.2.
  """
  return _adam(b1, b2, eps, weight_decay, lambda step, decay, c: step + decay)


def fairseq_adam(b1: float, b2: float, eps: float, weight_decay: float) -> GradientTransformation:
  """fairseq's Adam, still to be multiplied by the learning rate: the decay is not corrected, and
  acts on every parameter, biases and gains included.
  """
  direction = lambda step, decay, c: c * step + decay
  return _adam(b1, b2, eps, weight_decay, direction, all_decay=True)


def lamb(b1: float, b2: float, eps: float, weight_decay: float) -> GradientTransformation:
  """ALBERT's LAMB, still to be multiplied by the learning rate: r (s + wd p) with
  r = |p| / |s + wd p| (google-research/albert).

  BERT's Adam, whose update of each matrix is as long as the matrix itself. Biases and gains have
  neither decay nor ratio. `optax.lamb` corrects the bias, and has a ratio for every tensor.
  """
  # |p| / |update| of each matrix, not of a stack of three or of a vector.
  # 1 where either norm is 0, as ALBERT's.
  ratio = optax.masked(per_matrix(optax.scale_by_trust_ratio()), decayed)
  return optax.chain(bert_adam(b1, b2, eps, weight_decay), ratio)


def _scaled(rule: Callable[..., GradientTransformation]) -> Rule:
  """A rule that is still to be multiplied by the learning rate, multiplied by it."""

  def scaled(schedule, *parameters):
    return optax.chain(rule(*parameters), optax.scale_by_learning_rate(schedule))

  return scaled


def _adafactor(schedule, b1, b2, eps, weight_decay):
  """T5's Adafactor (Shazeer & Stern 2018): optax's defaults, on matrices.

  Second moments factored where both axes have 128 or more, decay 1 - t^-0.8, an update clipped to
  RMS 1 and multiplied by the RMS of the parameter (at least 0.001); no momentum, no weight decay.
  """
  del b1, b2, eps, weight_decay
  return per_matrix(optax.adafactor(schedule))


def _adagrad(schedule, b1, b2, eps, weight_decay):
  """TensorFlow's Adagrad: lr g / sqrt(eps + sum g^2); without moments and decay."""
  del b1, b2, weight_decay
  sums = optax.scale_by_rss(initial_accumulator_value=eps, eps=0.0)
  return optax.chain(sums, optax.scale_by_learning_rate(schedule))


def _adamw(schedule, b1, b2, eps, weight_decay):
  return optax.adamw(schedule, b1, b2, eps, weight_decay=weight_decay, mask=decayed)


def _momentum(schedule, b1, b2, eps, weight_decay):
  """TensorFlow's momentum: lr m, m = b1 m + g; without decay."""
  del b2, eps, weight_decay
  return optax.sgd(schedule, momentum=b1)


RULES: dict[str, Rule] = {
  "openai": _scaled(openai_adam),
  "bert": _scaled(bert_adam),
  "fairseq": _scaled(fairseq_adam),
  "adafactor": _adafactor,
  "adagrad": _adagrad,
  "adamw": _adamw,
  "lamb": _scaled(lamb),
  "momentum": _momentum,
}


def _adam(
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  direction: Callable[..., jax.Array],
  all_decay: bool = False,
) -> GradientTransformation:
  """Adam's moments, with an update of one's own, before the learning rate: direction(m / (sqrt(v) +
  eps), weight decay times the parameter, bias correction).
  """

  def init(params):
    decayed(params)  # raises early
    # float32, as the parameters: in bfloat16 b2 = 0.999 would round to 1.
    zeros = optax.tree.zeros_like
    return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros(params), zeros(params))

  def update(grads, state, params):
    count = optax.safe_increment(state.count)
    # Kingma & Ba 2015, algorithm 1; the correction of both moments is one factor on the update.
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
    t = count.astype(jnp.float32)
    correction = jnp.sqrt(1 - b2**t) / (1 - b1**t)  # of m and v together

    def one(m, v, p, decays):
      decay = weight_decay * p if decays or all_decay else 0.0
      # eps beside the uncorrected root, as in all three codes; optax adds it to the corrected one.
      return direction(m / (jnp.sqrt(v) + eps), decay, correction)

    updates = jax.tree.map(one, mu, nu, params, decayed(params))
    return updates, optax.ScaleByAdamState(count, mu, nu)

  return GradientTransformation(init, update)


def decayed(params: Any) -> Any:
  """A tree of bools: whether a parameter decays. All but biases and gains do; they are known by
  name, since our kernels and biases have any rank, and other vectors raise ValueError.
  """

  def decays(path, leaf):
    name = path_name(path)
    if name.rsplit("/", 1)[-1] in NOT_DECAYED:
      return False
    if name == "trunk/output" and leaf.shape[-1] == 1:  # the bias beside a tied table, LSTMStack
      return False
    # OpenAI's code decays whatever has two axes or more: embeddings, positions and W_y among them.
    if len(leaf.shape) < 2:
      raise ValueError(
        f"parameter {name} of shape {leaf.shape} must be named one of {', '.join(NOT_DECAYED)}"
      )
    return True

  return jax.tree_util.tree_map_with_path(decays, params)


def clip_by_global_norm(limit: float) -> GradientTransformationExtraArgs:
  """optax.clip_by_global_norm, up to rounding, as one multiplication that fuses into the update;
  optax's own takes two passes over memory.
  """

  def update(grads, state, params=None, *, norm=None, **_):
    norm = optax.tree.norm(grads) if norm is None else norm
    scale = jnp.where(norm > limit, limit / norm, 1.0)
    return jax.tree.map(lambda g: g * scale, grads), state  # all by one factor: the direction stays

  return GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


class Averaged(NamedTuple):
  """`ahead`: how far the weights that train are ahead of their mean, see averaged."""

  ahead: Any


def averaged(decay: float) -> GradientTransformation:
  """Turns the updates of weights w into those of their mean, v = decay v + (1 - decay) w.

  So a state's parameters are the means, which everything but the step reads: evaluations,
  checkpoints, a start from one. The step asks `trained` for w. At the start w = v.
  """

  def init(params):
    return Averaged(optax.tree.zeros_like(params))

  def update(updates, state, params=None):
    # w - v before the mean follows.
    ahead = optax.tree.add(state.ahead, updates)
    return optax.tree.scale(1 - decay, ahead), Averaged(optax.tree.scale(decay, ahead))

  return GradientTransformation(init, update)


def trained(params: Any, opt_state: Any) -> Any:
  """The weights that train: the parameters, or where those are means what they are means of."""
  ahead = optax.tree.get(opt_state, "ahead")
  return params if ahead is None else optax.tree.add(params, ahead)
