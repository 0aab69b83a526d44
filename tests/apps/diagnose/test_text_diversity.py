"""Distinct and repeated n-grams, by hand and against a slow definition."""

import random

import pytest

from gpt_jax.apps.diagnose.sampling import diversity, longest_repeat, words


def test_words_are_folded_and_marks_are_words():
  assert words("The cat’s mat. It's") == ["the", "cat’s", "mat", ".", "it's"]


def test_distinct_ngrams_are_of_all_texts_and_repetitions_of_each():
  measures = diversity(["a b a b a b", "a b c"])
  assert measures["distinct_1"] == pytest.approx(3 / 9)
  assert measures["distinct_2"] == pytest.approx(3 / 7)  # ab, ba, bc of 5 + 2
  assert measures["distinct_3"] == pytest.approx(3 / 5)  # aba, bab, abc of 4 + 1
  assert measures["repeated_4"] == pytest.approx(1 / 3)  # abab, baba, abab
  assert measures["longest_repeat"] == pytest.approx((4 + 0) / 2)


def test_nothing_gives_zeros():
  assert set(diversity([]).values()) == set(diversity(["", " "]).values()) == {0}


def test_the_longest_repeat_equals_a_search():
  rng = random.Random(0)
  for _ in range(50):
    items = rng.choices("abc", k=rng.randrange(12))
    stretches = {(i, n): items[i : i + n] for n in range(1, 12) for i in range(len(items) - n + 1)}
    twice = [
      n for (i, n), x in stretches.items() for (j, m), y in stretches.items() if i < j and x == y
    ]
    assert longest_repeat(items) == max(twice, default=0)
