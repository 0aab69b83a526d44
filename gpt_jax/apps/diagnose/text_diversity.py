"""How varied texts are and how much they repeat: distinct n-grams (Li et al. 2016), and n-grams
that occurred before (Welleck et al. 2020).
"""

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_REPEATED = 4  # words of an n-gram that counts as a repetition


def words(text: str) -> list[str]:
  """Words and punctuation marks, case-folded, so that vocabularies can be compared."""
  return _WORD.findall(text.casefold())


def diversity(texts: Sequence[str]) -> dict[str, float]:
  """Measures of some texts. They depend on number and length: compare like with like.

  Returns:
    distinct_1, distinct_2, distinct_3: different n-grams of words in all texts together, as a share
      of all n-grams.
    repeated_4: share of 4-grams that occurred before in their text.
    longest_repeat: words in the longest stretch that occurred before in its text; the mean over
      texts.
  """
  split = list(map(words, texts))
  measures = {f"distinct_{n}": _distinct(split, n) for n in (1, 2, 3)}
  grams = [_ngrams(text, _REPEATED) for text in split]
  repeated, total = sum(len(x) - len(set(x)) for x in grams), sum(map(len, grams))
  measures["repeated_4"] = repeated / total if total else 0.0
  measures["longest_repeat"] = sum(map(longest_repeat, split)) / max(1, len(split))
  return measures


def longest_repeat(items: Sequence[str]) -> int:
  """Items in the longest stretch that occurs twice; the two may overlap."""
  best, before = 0, [0] * len(items)
  for i, item in enumerate(items):
    # Of the longest common stretch that ends at items j < i and i.
    lengths = [0] * len(items)
    for j in range(i):
      if items[j] == item:
        lengths[j] = (before[j - 1] if j else 0) + 1
    best, before = max(best, *lengths), lengths
  return best


def _distinct(texts: Sequence[Sequence[str]], n: int) -> float:
  grams = []
  for text in texts:
    grams += _ngrams(text, n)
  return len(set(grams)) / len(grams) if grams else 0.0


def _ngrams(items: Sequence[str], n: int) -> list[tuple[str, ...]]:
  return [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
