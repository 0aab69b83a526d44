"""Groups of texts that are the same or nearly so, and splits that never divide a group.

Two texts are near-duplicates if they are equal without case and spaces, or if the TF-IDF vectors of
their character n-grams have a cosine of at least 0.9. A group is a connected component.
"""

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt_jax.errors import InputError, counted, require
from gpt_jax.tasks.task import SPLITS

_PARTS = 7  # one is for dev, one for test


def split_by_group(
  classes: np.ndarray, groups: np.ndarray, seed: int, given: np.ndarray | None = None
) -> dict[str, np.ndarray]:
  """Row numbers, ascending, of "train" (five sevenths), "dev" and "test" (a seventh each).

  Rows of a group, int [N], stay together; see group_near_duplicates.

  given: int [N], the number in SPLITS of rows that are in a split already, and stay there; -1 for
    others, which follow the rows of their group, if it has several the last split; or are split,
    and train where they are too few.
  """
  split = np.full(len(classes), -1) if given is None else given
  of_group = np.full(groups.max() + 1, -1)
  np.maximum.at(of_group, groups, split)
  split = np.where(split < 0, of_group[groups], split)
  new = np.flatnonzero(split < 0)
  rows_of_a_label = np.bincount(classes[new]).max(initial=0)
  is_whole_table = len(new) == len(classes)
  if is_whole_table or rows_of_a_label >= _PARTS:
    try:
      # Fold 0 is for the test, fold 1 for dev.
      split[new] = 2 - np.minimum(group_folds(classes[new], groups[new], _PARTS, seed), 2)
    except InputError:  # too few for parts: they train
      if is_whole_table:
        raise
  split = np.maximum(split, 0)
  return {name: np.flatnonzero(split == number) for number, name in enumerate(SPLITS)}


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


_COSINE = 0.9
_NGRAM = 4
# The share of a vector's squared length that its common n-grams may have; see _pairs.
_COMMON = 0.4
_BLOCK = 1024  # rows
_PAIRS = 1 << 12  # multiplied at a time: of templated texts most pairs are candidates


def group_near_duplicates(texts: Sequence[str]) -> np.ndarray:
  """The number of each text's group, int [N], from 0 in the order of the groups' first texts."""
  folded = (unicodedata.normalize("NFKC", text).casefold() for text in texts)
  normalized = [" ".join(text.split()) for text in folded]
  index = {text: number for number, text in enumerate(dict.fromkeys(normalized))}
  vectors = _vectors(list(index))
  import scipy.sparse.csgraph  # comes with scikit-learn

  pairs = [np.empty((0, 2), np.int64), *_pairs(vectors)]
  left, right = np.concatenate(pairs).T
  edges = scipy.sparse.coo_array((np.ones(len(left), bool), (left, right)), (len(index),) * 2)
  _, component = scipy.sparse.csgraph.connected_components(edges, directed=False)
  return component[[index[text] for text in normalized]]


def _vectors(texts: list[str]) -> Any:
  """TF-IDF of character n-grams, of length 1, sparse [N, features]; common n-grams come last."""
  module = "sklearn.feature_extraction.text"
  sklearn = require(module, "finding duplicates", "scikit-learn", "metrics")
  # char_wb pads with spaces, so every text that is not blank has an n-gram.
  vectorizer = sklearn.TfidfVectorizer(
    analyzer="char_wb", ngram_range=(_NGRAM, _NGRAM), sublinear_tf=True, dtype=np.float32
  )
  vectors = vectorizer.fit_transform(texts).tocsr()
  texts_with = np.bincount(vectors.indices, minlength=vectors.shape[1])
  vectors = vectors[:, np.argsort(texts_with, kind="stable")]
  vectors.sort_indices()
  return vectors


def _pairs(vectors: Any) -> Iterator[np.ndarray]:
  """The pairs of rows whose cosine is high enough, int [P, 2], of at most _PAIRS candidates each.

  As in Bayardo et al. 2007, Scaling Up All Pairs Similarity Search: a row is multiplied without its
  commonest features first, which most rows have. What these could add to a product is at most their
  length, so pairs that stay below the cosine by more than that need not be looked at again.
  """
  rare, missing = _without_common(vectors)
  transposed = vectors.T.tocsr()
  for start in range(0, vectors.shape[0], _BLOCK):
    partial = (rare[start : start + _BLOCK] @ transposed).tocoo()
    left, right = partial.row + start, partial.col
    near = (left < right) & (partial.data >= _COSINE - missing[left] - 1e-4)
    candidates = np.stack([left[near], right[near]], axis=1)
    for at in range(0, len(candidates), _PAIRS):
      pairs = candidates[at : at + _PAIRS]
      products = vectors[pairs[:, 0]].multiply(vectors[pairs[:, 1]])
      yield pairs[np.asarray(products.sum(axis=1)).ravel() >= _COSINE]


def _without_common(vectors: Any) -> tuple[Any, np.ndarray]:
  """The vectors without their commonest features, and the length of what is left out, [N]."""
  rare = vectors.copy()
  missing = np.zeros(vectors.shape[0])
  for row in range(vectors.shape[0]):
    inside = slice(vectors.indptr[row], vectors.indptr[row + 1])
    # The common features come last: sums of squares from the end.
    tail = np.cumsum(vectors.data[inside][::-1].astype(np.float64) ** 2)
    common = int(np.searchsorted(tail, _COMMON, side="right"))
    missing[row] = np.sqrt(tail[common - 1]) if common else 0.0
    rare.data[inside.stop - common : inside.stop] = 0
  rare.eliminate_zeros()
  return rare, missing
