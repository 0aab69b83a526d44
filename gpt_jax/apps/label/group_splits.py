"""Splits of labeled rows that keep the shares of the labels and never divide a group of rows."""

import warnings

import numpy as np

from gpt_jax.errors import InputError, counted, require

_PARTS = 7  # one is for dev, one for test


def split_by_group(classes: np.ndarray, groups: np.ndarray, seed: int) -> dict[str, np.ndarray]:
  """Row numbers, ascending, of "train" (five sevenths), "dev" and "test" (a seventh each).

  Args:
    classes: int [N].
    groups: int [N], the rows that stay together; see near_duplicates.
    seed: another one gives another split.
  """
  fold = group_folds(classes, groups, _PARTS, seed)
  parts = {"train": fold > 1, "dev": fold == 1, "test": fold == 0}
  return {name: np.flatnonzero(inside) for name, inside in parts.items()}


def group_folds(classes: np.ndarray, groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
  """The fold of each row, int [N]."""
  model_selection = require("sklearn.model_selection", "a split", "scikit-learn", "metrics")
  count = len(np.unique(groups))
  if count < folds:
    raise InputError(
      f"{len(classes):,} rows with {count:,} different texts: too few for {folds} parts"
    )
  fold = np.zeros(len(classes), np.int64)
  splitter = model_selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # of labels with fewer rows than folds
    for number, (_, inside) in enumerate(splitter.split(classes, classes, groups)):
      fold[inside] = number
  if len(np.unique(fold)) < folds:
    raise InputError(f"{counted(len(classes), 'row')}: too few for {folds} parts of each label")
  return fold
