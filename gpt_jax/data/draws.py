"""Counter-based random draws: a hash of a key and an index, and a permutation in constant memory."""

import numpy as np

_ALL = (1 << 64) - 1


def permute(places: np.ndarray, size: int, *key: int) -> np.ndarray:
  """A random permutation of range(size), applied to places, in constant memory.

  A Feistel network permutes the next power of four; what falls outside walks on along its cycle
  until it is inside.
  """
  half = max(1, -(-(size - 1).bit_length() // 2))
  shift, mask = np.uint64(half), np.uint64((1 << half) - 1)

  def encrypt(values):
    left, right = values >> shift, values & mask
    for turn in range(6):
      left, right = right, left ^ (_hash(right, *key, turn) & mask)
    return left << shift | right

  values = encrypt(places.astype(np.uint64))
  while (outside := values >= size).any():
    values[outside] = encrypt(values[outside])
  return values.astype(np.int64)


def _hash(values: np.ndarray, *key: int) -> np.ndarray:
  """64 random-looking bits per value: splitmix64's finalizer over the value and, word by word,
  the key.
  """
  state = 0
  for word in key:
    state = _mix((state + word * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _ALL, int)
  return _mix(
    values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state), np.uint64
  )


def _mix(bits, number):
  """The finalizer, on Python integers or uint64 arrays; `number` makes constants of the same
  kind.
  """
  bits = (bits ^ (bits >> number(30))) * number(0xBF58476D1CE4E5B9) & number(_ALL)
  bits = (bits ^ (bits >> number(27))) * number(0x94D049BB133111EB) & number(_ALL)
  return bits ^ (bits >> number(31))
