"""Masking: the choice of the tokens to predict, and of their replacements in the input.

Four implementations differ in the rule: google-research/bert (create_pretraining_data.py), fairseq
(mask_tokens_dataset.py), google-research/albert, and the defaults here, which are BERT's with new
masks for each batch, no predicted special tokens and none among the random ones.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from gpt_jax.batch import Predictions
from gpt_jax.config import option
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.objectives.objective import Noise, Objective

MAX_NGRAM = 3
# P(n) of ALBERT, 1/n normalized: 6/11, 3/11, 2/11 (the paper, 3.1).
NGRAM_SHARES = np.array([1 / n for n in range(1, MAX_NGRAM + 1)])
NGRAM_SHARES /= NGRAM_SHARES.sum()


@dataclasses.dataclass(frozen=True)
class MaskedObjective(Objective):
  """Base of the masked objectives: their fields, and which of a row's tokens are masked how."""

  marks_sentences = False  # whether special tokens separate the sentences of a row

  share: float = option(0.15, "share of a row's tokens to predict", low=0.01, high=1.0)
  masked: float = option(0.8, "share of these that become <mask>", low=0.0, high=1.0)
  random: float = option(0.1, "share of these that become a random token", low=0.0, high=1.0)
  count: str = option(
    "rounded",
    "tokens to predict of n: rounded: share * n to the nearest integer, at least 1 (BERT); "
    "probabilistic: floor(share * n + u), u uniform in [0, 1) (fairseq)",
    choices=("rounded", "probabilistic"),
  )
  max_predictions: int = option(
    0, "most tokens to predict in a row; 0: the share decides", unit="tokens", low=0
  )
  unit: str = option(
    "token",
    "unit of masking: a token, a word of several (BERT), an n-gram of 1 to 3 words "
    "(ALBERT), or a sentence (full_sentences only)",
    choices=("token", "word", "ngram", "sentence"),
  )
  random_ids: str = option(
    "text",
    "ids of random tokens: text; text_and_mask: also <mask>, but not <unk> (fairseq); all: also "
    "every special token (BERT, ALBERT)",
    choices=("text", "text_and_mask", "all"),
  )
  special_too: bool = option(
    False, "special tokens of a row such as <s> may be predicted, too (fairseq)", needs="unit=token"
  )
  copies: int = option(
    0,
    "fixed versions of each text, masks included, that epochs go through in turn (BERT's "
    "dupe_factor, 10); 0: new masks each time",
    low=0,
    high=1000,
  )

  def __post_init__(self):
    super().__post_init__()
    if self.unit == "sentence" and not self.marks_sentences:
      raise InputError(
        "objective.unit=sentence: the rows of this objective do not tell where sentences end, as "
        "those of full_sentences do; use unit=token, word or ngram"
      )
    if self.masked + self.random > 1:
      raise InputError(
        f"objective.masked={self.masked} and objective.random={self.random}: shares of the same "
        "tokens, which must not exceed 1 together"
      )

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    return Windows(tokens, config, seed, self.copies)

  def bind_masks(
    self, tokenizer: Tokenizer, special: tuple[str, ...], length: int
  ) -> Callable[[np.ndarray, np.ndarray, np.ndarray, Noise], tuple[np.ndarray, Predictions]]:
    """The function (tokens, valid, is_text, draw) -> (inputs, predictions).

    tokens: int32 [B, T] token ids; valid: bool [B, T], not padding; is_text: bool [B, T], no
    padding and no special token. special: names of the special tokens that rows are made of.
    """
    size = self.share * length
    most = math.ceil(size) if self.count == "probabilistic" else max(1, round(size))
    most = min(most, self.max_predictions or most)  # M, the predictions of a full row
    mask_id = tokenizer.special["mask"]  # inside the vocabulary, as BERT has it, or above it
    random_ids = self._random_ids(tokenizer, special)
    if self.unit in ("word", "ngram"):
      tokenizer.word_starts(np.zeros(1, int))  # raises now if it cannot tell

    def mask(tokens: np.ndarray, valid: np.ndarray, is_text: np.ndarray, draw: Noise):
      candidates = valid if self.special_too else is_text
      counts = np.minimum(self._counts(valid, most, draw), candidates.sum(axis=1))
      noise = draw("masked positions", (length,))
      if self.unit == "token":
        # Noise is below 1, so 2 comes after all candidates.
        rank = np.where(candidates, noise, 2.0)
      else:
        is_sentence = self.unit == "sentence"
        words = _sentences(is_text) if is_sentence else _words(tokenizer, tokens, is_text)
        sizes = np.ones(noise.shape, int)
        if self.unit == "ngram":
          ends = np.cumsum(NGRAM_SHARES)[:-1]
          sizes += np.searchsorted(ends, draw("n-gram", (length,)), side="right")
        chosen = np.stack([*map(choose_words, words, noise, sizes, counts.astype(int))])
        counts = chosen.sum(axis=1)
        rank = np.where(chosen, noise, 2.0)
      at, weights = _first_positions(rank, counts, most)  # [B, M]; weight 0 fills up short rows
      # [B, T] -> [B, M]: heads compute logits at these positions only.
      targets = np.take_along_axis(tokens, at, axis=1)
      replaced = self._replace(targets, random_ids, mask_id, draw)
      inputs = tokens.copy()  # the targets are read from the tokens
      np.put_along_axis(inputs, at, np.where(weights > 0, replaced, targets), axis=1)
      return inputs, Predictions(targets, weights, at)

    return mask

  def _counts(self, valid: np.ndarray, most: int, draw: Noise) -> np.ndarray:
    """How many tokens of each row to predict, [B]."""
    sizes = valid.sum(axis=1) * self.share
    if self.count == "probabilistic":
      # Rounded up as often as the fraction says: the mean share is exact.
      counts = np.floor(sizes + draw("count", (1,))[:, 0])
    else:
      # At least one in a row with text; rows of padding have none. Special tokens count, as in
      # BERT's.
      counts = np.maximum(np.rint(sizes), valid.any(axis=1))
    return np.minimum(counts, most)

  def _random_ids(self, tokenizer: Tokenizer, special: tuple[str, ...]) -> np.ndarray:
    """The ids that a random replacement is drawn from, ascending."""
    named = {i for _, i in tokenizer.special.items()}  # also those inside the vocabulary
    ids = set(range(tokenizer.vocab_size)) - named
    if self.random_ids == "text_and_mask":
      # fairseq leaves out the first four ids of its dictionary, of which <unk> is one
      # (mask_tokens_dataset.py).
      ids.discard(tokenizer.unknown_id)
      ids.add(tokenizer.special["mask"])
    elif self.random_ids == "all":
      inside = {i for i in named if i < tokenizer.vocab_size}
      ids |= inside | {tokenizer.special[name] for name in special}
    return np.array(sorted(ids), np.int32)

  def _replace(
    self, targets: np.ndarray, random_ids: np.ndarray, mask_id: int, draw: Noise
  ) -> np.ndarray:
    """The input id for each target: <mask>, a random token, or the target itself."""
    # One uniform draw decides: BERT's 80 % <mask>, 10 % a random token, 10 % kept (section 3.1).
    action = draw("replacement", targets.shape[1:])
    drawn = random_ids[(draw("random token", targets.shape[1:]) * len(random_ids)).astype(np.int32)]
    replaced = np.where(action < self.masked + self.random, drawn, targets)
    return np.where(action < self.masked, np.int32(mask_id), replaced)


def _words(tokenizer: Tokenizer, tokens: np.ndarray, is_text: np.ndarray) -> np.ndarray:
  """The number of each position's word in its row, ascending, int [B, T]; -1 where no text is."""
  starts = tokenizer.word_starts(np.where(is_text, tokens, 0))
  starts[:, 1:] |= ~is_text[:, :-1]  # after a special token
  return np.where(is_text, np.cumsum(starts & is_text, axis=1) - 1, -1)


def _sentences(is_text: np.ndarray) -> np.ndarray:
  """The number of each position's sentence in its row, int [B, T]; -1 where no text is."""
  starts = is_text.copy()
  # A sentence starts at the first text after a special token.
  starts[:, 1:] &= ~is_text[:, :-1]
  return np.where(is_text, np.cumsum(starts, axis=1) - 1, -1)


def choose_words(words: np.ndarray, noise: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
  """Whole words, n-grams of them, or sentences to mask, bool [T], at most `count` tokens in all.

  In random order, from each word on: its n-gram, or the longest shorter one that does not exceed
  the count; none if that overlaps an earlier one (google-research/albert,
  create_pretraining_data.py; with n-grams of one word it is BERT's rule).

  Args:
    words: int [T], the number of each position's word, -1 for none.
    noise, sizes: float and int [T]; at a word's first position they decide on its turn, and n.
  """
  chosen = np.zeros(len(words), bool)
  first = np.flatnonzero((words >= 0) & (words != np.concatenate([[-1], words[:-1]])))
  lengths = np.bincount(words[words >= 0], minlength=len(first)).tolist()
  positions = first.tolist()
  is_taken = [False] * len(first)
  left = count
  for word in np.argsort(noise[first]).tolist():
    if left <= 0:
      break
    # An n-gram ends with its row, and is cut to what is left of the count.
    n = min(int(sizes[positions[word]]), len(first) - word)
    while n and sum(lengths[word : word + n]) > left:
      n -= 1
    if not n or any(is_taken[word : word + n]):
      continue
    for i in range(word, word + n):
      is_taken[i] = True
      chosen[positions[i] : positions[i] + lengths[i]] = True
      left -= lengths[i]
  return chosen


def _first_positions(
  rank: np.ndarray, counts: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
  """The positions of lowest rank [B, T], int32 [B, M] in ascending order, and their loss weights
  [B, M]; counts: how many positions of each row to predict, [B].
  """
  length = rank.shape[1]
  # The k smallest of uniform draws are a choice of k positions without replacement.
  order = rank.argsort(axis=1)
  chosen = np.arange(most) < counts[:, None]
  # Unused predictions go to the end, at positions that differ from the chosen ones.
  at = order[:, :most]
  by_position = np.where(chosen, at, length + at).argsort(axis=1)
  at = np.take_along_axis(at, by_position, axis=1).astype(np.int32)
  return at, chosen.astype(np.float32)
