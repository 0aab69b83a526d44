"""A mixture of texts: the rows of several token files, each with its share of every batch."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from gpt_jax.data.draws import Draw
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError, counted

_BITS = 24  # of a share as an integer, so that runs may have 2^39 rows


def mixture_shares(files: Sequence[TokenFile], config: WindowsConfig) -> tuple[float, ...]:
  """The share of rows from each file, together 1: weights, or else numbers of tokens, to the power
  of 1/temperature, as for multilingual BERT and T5 (Raffel et al. 2020, section 3.5.2): above 1
  small texts get more than their part.
  """
  given = f"data.weights={','.join(f'{weight:g}' for weight in config.weights)}"
  if config.weights and len(config.weights) != len(files):
    raise InputError(f"{given}: {counted(len(config.weights), 'weight')} for {len(files)} texts")
  if min(config.weights, default=1.0) <= 0:
    raise InputError(f"{given}: each must be above 0; leave out a text that should have no rows")
  # Divided by the largest, so that no power overflows or vanishes for all of them.
  shares = np.array(config.weights or [file.n_tokens for file in files], np.float64)
  shares = (shares / shares.max()) ** (1 / config.temperature)
  return tuple((shares / shares.sum()).tolist())


def interleave(numbers: np.ndarray, shares: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  """The source of each row of a run, and how many rows of that source came before it.

  Sources come in a fixed alternation: of any number of rows in a row the first source has its share
  to within one, the second its share of the others, and so on. Random draws would make the batches
  less alike, and counting those of a source before a row would mean to make all of them.
  `numbers`: int64 [N], of the rows in the run.
  """
  source = np.full(len(numbers), len(shares) - 1)
  index = numbers.copy()  # among the rows that the sources so far have left
  for number in range(len(shares) - 1):
    # An integer, since n x share in floating point would be inexact far into a run.
    share = round(shares[number] / sum(shares[number:]) * 2**_BITS)
    # Half a row ahead: a count is its share rounded to the nearest.
    before, after = (((index + i) * share + 2 ** (_BITS - 1)) >> _BITS for i in (0, 1))
    is_open = source == len(shares) - 1
    taken = is_open & (after > before)
    source[taken] = number
    index = np.where(taken, before, np.where(is_open, index - before, index))
  return source, index


class MixedText(TokenFile):
  """Several token files of one vocabulary; only their sizes and contents as a whole, no ids."""

  def __init__(self, files: Sequence[TokenFile], shares: Sequence[float]):
    """`shares`: of rows from each file."""
    # Not super().__init__, which opens one file.
    self.files, self.shares = tuple(files), tuple(shares)
    self.path = ",".join(file.path for file in files)
    self.tokenizer_hash = files[0].tokenizer_hash
    self.n_tokens = sum(file.n_tokens for file in files)
    entropies = [file.unigram_entropy for file in files]
    # The loss of a model that knows the source of a row and its word frequencies.
    self.unigram_entropy = float(np.dot(entropies, shares))

  @property
  def digest(self) -> str:
    """Identifies the files and their order: 16 hexadecimal digits."""
    digests = ",".join(file.digest for file in self.files)
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


class MixedWindows(Windows):
  """The rows of several sources by (seed, step); those of each are in the order they have alone."""

  def __init__(self, sources: Sequence[Windows], shares: Sequence[float]):
    """`sources`: with seeds of their own and equal batch sizes; `shares`: of rows from each."""
    self._sources, self._shares = sources, shares
    self.config = sources[0].config
    # An epoch has as many rows as those of all sources, wherever they are from.
    self.spans_per_epoch = sum(windows.spans_per_epoch for windows in sources)

  def __call__(self, step: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    # Every row is of one part, so all of it is overwritten.
    batch = np.empty((len(self._numbers(step, rows)), self.config.length + 1), np.int32)
    for places, windows, its_step, its_rows in self._parts_of(step, rows):
      batch[places] = windows(its_step, its_rows)
    return batch

  def draw(self, step: int, rows: np.ndarray) -> Draw:
    """The noise of these rows: that of the same rows of each source alone."""
    draws = []
    for places, windows, its_step, its_rows in self._parts_of(step, rows):
      draws.append((places, windows.draw(its_step, its_rows)))
    return _MixedDraw(draws, len(rows))

  def _numbers(self, step: int, rows: slice | np.ndarray) -> np.ndarray:
    first, size = step * self.config.batch_size, self.config.batch_size
    return np.arange(first, first + size, dtype=np.int64)[rows]

  def _parts_of(
    self, step: int, rows: slice | np.ndarray
  ) -> Iterator[tuple[np.ndarray, Windows, int, np.ndarray]]:
    """Where rows of a batch are that are rows of one step of one source; and that step's rows."""
    source, index = interleave(self._numbers(step, rows), self._shares)
    steps, source_rows = np.divmod(index, self.config.batch_size)
    for number, windows in enumerate(self._sources):
      # One step of the source, or two where its batches meet.
      for source_step in np.unique(steps[source == number]).tolist():
        places = np.flatnonzero((source == number) & (steps == source_step))
        yield places, windows, source_step, source_rows[places]


class _MixedDraw(Draw):
  """The draws of the parts of a batch of `count` rows, each at its places."""

  def __init__(self, draws: Sequence[tuple[np.ndarray, Draw]], count: int):
    self._draws, self._count = draws, count

  def __call__(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.empty((self._count, *shape))
    for places, draw in self._draws:
      noise[places] = draw(name, shape)
    return noise
