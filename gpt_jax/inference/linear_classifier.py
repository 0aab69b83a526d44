"""Logistic regression on fixed features: TF-IDF of the texts, or what the head W_y reads.

Letters: N examples, F features, K classes.
"""

import dataclasses
import types
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import require

# Inverse strengths of the L2 penalty to choose from.
_INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_ABSENT = -30.0  # the score of a class without examples
_MAX_TERMS = 100_000  # of each kind
_KINDS = {"char_wb": (2, 5), "word": (1, 2)}  # scikit-learn's analyzer: lengths of its n-grams


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
  """
  linear_model = _sklearn("linear_model")
  from sklearn.exceptions import ConvergenceWarning

  mean, scale = np.zeros(features.shape[1]), np.ones(features.shape[1])
  if isinstance(features, np.ndarray):
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
    features = (features - mean) / scale
  kernel = np.zeros((features.shape[1], num_classes))
  # Classes without an example get a probability of about 0, not an equal share.
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
  # (x - mean) / scale @ W + b = x @ (W / scale) + (b - mean @ W / scale).
  kernel /= scale[:, None]
  return Linear(kernel, bias - mean @ kernel, inverse_penalty)


def spread_classes(classes: np.ndarray, seed: int) -> np.ndarray:
  """A random order of examples whose beginnings have their share of each class, and one example of
  it if there are enough; int [N].
  """
  order = np.random.default_rng(seed).permutation(len(classes))
  classes = classes[order]
  positions = np.zeros(len(classes))
  for of_class in (np.flatnonzero(classes == k) for k in np.unique(classes)):
    # How far along its class an example is; the first of each class come before all others.
    positions[of_class[1:]] = (np.arange(1, len(of_class)) + 0.5) / len(of_class)
  return order[np.argsort(positions, kind="stable")]


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


@dataclasses.dataclass(frozen=True)
class Tfidf:
  """TF-IDF features of words, pairs of words, and pieces of 2 to 5 characters.

  Attributes:
    terms: for each kind of _KINDS that has any, its terms and their inverse document frequencies.
  """

  terms: dict[str, tuple[list[str], np.ndarray]]

  def __call__(self, texts: Sequence[str]) -> Any:
    """The features of texts, sparse [N, F]; F is 1 without any term."""
    columns = []
    for kind, (terms, weights) in self.terms.items():
      vectorizer = _vectorizer(kind, vocabulary=terms)
      # Set, not fitted: terms and weights are all that a vectorizer has learned.
      vectorizer.idf_ = weights
      columns.append(vectorizer.transform(texts))
    import scipy.sparse

    return scipy.sparse.hstack(columns or [scipy.sparse.csr_matrix((len(texts), 1))]).tocsr()


def fit_tfidf(texts: Sequence[str]) -> Tfidf:
  """The terms that at least two of the texts have, and how rare they are."""
  terms = {}
  for kind in _KINDS:
    vectorizer = _vectorizer(kind, min_df=2, max_features=_MAX_TERMS)
    try:
      vectorizer.fit(texts)
    except ValueError:  # there is none
      continue
    terms[kind] = list(vectorizer.get_feature_names_out()), vectorizer.idf_
  return Tfidf(terms)


def _vectorizer(kind: str, **settings: Any) -> Any:
  # The default pattern finds no word in a text of single characters.
  pattern = r"\w+" if kind == "word" else None
  return _sklearn("feature_extraction.text").TfidfVectorizer(
    analyzer=kind,
    ngram_range=_KINDS[kind],
    token_pattern=pattern,
    sublinear_tf=True,
    **settings,
  )


def _sklearn(module: str) -> types.ModuleType:
  return require(f"sklearn.{module}", "logistic regression", "scikit-learn", "metrics")
