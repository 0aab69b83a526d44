"""How far texts are from others, by a classifier two-sample test (Lopez-Paz & Oquab 2017)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.errors import require

MIN_TEXTS = 20
RELABEL = 0.2  # of the texts may be of a new kind
_MOST = 750  # texts of each side, drawn
_LONGEST = 2000  # characters of a text that count
_DIVISIONS = 200


class Drift(NamedTuple):
  """How much more often than by chance a classifier, which is taught to tell texts from others,
  ranks a pair in order, 2 AUC - 1: 0 where both are alike, 1 where they have nothing in common. If
  the texts are alike but for a part of a new kind, it is at most the share of that.
  """

  value: float
  chance: float  # 95 % of values are below it where both are alike
  others: int  # how many were compared

  def describe(self, others: str) -> str:
    """One line; `others` names them, as "dev rows"."""
    return (
      f"drift {self.value:.0%}: this share of the rows or more is unlike {self.others:,} {others} "
      f"(chance gives up to {self.chance:.0%} where all are alike)"
    )

  def advise(self, others: str) -> str:
    """The same, with what to do about rows without labels."""
    advice = "scores and thresholds do not hold for them: label some, and train again"
    if self.value <= self.chance:
      advice = f"nothing to do; look at the rows above that, label anew from {RELABEL:.0%} on"
    elif self.value < RELABEL:
      advice = f"look at the rows that are new; label anew from {RELABEL:.0%} on"
    return f"{self.describe(others)}; {advice}"


def measure_drift(others: Sequence[str], texts: Sequence[str]) -> Drift | None:
  """The Drift of texts from others; None if one side has fewer than 20.

  The classifier is a ridge regression on the TF-IDF of pieces of words; each text is ranked by one
  that has not seen it. The chance is that of 200 random divisions of all texts in two.
  """
  if min(len(texts), len(others)) < MIN_TEXTS:
    return None
  vectorizer = require("sklearn.feature_extraction.text", "drift", "scikit-learn", "metrics")
  random = np.random.default_rng(0)
  sides = [random.permutation(np.array(side, object))[:_MOST] for side in (others, texts)]
  is_new = np.repeat([0.0, 1.0], [len(side) for side in sides])
  # A column for each: the true division, then random ones.
  divisions = [is_new, *(random.permutation(is_new) for _ in range(_DIVISIONS))]
  vectors = vectorizer.TfidfVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True
  ).fit_transform([text[:_LONGEST] for text in np.concatenate(sides)])
  # 2 AUC - 1 of each column (Mann and Whitney 1947).
  targets = np.stack(divisions, axis=1)
  left_out = predict_left_out((vectors @ vectors.T).toarray(), targets)
  stats = require("scipy.stats", "drift", "scipy", "metrics")
  ones = targets.sum(axis=0)
  in_order = (stats.rankdata(left_out, axis=0) * targets).sum(axis=0) - ones * (ones + 1) / 2
  values = 2 * in_order / (ones * (len(targets) - ones)) - 1
  chance = float(np.quantile(values[1:], 0.95))
  return Drift(max(0.0, float(values[0])), max(0.0, chance), len(sides[0]))


def predict_left_out(kernel: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """Each target [N, P] by a ridge regression on the other rows: with a kernel [N, N], an intercept
  and a penalty of 1.
  """
  centered = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
  hat = centered @ np.linalg.inv(centered + np.eye(len(kernel))) + 1 / len(kernel)
  # As for every linear smoother: the error without a row is that with it over 1 - h.
  return targets - (targets - hat @ targets) / (1 - np.diag(hat))[:, None]
