"""Near-duplicate documents by MinHash and locality-sensitive hashing.

GPT-3 (Brown et al. 2020, appendix A) removes fuzzy duplicates by Spark's MinHashLSH, as the authors
of WebText did. Here documents are sets of runs of 5 words, without case and punctuation; their
signatures are those of `datasketch`.

Of a document with 5 % of its words changed at random 0.95^5 = 77 % of the runs remain, so that the
Jaccard similarity is 0.77 / (2 - 0.77) = 0.63. The threshold is below that by three standard
deviations of the estimate from 128 permutations, 0.043. In 32 bands of 4 values such a pair meets
with probability 1 - (1 - 0.63^4)^32 = 99.6 %.
"""

import functools
import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt_jax.data.draws import hash64
from gpt_jax.errors import require

SHINGLE = 5  # words
PERMUTATIONS = 128
BANDS = 32
THRESHOLD = 0.5  # Jaccard similarity
# A document is compared with so many others of its bucket, the first ones, so that boilerplate that
# a million documents share costs no million of millions of comparisons.
FIRST = 16
_CHUNK = 4096  # shingles, and pairs
# A Chinese, Japanese or Korean character is a word, since no spaces separate them.
_CHARACTER = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_LETTERS = r"[^\W_\u3040-\u30ff\u3400-\u9fff]+"
_WORD = re.compile(f"{_CHARACTER}|{_LETTERS}")
_LONG = 64  # characters; text without spaces is one word, and is not kept with its hash
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bits are lost


def normalized_words(text: str) -> list[str]:
  """The words without case and punctuation: "It 's" and "it's" are both "it", "s"."""
  normalized = unicodedata.normalize("NFKC", text).casefold()
  has_marks = not _marks().isdisjoint(normalized)
  return (_marked_word() if has_marks else _WORD).findall(normalized)


@functools.cache
def _marks() -> frozenset[str]:
  """All combining characters, such as the vowels of Hindi and of Thai."""
  characters = map(chr, range(sys.maxunicode + 1))
  return frozenset(x for x in characters if unicodedata.category(x) in ("Mn", "Mc"))


@functools.cache
def _marked_word() -> re.Pattern[str]:
  """As _WORD, with combining characters inside words; it takes seven times as long."""
  marks = f"[{''.join(sorted(_marks()))}]+"
  return re.compile(f"{_CHARACTER}|{_LETTERS}(?:{marks}(?:{_LETTERS})?)*")


def word_hashes(words: Sequence[str]) -> np.ndarray:
  """uint64 [n], the same in every process."""
  hashes = (_kept_hash(word) if len(word) <= _LONG else _word_hash(word) for word in words)
  return np.fromiter(hashes, np.uint64, len(words))


def grams(hashes: np.ndarray, length: int) -> np.ndarray:
  """A hash of each run of `length` words, whose own are given: uint64 [max(0, n - length + 1)]."""
  count = max(0, len(hashes) - length + 1)
  total = np.zeros(count, np.uint64)
  for shift in range(length if count else 0):
    total = total * _BASE + hashes[shift : shift + count]
  return hash64(total, length)


def _word_hash(word: str) -> int:
  digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little")


_kept_hash = functools.lru_cache(maxsize=1 << 17)(_word_hash)


def signature(hashes: np.ndarray) -> np.ndarray:
  """The MinHash of a stretch of text: uint32 [PERMUTATIONS]. A text has its stretches' minimum.

  Of its words' hashes, uint64 [n], fewer than SHINGLE count as one shingle.
  """
  minhash = new_minhash()
  shingles = grams(hashes, min(SHINGLE, max(1, len(hashes))))
  values = (np.unique(shingles) >> np.uint64(32)).astype(np.uint32)
  for begin in range(0, len(values), _CHUNK):
    minhash.update_batch(values[begin : begin + _CHUNK].tolist())
  return np.asarray(minhash.hashvalues, np.uint32)


def near_pairs(signatures: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The near-duplicates among documents, int [D] ascending, and the estimates of their Jaccard
  similarity: int64 [P, 2] ascending, float [P]; by signatures of all, uint32 [N, PERMUTATIONS].
  Memory is 24 bytes per document, and 16 per pair that shares a band.
  """
  candidates = [np.empty((0, 2), np.int64)]
  rows = PERMUTATIONS // BANDS
  for band in range(BANDS):
    columns = signatures[:, band * rows : (band + 1) * rows]
    keys = np.zeros(len(documents), np.uint64)
    for column in range(rows):
      keys = hash64(keys ^ columns[documents, column].astype(np.uint64), band)
    candidates.extend(_bucket_pairs(keys, documents))
    candidates = [np.unique(np.concatenate(candidates), axis=0)]
  pairs = candidates[0]
  scores = np.empty(len(pairs))
  for begin in range(0, len(pairs), _CHUNK):
    left, right = pairs[begin : begin + _CHUNK].T
    scores[begin : begin + _CHUNK] = (signatures[left] == signatures[right]).mean(axis=-1)
  near = scores >= THRESHOLD
  return pairs[near], scores[near]


def _bucket_pairs(keys: np.ndarray, documents: np.ndarray) -> Iterator[np.ndarray]:
  """The pairs of documents of one key, int64 [P, 2]: each with the FIRST ones before it."""
  order = np.argsort(keys, kind="stable")
  is_first = np.append(True, keys[order][1:] != keys[order][:-1])
  first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
  position = np.arange(len(order)) - first  # in its bucket
  for earlier in range(FIRST):
    later = np.flatnonzero(position > earlier)
    if not len(later):
      return
    yield np.stack([documents[order[first[later] + earlier]], documents[order[later]]], axis=1)


def new_minhash() -> Any:
  """An empty MinHash; fails if datasketch is not installed."""
  datasketch = require("datasketch", "--deduplicate=near", "datasketch", "dedupe")
  return datasketch.MinHash(PERMUTATIONS, seed=1, scheme="affine32", hashfunc=int)
