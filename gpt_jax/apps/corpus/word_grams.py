"""Words as duplicates and contamination are compared by, and hashes of runs of them."""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from gpt_jax.data.draws import hash64

# A Chinese, Japanese or Korean character is a word, since no spaces separate them.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")
_LONG = 64  # characters; text without spaces is one word, and is not kept with its hash
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bits are lost


def normalized_words(text: str) -> list[str]:
  """The words without case and punctuation: "It 's" and "it's" are both "it", "s"."""
  return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def word_hashes(words: Sequence[str]) -> np.ndarray:
  """uint64 [n], the same in every process."""
  hashes = (_kept_hash(word) if len(word) <= _LONG else _word_hash(word) for word in words)
  return np.fromiter(hashes, np.uint64, len(words))


def grams(hashes: np.ndarray, length: int) -> np.ndarray:
  """A hash of each run of `length` words: uint64 [max(0, n - length + 1)].

  Args:
    hashes: uint64 [n], of words.
  """
  count = max(0, len(hashes) - length + 1)
  total = np.zeros(count, np.uint64)
  for shift in range(length if count else 0):
    total = total * _BASE + hashes[shift : shift + count]
  return hash64(total, length)


def _word_hash(word: str) -> int:
  digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little")


_kept_hash = functools.lru_cache(maxsize=1 << 17)(_word_hash)
