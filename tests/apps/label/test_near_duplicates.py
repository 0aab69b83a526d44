"""Near-duplicates against a comparison of all pairs, and splits that keep them together."""

import random
import tracemalloc

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.feature_extraction.text import TfidfVectorizer

from gpt_jax.apps.label import splits
from gpt_jax.apps.label.splits import group_folds, group_near_duplicates, split_by_group
from gpt_jax.errors import InputError


@pytest.fixture(scope="module")
def texts():
  """300 texts, a third of them changed a little from an earlier one."""
  rng = random.Random(0)
  words = ["barn", "cat", "door", "house", "lamp", "mat", "old", "red", "sea", "tree", "window"]
  made = []
  for _ in range(300):
    if made and rng.random() < 1 / 3:
      parts = rng.choice(made).split()
      parts[rng.randrange(len(parts))] = rng.choice(words)
      made.append(" ".join(parts))
    else:
      made.append(" ".join(rng.choices(words, k=rng.randint(1, 14))))
  return made


def test_the_groups_are_those_of_all_pairs(texts, monkeypatch):
  monkeypatch.setattr(splits, "_BLOCK", 64)
  monkeypatch.setattr(splits, "_PAIRS", 3)
  distinct = list(dict.fromkeys(texts))
  vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(4, 4), sublinear_tf=True)
  x = vectors.fit_transform(distinct)
  count, component = connected_components((x @ x.T).toarray() >= 0.9)
  assert 10 < count < len(distinct) - 10
  groups = group_near_duplicates(distinct)
  same = component[:, None] == component
  np.testing.assert_array_equal(groups[:, None] == groups, same)
  # They are numbered as they come.
  groups = group_near_duplicates(["b c d", "a", "B  c\nd", "ｂ c d ", "e"])
  assert groups.tolist() == [0, 1, 0, 0, 2]


def test_the_memory_of_templated_texts_is_limited():
  text = "warning by the monitor: a disk has little space left, so that jobs which write reports "
  text += "may fail until somebody removes old backups, logs and caches; expand it if you cannot: "
  others = [f"{'qwzxkjvh'[n % 8] * 4}{n} {n * 7919}" for n in range(1600)]
  tracemalloc.start()
  groups = group_near_duplicates([f"{text}{n}" for n in range(300)] + others)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert not groups[:300].any()
  assert peak < 1 << 26  # of 44,850 pairs with 150 n-grams each


def test_a_split_keeps_groups_together_and_shares_of_labels():
  rng = np.random.default_rng(0)
  groups = rng.integers(400, size=1000)
  classes = rng.choice(3, size=1000, p=[0.6, 0.3, 0.1])
  splits = split_by_group(classes, groups, seed=1)
  assert sorted(np.concatenate(list(splits.values()))) == list(range(1000))
  members = [set(groups[rows]) for rows in splits.values()]
  assert not (members[0] & members[1] or members[0] & members[2] or members[1] & members[2])
  for rows in splits.values():
    shares = np.bincount(classes[rows], minlength=3) / len(rows)
    np.testing.assert_allclose(shares, [0.6, 0.3, 0.1], atol=0.04)


def test_too_few_texts_are_an_error():
  with pytest.raises(InputError, match="6 rows with 2 different texts: too few for 5 parts"):
    group_folds(np.zeros(6, int), np.array([0, 0, 0, 1, 1, 1]), 5, seed=0)
