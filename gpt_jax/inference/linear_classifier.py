"""Logistic regression on fixed features: TF-IDF of the texts, or what the head W_y reads.

Letters: N examples, F features, K classes.
"""

import dataclasses
import functools
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.checkpoints.formats import accept, npz
from gpt_jax.checkpoints.load import AnyModel, LoadedModel, load_model
from gpt_jax.checkpoints.released import TFIDF_FILE, tfidf_folder
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.errors import InputError, require
from gpt_jax.files import atomic_file, local_copy, parse_json
from gpt_jax.inference.dev_report import write_dev_report
from gpt_jax.tasks.encoding import Encoded, Example

# Inverse strengths of the L2 penalty to choose from.
_INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_CHOOSES = 5  # of so many training examples one chooses the strength of the penalty
_ABSENT = -30.0  # the score of a class without examples
_MAX_TERMS = 100_000  # of each kind
_SKLEARN = ("logistic regression", "scikit-learn", "metrics")  # for `require`
_KINDS = {"char_wb": (2, 5), "word": (1, 2)}  # scikit-learn's analyzer: lengths of its n-grams


class Linear(NamedTuple):
  """Scores features @ kernel + bias, whose softmax is the probabilities."""

  kernel: np.ndarray  # [F, K]
  bias: np.ndarray  # [K]
  inverse_penalty: float  # C of scikit-learn

  def __call__(self, features: Any) -> np.ndarray:
    """Probabilities [N, K] for features [N, F], dense or sparse."""
    scores = np.asarray(features @ self.kernel) + self.bias
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def fit_linear(
  features: Any, classes: np.ndarray, num_classes: int, inverse_penalty: float
) -> Linear:
  """Logistic regression by scikit-learn on features [N, F], dense or sparse, of classes int [N],
  some of which may have no example.

  Dense features are standardized, and kernel and bias undo it.
  """
  linear_model = require("sklearn.linear_model", *_SKLEARN)
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


def fit_chosen(features: Any, classes: np.ndarray, num_classes: int) -> Linear:
  """The Linear whose penalty a fifth of the examples chooses, of those that the others train."""
  chooses = np.zeros(len(classes), bool)
  # By class: every fifth row may be of one class. The end of the order, so that rare ones train.
  chooses[spread_classes(classes, 0)[-len(classes) // _CHOOSES :]] = True
  train, dev = ((features[part], classes[part]) for part in (~chooses, chooses))
  return fit_best_linear(train, dev, num_classes)


@dataclasses.dataclass(frozen=True)
class Tfidf:
  """TF-IDF features of words, pairs of words, and pieces of 2 to 5 characters."""

  # Kind, of _KINDS -> its terms and their inverse document frequencies.
  terms: dict[str, tuple[list[str], np.ndarray]]

  def __call__(self, texts: Sequence[str]) -> Any:
    """The features of texts, sparse [N, F]; F is 1 without any term."""
    import scipy.sparse

    columns = [vectorizer.transform(texts) for vectorizer in self._vectorizers]

    return scipy.sparse.hstack(columns or [scipy.sparse.csr_matrix((len(texts), 1))]).tocsr()

  @functools.cached_property
  def _vectorizers(self) -> list[Any]:
    """One of each kind; a server asks for the features of one text at a time."""
    vectorizers = []
    for kind, (terms, weights) in self.terms.items():
      vectorizer = _vectorizer(kind, vocabulary=terms)
      # Set, not fitted: terms and weights are all that a vectorizer has learned.
      vectorizer.idf_ = weights
      vectorizers.append(vectorizer)
    return vectorizers


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
  text = require("sklearn.feature_extraction.text", *_SKLEARN)
  return text.TfidfVectorizer(
    analyzer=kind,
    ngram_range=_KINDS[kind],
    # The default pattern finds no word in a text of single characters.
    token_pattern=r"\w+" if kind == "word" else None,
    sublinear_tf=True,
    **settings,
  )


@dataclasses.dataclass(frozen=True)
class TfidfClassifier(AnyModel):
  """A linear map of TF-IDF features, read from a folder."""

  path: str
  folder: str
  meta: dict  # "task", as JSON
  params: dict[str, Any]  # "tfidf", a Tfidf, and "linear", a Linear

  step = 0
  exports = ("onnx",)

  @functools.cached_property
  def task(self) -> Any:
    return from_json(self.meta["task"]).build("")

  @functools.cached_property
  def identity(self) -> str:
    return f"checksum {zlib.crc32(self.params['linear'].kernel.tobytes()):08x}"

  @functools.cached_property
  def size(self) -> str:  # type: ignore[override]
    return f"{len(self.params['linear'].kernel):,} terms"

  def with_classes(self, order: np.ndarray) -> "TfidfClassifier":
    kernel, bias, penalty = self.params["linear"]
    linear = Linear(kernel[:, order], bias[order], penalty)
    return dataclasses.replace(self, params={**self.params, "linear": linear})

  def encode(self, task: Any, examples: Sequence[Any]) -> Encoded:
    """Encodes each example as one string with a single placeholder token."""
    count, unlabeled = len(examples), (0.0,) * len(task.labels)
    return Encoded(
      texts=[np.zeros(1, np.int32)] * count,
      fields=np.arange(count, dtype=np.int32).reshape(count, 1, 1),
      kept=np.ones((count, 1, 1), np.int32),
      labels=np.array([example.label or unlabeled for example in examples], np.float32),
      locations=[example.location for example in examples],
      context=0,
      special=SpecialTokens(0, ()),
      unknown_share=0.0,
      strings=tuple("\n".join(example.sequences[0]) for example in examples),
    )

  def predictor(self) -> Callable[..., np.ndarray]:
    return self._predict

  def _predict(
    self,
    encoded: Encoded,
    batch_size: int,
    done: Callable[[int], None] = lambda _: None,
    few_shapes: bool = False,
  ) -> np.ndarray:
    features = self.params["tfidf"]([encoded.strings[n] for n in encoded.fields.flat])
    probabilities = self.params["linear"](features)
    done(len(encoded))
    return probabilities


def load_any(path: str, check: Callable[[LoadedModel], object] = accept) -> AnyModel:
  """Loads a trained model of any kind: see load_model, or the folder of save_tfidf."""
  folder = tfidf_folder(path)
  return load_tfidf(folder) if folder else load_model(path, check=check)


def save_tfidf(
  folder: str, tfidf: Tfidf, linear: Linear, table: Any, dev: list[Example], data_dir: str
) -> None:
  """Writes the classifier of a TableTask, and what it predicts for the dev examples."""
  os.makedirs(folder, exist_ok=True)
  arrays: dict[str, Any] = {"task": _to_bytes(json.dumps(to_json(table)))}
  for name, (terms, weights) in tfidf.terms.items():
    # No term has a line break: n-grams stay within words and the spaces beside them.
    arrays |= {f"{name}/terms": _to_bytes("\n".join(terms)), f"{name}/idf": weights}
  arrays |= {"kernel": linear.kernel, "bias": linear.bias}  # [features, K] and [K]
  with atomic_file(os.path.join(folder, TFIDF_FILE), "wb") as file:
    np.savez(file, **arrays)
  # By what was written, so that the report is that of the file.
  classifier = load_tfidf(folder)
  encoded = classifier.encode(classifier.task, dev)
  probabilities = classifier.predictor()(encoded, len(dev))
  write_dev_report(folder, classifier.task, encoded, probabilities, classifier.step, data_dir)


def load_tfidf(folder: str) -> TfidfClassifier:
  """Reads the classifier that save_tfidf wrote into the folder."""
  path = os.path.join(folder, TFIDF_FILE)
  try:
    with local_copy(path) as copy:
      # Checks sizes before anything is read: compressed arrays could be of any size.
      npz.describe(copy)
      with np.load(copy, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    meta = {"task": parse_json(arrays["task"].tobytes())}
    task = from_json(meta["task"]).build("")
    terms = {}
    for name in sorted({name.partition("/")[0] for name in arrays if "/" in name}):
      words = arrays[f"{name}/terms"].tobytes().decode().split("\n")
      terms[name] = words, _finite(arrays[f"{name}/idf"], (len(words),))
    # Tfidf gives one empty column where there is no term.
    features = sum(len(words) for words, _ in terms.values()) or 1
    kernel = _finite(arrays["kernel"], (features, len(task.labels)))
    linear = Linear(kernel, _finite(arrays["bias"], (len(task.labels),)), 0.0)
    return TfidfClassifier(folder, folder, meta, {"tfidf": Tfidf(terms), "linear": linear})
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise InputError(
      f"{path}: damaged ({str(error)[:200]}); make it again with label.run"
    ) from error


def _finite(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
    raise ValueError(f"an array of shape {array.shape}, not finite numbers of shape {shape}")
  return array


def _to_bytes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode(), np.uint8)
