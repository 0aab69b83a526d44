"""Logistic regression on fixed features: TF-IDF of the texts, or what the head W_y reads.

Letters: N examples, F features, K classes.
"""

import types
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import InputError

# Inverse strengths of the L2 penalty to choose from.
_INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_ABSENT = -30.0  # the score of a class without examples
_MOST_FEATURES = 100_000  # of each kind


class Linear(NamedTuple):
  """Scores features @ kernel + bias, whose softmax is the probabilities.

  Attributes:
    kernel: [F, K].
    bias: [K].
    inverse_penalty: C of scikit-learn.
  """

  kernel: np.ndarray
  bias: np.ndarray
  inverse_penalty: float

  def __call__(self, features: Any) -> np.ndarray:
    """Probabilities [N, K] for features [N, F], dense or sparse."""
    scores = np.asarray(features @ self.kernel) + self.bias
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def fit_linear(
  features: Any, classes: np.ndarray, num_classes: int, inverse_penalty: float
) -> Linear:
  """Logistic regression by scikit-learn.

  Dense features are standardized, and kernel and bias undo it.

  Args:
    features: [N, F], dense or sparse.
    classes: int [N]; of some classes there may be none.

  Raises:
    InputError: scikit-learn is not installed.
  """
  linear_model = _sklearn("linear_model")
  from sklearn.exceptions import ConvergenceWarning

  mean, scale = np.zeros(features.shape[1]), np.ones(features.shape[1])
  if isinstance(features, np.ndarray):
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    features = (features - mean) / scale
  kernel = np.zeros((features.shape[1], num_classes))
  bias = np.full(num_classes, _ABSENT)
  present = np.unique(classes)
  bias[present] = 0.0
  if len(present) > 1:
    model = linear_model.LogisticRegression(C=inverse_penalty, max_iter=300, tol=1e-3)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", ConvergenceWarning)
      model.fit(features, classes)
    # Of two classes scikit-learn has the score of the second alone.
    fitted = present[1:] if len(present) == 2 else present
    kernel[:, fitted], bias[fitted] = model.coef_.T, model.intercept_
  kernel /= scale[:, None]
  return Linear(kernel, bias - mean @ kernel, inverse_penalty)


def fit_best_linear(
  train: tuple[Any, np.ndarray], dev: tuple[Any, np.ndarray], num_classes: int
) -> Linear:
  """The Linear whose penalty makes dev examples, (features, classes), most likely."""

  def loss(linear: Linear) -> float:
    features, classes = dev
    of_truth = linear(features)[np.arange(len(classes)), classes]
    return float(-np.log(np.maximum(of_truth, 1e-30)).mean())

  candidates = [fit_linear(*train, num_classes, c) for c in _INVERSE_PENALTIES]
  return min(candidates, key=loss)


def tfidf(train: Sequence[str], *others: Sequence[str]) -> list[Any]:
  """Sparse TF-IDF features [N, F] of words, pairs of words, and pieces of 2 to 5 characters.

  Args:
    train: the texts that say which features there are, and how rare they are.
    others: further lists of texts.

  Returns:
    The features of every list, train first.

  Raises:
    InputError: scikit-learn is not installed.
  """
  text = _sklearn("feature_extraction.text")
  import scipy.sparse

  vectorizers = [
    text.TfidfVectorizer(
      analyzer=analyzer,
      ngram_range=lengths,
      # With its default pattern a text of single characters has no word.
      token_pattern=r"\w+" if analyzer == "word" else None,
      min_df=2,
      max_features=_MOST_FEATURES,
      sublinear_tf=True,
      dtype=np.float32,
    )
    for analyzer, lengths in (("word", (1, 2)), ("char_wb", (2, 5)))
  ]
  columns = []
  for vectorizer in vectorizers:
    try:
      columns.append([vectorizer.fit_transform(train), *map(vectorizer.transform, others)])
    except ValueError:  # no feature is in two texts
      continue
  if not columns:
    return [scipy.sparse.csr_matrix((len(texts), 1)) for texts in (train, *others)]
  return [scipy.sparse.hstack(parts).tocsr() for parts in zip(*columns, strict=True)]


def _sklearn(module: str) -> types.ModuleType:
  import importlib

  try:
    return importlib.import_module(f"sklearn.{module}")
  except ImportError as error:
    raise InputError(
      "logistic regression needs scikit-learn: pip install 'gpt_jax[metrics]'"
    ) from error
