"""A threshold on the confidence that keeps a promised precision on unseen rows.

Predictions below the threshold are withheld, as in Geifman and El-Yaniv 2017, Selective
Classification for Deep Neural Networks. Thresholds are tested in sequence as in Angelopoulos et al.
2021, Learn then Test, with the exact binomial bound.
"""

from typing import NamedTuple

import numpy as np

from gpt_jax.errors import InputError, require

CONFIDENCE = 0.95  # that the promise holds
# The thresholds that may be chosen: above which 1/20 of the rows are, 2/20, … all.
_SHARES = 20
_STARTS = (5, 10, 15, 20)


class Threshold(NamedTuple):
  """A threshold, and what labeled rows say about it.

  Attributes:
    value: predictions with at least this confidence are given; 0.0: all.
    given: number of labeled rows with at least this confidence.
    correct: how many of them are predicted correctly.
    promised: a lower bound of the precision on unseen rows, with a confidence of 95 %.
  """

  value: float
  given: int
  correct: int
  promised: float


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, precision: float) -> Threshold:
  """The lowest threshold above which predictions on unseen rows have the precision.

  Four sequences of tests begin at the most confident 1/4, 1/2, 3/4 and all of the rows. Each adds
  the next 1/20 of the rows until a bound is too low. As a sequence ends at its first failure, and
  its bounds have a confidence of 1 - 0.05 / 4, the promise fails with a probability of 5 % at most.
  The unseen rows must be drawn as the labeled ones were.

  Args:
    confidence: [N], the highest probability of each labeled row; the rows were not trained on.
    correct: bool [N], whether its most likely class is the true one.
    precision: the share of correct predictions to promise, between 0 and 1.
  """
  if not len(confidence):
    raise InputError(f"precision={precision}: there are no dev rows to choose a threshold on")
  tested = [_test(confidence, correct, share) for share in range(1, _SHARES + 1)]
  # Fixed sequences: a test counts only if all before it in its sequence have passed, so none of
  # them costs confidence.
  chosen: Threshold | None = None
  for start in _STARTS:
    for threshold in tested[start - 1 :]:
      if threshold.promised < precision:
        break
      if chosen is None or threshold.given > chosen.given:
        chosen = threshold
  if chosen is not None:
    return chosen
  best = max((tested[start - 1] for start in _STARTS), key=lambda threshold: threshold.promised)
  raise InputError(
    f"precision={precision}: no threshold is sure to reach it: at best {best.correct:,} of the "
    f"{best.given:,} most confident dev rows are right, which promises {best.promised:.3f} with "
    f"{CONFIDENCE:.0%} confidence; ask for less, or use a larger dev set"
  )


def _test(confidence: np.ndarray, correct: np.ndarray, share: int) -> Threshold:
  """The threshold of the most confident `share` / 20 of the rows."""
  rows = max(len(confidence) * share // _SHARES, 1)
  value = 0.0 if share == _SHARES else float(np.sort(confidence)[-rows])
  above = confidence >= value  # ties with the last row come along
  given, hits = int(above.sum()), int(correct[above].sum())
  # Bonferroni: the allowed 5 % are shared among the sequences of tests.
  bound = precision_bound(hits, given, 1 - (1 - CONFIDENCE) / len(_STARTS))
  return Threshold(value, given, hits, bound)


def precision_bound(correct: int, count: int, confidence: float) -> float:
  """The lower confidence bound of a share of which `correct` of `count` were seen.

  It is exact: one side of Clopper and Pearson 1934. Raises InputError without scipy.
  """
  if not correct:
    return 0.0
  beta = require("scipy.stats", "precision", "scipy", "metrics").beta
  return float(beta.ppf(1 - confidence, correct, count - correct + 1))
