"""Where sentences end in cleaned text: by punctuation and by the letter that follows.

The rule is for languages that mark sentences as English does, and for Chinese and Japanese stops.
It is applied before a vocabulary folds case. Token files keep what it finds (TokenFile.sentences).
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer

# Words whose full stop ends no sentence, besides initials ("J. K. Jerome"); the second ones where a
# number follows.
TITLES = frozenset(
  "mr mrs ms messrs dr st mt prof rev gen col capt lieut lt sergt sgt maj gov sen rep hon pres "
  "supt vs viz cf i.e e.g".split()
)
BEFORE_NUMBERS = frozenset(
  "no nos vol fig ch chap sec art p pp jan feb mar apr jun jul aug sep sept oct nov dec".split()
)

# A stop with the quotes and brackets that close after it. The space belongs to what follows.
_STOPS = re.compile(r"""[.!?…؟।]["'”’»)\]*_]*(?=\s)|[。！？]["'”’」』）]*(?!$)""")
_LAST_WORD = re.compile(r"""[^\s"'“”‘’(\[—-]+$""")
_OPENING = re.compile(r"""[\s"'“‘«(\[*_-]*""")


def split_sentences(line: str, has_case: bool = True) -> list[str]:
  """The sentences of a paragraph. Joined, they are the paragraph: each begins with its space.

  A sentence ends after ".", "!", "?" or "…" with any closing quotes, where a space and no
  lower-case letter follow, and also after "。", "！" and "？". The full stop of an abbreviation or
  of an initial ends none.

  Args:
    line: a paragraph, without line breaks.
    has_case: whether the text uses capitals at all; if not, lower-case letters begin sentences.
  """
  ends = []
  for stop in _STOPS.finditer(line):
    begin, end = stop.span()
    opening = _OPENING.match(line, end)
    following = line[opening.end() if opening else end :][:1]
    if not following or (has_case and following.islower()):
      continue
    if line[begin] == "." and _is_abbreviation(line[max(0, begin - 20) : begin], following):
      continue
    ends.append(end)
  return [line[begin:end] for begin, end in itertools.pairwise([0, *ends, len(line)])]


def _is_abbreviation(before: str, following: str) -> bool:
  """Whether the full stop after a text is that of its last word."""
  match = _LAST_WORD.search(before)
  if not match:
    return False
  word = match[0]
  if len(word) == 1 and word.isupper() and word != "I":
    return True
  word = word.lower()
  return word in TITLES or (following.isdigit() and word in BEFORE_NUMBERS)


def encode_sentences(
  tokenizer: Tokenizer, texts: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
  """The ids of each text, int32 [n], and where its sentences end, int64 [k] in 1..n.

  Each sentence is encoded by itself, so that no token lies in two. A line break ends a sentence,
  and its own token, in vocabularies that have one, begins the next.
  """
  sentences: list[str] = []
  lengths: list[list[int]] = []  # sentences in each line of each text
  for text in texts:
    has_case = text != text.lower()
    lines = [split_sentences(line, has_case) for line in text.split("\n")]
    lengths.append(list(map(len, lines)))
    sentences.extend(itertools.chain.from_iterable(lines))
  encoded = iter(tokenizer.encode_many(sentences))
  results = []
  for counts in lengths:
    parts, breaks = [], []
    for number, count in enumerate(counts):
      for first in range(count):
        breaks.append(number > 0 and first == 0 and tokenizer.line_id is not None)
        parts.append(next(encoded))
    results.append(_joined(parts, breaks, tokenizer.line_id))
  return results


def _joined(
  parts: list[np.ndarray], breaks: list[bool], line_id: int | None
) -> tuple[np.ndarray, np.ndarray]:
  """The ids of sentences in a row; `breaks` says which begin with a line break."""
  line = np.array([line_id if line_id is not None else 0], np.int32)
  pieces = []
  for ids, after_break in zip(parts, breaks, strict=True):
    pieces.append(np.concatenate([line, ids]) if after_break else ids)
  lengths = np.array(list(map(len, pieces)), np.int64)
  # A sentence whose text the tokenizer drops ends nowhere.
  ends = np.cumsum(lengths)[lengths > 0]
  ids = np.concatenate(pieces) if pieces else np.zeros(0)
  return ids.astype(np.int32), ends
