"""Parameters as the matrices that the papers mean, for rules that look at a whole matrix."""

import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.parallel.partition import path_name


class View(NamedTuple):
  """How a parameter of some rank becomes matrices, for rules that compute one number or one
  factorization per tensor (trust ratio, RMS, Adafactor).

  Attributes:
    pattern: of its path.
    rank: its number of axes.
    stacked: the axis that enumerates several matrices; None: it is one.
    rows: leading axes, without `stacked`, that are the rows of a matrix; 0: it is a vector.
  """

  pattern: str
  rank: int
  stacked: int | None
  rows: int


# `qkv/kernel` is [D, 3, H, K], the output's `out/kernel` [H, K, D]; the LSTM's `read/kernel`
# [D, 4, U] and `recur/kernel` [U, 4, U] hold its four gates. T5's are matrices already.
VIEWS = (
  View(r"(^|/)qkv/kernel$", 4, 1, 1),
  View(r"(^|/)qkv/bias$", 3, 0, 0),
  View(r"(^|/)out/kernel$", 3, None, 2),
  View(r"(^|/)(read|recur)/kernel$", 3, 1, 1),
  View(r"(^|/)read/bias$", 2, 0, 0),
)


def per_matrix(rule: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
  """A rule that treats each matrix of a parameter as a parameter of its own.

  Queries, keys and values are one array [D, 3, H, K] in the model, three matrices [D, H K] in the
  rule, and in the paths of its state `qkv/kernel/0` and so on.
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

  return optax.GradientTransformationExtraArgs(init, update)


def split_matrices(tree: Any) -> Any:
  """The tree with a list of matrices in place of each parameter of VIEWS.

  [D, 3, H, K] becomes three of [D, H K]; a bias [3, H, K] three of [H K]; [H, K, D] one [H K, D].
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
