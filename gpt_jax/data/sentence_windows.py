"""Rows made of whole sentences: pairs of texts (BERT, ALBERT), and sentences packed (RoBERTa).

The text needs sentence ends (prepare --sentences). Rows hold ids of text and negative marks; an
objective puts its special tokens in their place. As in Windows, a row is a pure function of
(seed, step, row): it begins at the sentence of a span of the epoch, whatever other rows hold. In
the authors' codes it begins where the row before it ended, so that no row can be made alone.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpt_jax.data.draws import Draw, hash64
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import PAD, Windows, WindowsConfig
from gpt_jax.errors import InputError

# In a row of a pair, between its two texts: how the second one was chosen.
IN_ORDER, NOT_IN_ORDER = -2, -3
SENTENCE_END = -2  # in a row of packed sentences, after each of them

SHORT_SHARE = 0.1  # of pairs are made shorter than a row, as in BERT's code


class SentenceWindows(Windows):
  """Base of PairWindows and PackedSentenceWindows: spans begin at a sentence."""

  def __init__(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0, copies: int = 0):
    if config.length < 3:
      raise InputError(f"data.length={config.length}: must be at least 3 for rows of sentences")
    super().__init__(tokens, config, seed, copies)
    self._sentences = tokens.sentences

  def _sentence_at(self, offset: int) -> int:
    """The number of the sentence that the token at an offset is in."""
    return int(np.searchsorted(self._sentences, offset, side="right")) - 1

  def _batches(
    self, all_rows: Iterable[np.ndarray], rows: slice | np.ndarray
  ) -> Iterator[np.ndarray]:
    """Rows [T + 1] in batches [B, T + 1], of which `rows` are kept; the last one is padded."""
    batch: list[np.ndarray] = []
    size = self.config.batch_size
    for row in all_rows:
      batch.append(row)
      if len(batch) == size:
        yield np.stack(batch)[rows]
        batch = []
    if batch:
      padding = [np.full_like(batch[0], PAD)] * (size - len(batch))
      yield np.stack(batch + padding)[rows]


class Pair(NamedTuple):
  """Two stretches of text, as offsets (begin, end)."""

  first: tuple[int, int]
  second: tuple[int, int]
  mark: int  # IN_ORDER or NOT_IN_ORDER
  rest: int  # the sentence at which the next pair begins when text is read in order


class PairWindows(SentenceWindows):
  """Pairs of texts: int32 [B, T + 1], "A mark B" and -1 after it, at most T - 2 long.

  A chunk of sentences of one document is cut at the end of a random one into A and B, by the rule
  of google-research/bert, create_pretraining_data.py. With `second` "random_document" B is in half
  of the pairs text of another document; with "swapped" A and B change places (google-research/
  albert). A chunk of one sentence is paired with another document in any case. Three positions of
  a row are left for [CLS] and [SEP].
  """

  def __init__(
    self,
    tokens: TokenFile,
    config: WindowsConfig,
    seed: int = 0,
    copies: int = 0,
    second: str = "random_document",
  ):
    if config.sampling != "within_documents":
      raise InputError(
        f"data.sampling={config.sampling}: a pair is cut from one document; use within_documents"
      )
    if config.length < 8:
      raise InputError(
        f"data.length={config.length}: must be at least 8 for rows of two texts and three special "
        "tokens"
      )
    super().__init__(tokens, config, seed, copies)
    self.second = second
    self._capacity = config.length - 3
    self._documents = np.searchsorted(self._sentences, tokens.offsets)  # their first sentences
    if tokens.n_documents == 1 and tokens.n_tokens < 4 * config.length:
      raise InputError(
        f"{tokens.path}.bin: one document of {tokens.n_tokens} tokens, so that there is no other "
        "text to pair; use more documents or, for held-out text, prepare it with a larger "
        "valid_share"
      )

  def __call__(self, step: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    noise = self.draw(step, np.arange(self.config.batch_size)[rows])("pair", (8,))
    pairs = []
    for begin, numbers in zip(self._spans(step, rows).begins.tolist(), noise.tolist(), strict=True):
      document = int(np.searchsorted(self.tokens.offsets, begin, side="right")) - 1
      pairs.append(self._pair(self._sentence_at(begin), document, numbers))
    self.tokens.fetch(part for pair in pairs for part in (pair.first, pair.second))
    made = [self._row(pair) for pair in pairs]
    return np.array(made, np.int32).reshape(-1, self.config.length + 1)

  def sequential(self, rows: slice | np.ndarray = slice(None)) -> Iterator[np.ndarray]:
    """The pairs of the text in order, for evaluation; the last batch is padded with rows of -1.

    As in BERT's code the text after A comes again if B is not that text.
    """
    size = self.config.batch_size
    chosen = np.zeros(size, bool)
    chosen[rows] = True
    # Every process finds all pairs, and reads its own.
    made = (
      self._row(pair) if chosen[number % size] else self._row(None)
      for number, pair in enumerate(self._in_order())
    )
    return self._batches(made, rows)

  def _in_order(self) -> Iterator[Pair]:
    number = 0
    for document in range(self.tokens.n_documents):
      sentence = int(self._documents[document])
      while sentence < self._documents[document + 1]:
        noise = Draw(self.seed, 0, np.array([number]))("pair", (8,))[0]
        pair = self._pair(sentence, document, noise.tolist())
        yield pair
        sentence, number = pair.rest, number + 1

  def _pair(self, first: int, document: int, noise: list[float]) -> Pair:
    """The pair of the chunk that begins with sentence `first`; noise: eight numbers in [0, 1)."""
    # A number for each decision, drawn whether or not it is used: no decision moves another's.
    is_short, shorter, cut, choice, other, start, *coins = noise
    sentences, target = self._sentences, self._capacity
    if is_short < SHORT_SHARE:
      # 2 to the capacity, uniformly, as BERT's random.randint(2, max_num_tokens).
      target = 2 + int(shorter * (self._capacity - 1))
    end = self._end(first, target, int(self._documents[document + 1]))
    # A has at least one sentence; B too, unless the chunk is a single one (middle = end).
    middle = first + 1 + int(cut * (end - first - 1))
    a = (int(sentences[first]), int(sentences[middle]))
    if end - first == 1 or (self.second == "random_document" and choice < 0.5):
      b = self._elsewhere(document, first, end, target - (a[1] - a[0]), other, start)
      # BERT's code puts the sentences after A back: in order, the next pair begins with them.
      mark, rest, follows = NOT_IN_ORDER, middle, (a[1], a[1] + b[1] - b[0])
    else:
      b, mark, rest = (int(sentences[middle]), int(sentences[end])), IN_ORDER, end
      if self.second == "swapped" and choice < 0.5:
        a, b, mark = b, a, NOT_IN_ORDER
        follows = a
    # Where texts repeat themselves, what was drawn may be what follows.
    limit = int(sentences[self._documents[document + 1]])
    if mark == NOT_IN_ORDER and follows[1] <= limit and self._are_equal(b, follows):
      mark = IN_ORDER
    return Pair(*_shortened(a, b, self._capacity, coins), mark, rest)

  def _are_equal(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two stretches of the text have the same tokens."""
    size = one[1] - one[0]
    if size != other[1] - other[0]:
      return False
    return np.array_equal(self.tokens.read(one[0], size), self.tokens.read(other[0], size))

  def _end(self, first: int, target: int, limit: int) -> int:
    """One past the last of the sentences that together have `target` tokens; at least one."""
    end = int(np.searchsorted(self._sentences, self._sentences[first] + max(1, target)))
    return min(end, limit)

  def _elsewhere(
    self, document: int, first: int, end: int, target: int, other: float, start: float
  ) -> tuple[int, int]:
    """Text of another document or, if there is none, of another place than the chunk's."""
    if self.tokens.n_documents > 1:
      chosen = int(other * (self.tokens.n_documents - 1))
      chosen += chosen >= document  # not the pair's own document
      begin, limit = self._documents[chosen : chosen + 2].tolist()
      sentence = begin + int(start * (limit - begin))
    else:
      limit = int(self._documents[-1])
      # Any sentence but the chunk's: those after it are counted on from its end.
      sentence = int(start * max(1, limit - (end - first)))
      if sentence >= first:
        sentence = min(sentence + end - first, limit - 1)
      else:
        limit = first
    last = self._end(sentence, target, limit)
    return int(self._sentences[sentence]), int(self._sentences[last])

  def _row(self, pair: Pair | None) -> np.ndarray:
    row = np.full(self.config.length + 1, PAD, np.int32)
    if pair is None:
      return row
    (a_begin, a_end), (b_begin, b_end) = pair.first, pair.second
    middle = a_end - a_begin
    row[:middle] = self.tokens.read(a_begin, middle)
    row[middle] = pair.mark
    row[middle + 1 : middle + 1 + b_end - b_begin] = self.tokens.read(b_begin, b_end - b_begin)
    return row


def _shortened(
  a: tuple[int, int], b: tuple[int, int], capacity: int, coins: list[float]
) -> tuple[tuple[int, int], tuple[int, int]]:
  """Two stretches without the tokens above a capacity.

  Tokens are taken from the longer one (b of equal ones), at either end by chance: `coins` seed it.
  """
  sizes = (a[1] - a[0], b[1] - b[0])
  excess = max(0, sum(sizes) - capacity)
  # First the longer text loses what it has more; then they take turns, b first.
  from_both = max(0, excess - abs(sizes[0] - sizes[1]))
  removed = [from_both // 2, from_both - from_both // 2]
  removed[0 if sizes[0] > sizes[1] else 1] += excess - from_both
  stretches = []
  for (begin, end), count, coin in zip((a, b), removed, coins, strict=True):
    # A coin per token: it is taken from the front, or from the end.
    faces = hash64(np.arange(count), int(coin * 2**53)) & np.uint64(1)
    front = int(faces.sum())
    stretches.append((begin + front, end - (count - front)))
  return stretches[0], stretches[1]


class PackedSentenceWindows(SentenceWindows):
  """Whole sentences, a mark after each: int32 [B, T + 1], at most T - 1 long, then -1.

  With sampling across_documents a row goes on in the next document, after one more mark: RoBERTa's
  FULL-SENTENCES; within_documents it ends there: DOC-SENTENCES (Liu et al. 2019, 4.2). A sentence
  that is longer than a row is cut. One position of a row is left for <s>.
  """

  def __call__(self, step: int, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    offsets = []  # where the text of each row begins
    for offset in self._spans(step, rows).begins.tolist():
      sentence = self._sentence_at(offset)
      begin, end = self._sentences[sentence : sentence + 2].tolist()
      # Only a sentence that no row can hold is begun in its midst.
      offsets.append(begin if end - begin < self.config.length - 1 else offset)
    # At most; a row ends with a sentence.
    self.tokens.fetch((offset, offset + self.config.length) for offset in offsets)
    packed = np.full((len(offsets), self.config.length + 1), PAD, np.int32)
    for row, offset in zip(packed, offsets, strict=True):
      # Where the document that the offset is in ends, or the text if rows cross documents.
      document = int(np.searchsorted(self._begin, offset, side="right")) - 1
      self._fill(row, offset, int(self._begin[document] + self._size[document]))
    return packed

  def sequential(self, rows: slice | np.ndarray = slice(None)) -> Iterator[np.ndarray]:
    """The text in order, for evaluation: every token is in one row. The last batch is padded."""
    return self._batches(self._in_order(), rows)

  def _in_order(self) -> Iterator[np.ndarray]:
    for begin, size in zip(self._begin.tolist(), self._size.tolist(), strict=True):
      offset, limit = begin, begin + size
      while offset < limit:
        row = np.full(self.config.length + 1, PAD, np.int32)
        offset = self._fill(row, offset, limit)
        yield row

  def _fill(self, row: np.ndarray, begin: int, limit: int) -> int:
    """Writes the sentences from an offset on into a row; returns the offset where they end."""
    capacity = self.config.length - 1
    sentence = self._sentence_at(begin)
    # No sentence is empty, so a row holds at most `capacity` of them.
    ends = self._sentences[sentence + 1 : sentence + 1 + capacity]
    ends = ends[ends <= limit]
    # Documents that end before each sentence, from the first of the row on.
    documents = np.searchsorted(self.tokens.offsets, np.concatenate([[begin], ends[:-1]]), "right")
    # Positions up to each end: tokens, a mark per sentence, and one per document that ended before.
    needed = ends - begin + 1 + np.arange(len(ends)) + documents - documents[0]
    count = int(np.searchsorted(needed, capacity, side="right"))
    if count:
      last = int(ends[count - 1])
      # A mark at each end, and where a document begins in between.
      offsets = self.tokens.offsets
      offsets = offsets[slice(*np.searchsorted(offsets, [begin, last], side="right"))]
      marks = np.sort(np.concatenate([ends[:count], offsets[offsets < last]]))
    else:
      # Not even the first sentence fits; one position is left for its mark.
      last = begin + capacity - 1
      marks = np.array([last])
    text = np.insert(self.tokens.read(begin, last - begin), marks - begin, SENTENCE_END)
    row[: len(text)] = text
    return last
