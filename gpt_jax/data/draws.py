"""Counter-based random draws: a hash of a key and an index, and a permutation in constant memory.

Nothing keeps a state: a key and an index give the same number, on any host and in any order.
"""

import zlib

import numpy as np

_ALL = (1 << 64) - 1


class Draw:
  """Uniform noise for rows of a batch, a pure function of (seed, step, global row, position)."""

  def __init__(self, seed: int, step: int, rows: np.ndarray):
    """`rows`: int [B], the numbers of these rows in the global batch."""
    self._key = (seed, step)  # hashed with the name of each use
    self._rows = np.asarray(rows, np.int64)

  def __call__(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float64 [B, *shape] in [0, 1); another name gives independent noise."""
    count = int(np.prod(shape, dtype=np.int64))
    # A number for each row and position, [B, count]; distinct up to 2^31 rows of 2^32 positions.
    index = (self._rows[:, None] << 32) + np.arange(count, dtype=np.int64)[None]
    bits = hash64(index, *self._key, zlib.crc32(name.encode()))
    # 53 bits, as many as a float64 holds exactly.
    return (bits >> np.uint64(11)).astype(np.float64).reshape(-1, *shape) * 2.0**-53


def permute(indices: np.ndarray, size: int, *key: int) -> np.ndarray:
  """A random permutation of range(size), applied to indices, in constant memory.

  A Feistel network permutes the next power of four; cycle walking brings indices back inside.
  """
  # Two halves of this many bits: 4^half is at least size and, above 4, less than 4 size.
  half = max(1, -(-(size - 1).bit_length() // 2))
  shift, mask = np.uint64(half), np.uint64((1 << half) - 1)

  def encrypt(values):
    left, right = values >> shift, values & mask
    for turn in range(6):
      left, right = right, left ^ (hash64(right, *key, turn) & mask)  # invertible whatever the hash
    return left << shift | right

  values = encrypt(indices.astype(np.uint64))
  while (outside := values >= size).any():
    values[outside] = encrypt(values[outside])
  return values.astype(np.int64)


def hash64(values: np.ndarray, *key: int) -> np.ndarray:
  """64 random-looking bits per value: splitmix64's finalizer over the value and the key's words."""
  state = 0  # the key alone: mixed once for all values
  for word in key:
    state = _mix((state + word * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _ALL, int)
  return _mix(
    values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state), np.uint64
  )


def _mix(bits, number):
  """The finalizer, on Python integers or uint64 arrays; `number` makes constants of that type."""
  # & _ALL because Python's integers, unlike uint64, do not wrap.
  bits = (bits ^ (bits >> number(30))) * number(0xBF58476D1CE4E5B9) & number(_ALL)
  bits = (bits ^ (bits >> number(27))) * number(0x94D049BB133111EB) & number(_ALL)
  return bits ^ (bits >> number(31))
