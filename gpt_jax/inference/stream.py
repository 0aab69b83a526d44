"""Generation: texts that a model continues together, a few tokens at a time.

Texts come and go, and have settings of their own. decoding.py has the compiled functions, and says
what a cache is. Letters: B rows of the cache.
"""

import dataclasses
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.inference import decoding
from gpt_jax.inference.decoding import MAX_STEPS, copy_rows, read_prompts
from gpt_jax.inference.sampling import Settings
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.decoding_weights import variables
from gpt_jax.models.model import Model

_SIZES = (1, 4, 16)  # rows of the cache, so that few shapes need compiling
# Slots of the cache: at most a third is not needed, or a few sizes for all texts.
_MANY_SLOTS = tuple(sorted(size for n in range(4, 28) for size in (2**n, 3 * 2**n)))
_FEW_SLOTS = (256, 2**30)
_EMPTY = "the prompt is empty: the model needs a token to begin with; give a word"


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a text is continued."""

  max_tokens: int = 100  # tokens to add
  temperature: float = 1.0  # 1 samples from the model, lower ones favor likely tokens, 0 is greedy
  top_k: int = 0  # sample among the k most likely tokens; 0: among all
  top_p: float = 1.0  # sample among the fewest tokens whose probabilities add up to this
  seed: int = 0  # decides the draws of this text, whatever the other texts are
  ignore_eos: bool = False  # go on behind the token that ends a text, as if it were like others

  def __post_init__(self) -> None:
    for name, allowed, wanted in (
      ("max_tokens", self.max_tokens >= 1, "at least 1"),
      ("temperature", 0 <= self.temperature <= 1e6, "at least 0, at most 1,000,000"),
      ("top_k", 0 <= self.top_k < 2**31, "at least 0, below 2^31"),
      ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
    ):
      if not allowed:
        raise InputError(f"{name}={getattr(self, name)}: must be {wanted}")


class Token(NamedTuple):
  """A token that was added."""

  id: int
  log_prob: float  # in nats, before temperature, top_k and top_p; 0: the text did not ask
  best: list[tuple[int, float]]  # id and log_prob of the most likely; empty: it did not ask


class Text:
  """A text that is continued. `added` grows with each `advance`, up to sampling.max_tokens."""

  def __init__(
    self,
    prompt: Sequence[int],
    sampling: Sampling,
    log_probs: bool = False,
    best: bool = False,
    source: Sequence[int] = (),
    ends: Collection[int] = (),
  ):
    """log_probs: whether to report those of the tokens; best: also the most likely tokens.

    source: token ids that an encoder reads; ends: tokens after any of which the text is done.
    """
    self.prompt, self.sampling, self.best = list(map(int, prompt)), sampling, best
    self.log_probs = log_probs or best
    self.source, self.ends = list(map(int, source)), ends
    self.added: list[Token] = []
    self.stopped = False  # set by the reader of a text that needs no more of it
    self._begin = 0  # of the tokens that the model attends to

  @property
  def ids(self) -> list[int]:
    """The prompt and what was added."""
    return [*self.prompt, *self.added_ids]

  @property
  def added_ids(self) -> list[int]:
    return [token.id for token in self.added]

  @property
  def missing(self) -> int:
    """Tokens to add."""
    return self.sampling.max_tokens - len(self.added)

  @property
  def done(self) -> bool:
    ended = bool(self.added and self.added[-1].id in self.ends)
    return self.stopped or ended or self.missing <= 0

  @property
  def last(self) -> int:
    return self.added[-1].id if self.added else self.prompt[-1]

  @property
  def length(self) -> int:
    """Tokens that the model attends to, with the newest."""
    return len(self.prompt) + len(self.added) - self._begin

  def slide(self, context: int) -> bool:
    """Keeps the second half of a full context; whether it was full."""
    if self.length < context:
      return False
    # The rest is read again at positions 0, 1, …: there is no row for later ones.
    self._begin += self.length - context // 2
    return True

  def to_read(self, count: int) -> list[int]:
    """The first `count` tokens that the model attends to."""
    return self.ids[self._begin :][:count]


_SETTINGS = operator.attrgetter("temperature", "top_k", "top_p", "seed")
_NO_TEXT = Text([0], Sampling(temperature=0.0))


class Stream:
  """Texts that a model continues together.

  When the context is full, its second half is read again from position 0; so is a prompt that is
  too long. A text does not depend on the others.
  """

  capacity = _SIZES[-1]

  def __init__(self, model: Model, params: Any, few_shapes: bool = False):
    """model: from LoadedModel.generator; params: on the device, those of keep_weights, too.

    few_shapes: run few programs, which `warm_up` compiles, instead of one of a fitting size.
    """
    self._model, self._variables = model, variables(params)
    self._context: int = model.config.trunk.context
    self._few_shapes = few_shapes
    self._rows: list[Text | None] = []
    self._slots = self._source_slots = 0
    self._state: Any = None

  @property
  def texts(self) -> list[Text]:
    return [text for text in self._rows if text is not None]

  def add(self, *texts: Text) -> None:
    """Reads the prompts in one pass, up to where `read_before` says."""
    if len(self.texts) + len(texts) > self.capacity:
      raise ValueError(f"more than {self.capacity} texts at a time")
    for text in texts:
      if not text.prompt:
        raise InputError(_EMPTY)
    if not texts:
      return
    for text in texts:
      text.slide(self._context)
    self._resize([*self.texts, *texts])
    # Rows that no text has had, or that a removed one has left.
    rows = [row for row, text in enumerate(self._rows) if text is None][: len(texts)]
    for row, text in zip(rows, texts, strict=True):
      self._rows[row] = text
    self._read(rows)

  def warm_up(self) -> None:
    """Compiles all that a text needs; made for few shapes."""
    length = 16
    while True:
      # length + 1 tokens or, where all of a prompt is read at once, length.
      prompt = 2 * length - read_before(self._model, length)  # of which `length` are read at once
      self.add(Text([0] * min(prompt, self._context - 1), Sampling(max_tokens=1)))
      self.remove(self.texts[0])
      if length >= self._context:
        break
      length *= 2
    for slots in _FEW_SLOTS:
      for size in _SIZES:
        texts = [Text([0], Sampling(min(slots, self._context) - 1)) for _ in range(size)]
        for text in texts:
          self.add(text)
        self.advance()
        for text in texts[1:]:
          self.remove(text)
        self.advance()  # the first moves to a cache of one row
        self.remove(texts[0])

  def remove(self, text: Text) -> None:
    """Forgets a text, done or not."""
    self._rows = [None if other is text else other for other in self._rows]
    # The cache's memory is free again, and the next text may need a smaller one.
    if not self.texts:
      self._rows, self._slots, self._source_slots, self._state = [], 0, 0, None

  def advance(self, steps: int = 4) -> list[Text]:
    """Adds tokens to each text, as many to all that do not end: `steps`, at most 32, or fewer where
    one of them has all its tokens or its context is full before. Texts that are done leave.
    """
    texts = self.texts
    if not texts:
      return []
    if self._few_shapes and _fit(len(texts), _SIZES) < len(self._rows):
      self._resize(texts)
    full = [row for row, text in enumerate(self._rows) if text and text.slide(self._context)]
    if full:
      self._read(full)
    count = min(steps, MAX_STEPS)
    for text in texts:
      # All rows add as many tokens, so none can pass its end or the context in between.
      count = min(count, text.missing, self._context - text.length)
    # Rows without a text are computed too, at position 0, and discarded.
    rows = [text or _NO_TEXT for text in self._rows]
    counts = [(text.last, text.length, len(text.added)) for text in rows]
    settings = [_SETTINGS(text.sampling) for text in rows]
    temperature, top_k, top_p, seed = zip(*settings, strict=True)
    self._state, chosen = decoding.extend(
      self._model,
      self._variables,
      self._state,
      *np.array(counts, np.int32).T,
      np.array([text is not None for text in self._rows]),
      Settings(
        np.array(temperature, np.float32),
        np.array(top_k, np.int32),
        np.array(top_p, np.float32),
        np.array(seed, np.uint32),
      ),
      any(text.log_probs for text in texts),
      any(text.best for text in texts),
      np.int32(count),
    )
    chosen = jax.tree.map(np.asarray, chosen)
    for row, continued in enumerate(self._rows):
      if continued is not None:
        _append(continued, chosen, row, count)
        if continued.done:
          self.remove(continued)
    return texts

  def _read(self, rows: Sequence[int]) -> None:
    """Reads what the model attends to of the texts in these rows."""
    size = len(self._rows)
    for group in [[row] for row in rows] if self._few_shapes else [rows]:
      texts = [text for row in group if (text := self._rows[row])]
      read = read_prompts(
        self._model,
        self._variables,
        [text.to_read(read_before(self._model, text.length)) for text in texts],
        [text.source for text in texts],
        rows=_fit(len(texts), _SIZES),
        # Of one size for all caches where few programs should do.
        slots=self._context if self._few_shapes else self._slots,
        source_slots=self._source_slots,
      )
      numbers = np.full(_fit(len(texts), _SIZES), size, np.int32)
      numbers[: len(group)] = group
      self._state = copy_rows(self._state, read, numbers, rows=size)

  def _resize(self, texts: Sequence[Text]) -> None:
    """Moves the texts that are being continued to a cache with room for these texts.

    With few shapes it may also become smaller; otherwise that would compile more programs.
    """
    before = len(self._rows), self._slots, self._source_slots
    # Prompts are padded to a bucket, all of which is written into the cache.
    longest = max(text.length for text in texts)
    read = bucket(read_before(self._model, longest), self._context)
    needed = max(read, *(text.length + text.missing for text in texts))
    slots = min(self._context, _fit(needed, _FEW_SLOTS if self._few_shapes else _MANY_SLOTS))
    longest_source = max(len(text.source) for text in texts)
    sizes = _fit(len(texts), _SIZES), slots, source_slots_for(longest_source)
    if not self._few_shapes:
      sizes = max(sizes[0], before[0]), max(sizes[1], before[1]), max(sizes[2], before[2])
    if sizes == before:
      return
    size, self._slots, self._source_slots = sizes
    state = decoding.start(self._model, self._variables, *sizes)
    in_use = [row for row, text in enumerate(self._rows) if text is not None]
    if self._few_shapes:
      # Through a cache of one row, as prompts come: a program for each size, not for each pair.
      for number, row in enumerate(in_use):
        numbers = np.where(np.arange(len(self._rows)) == row, 0, 1).astype(np.int32)
        part = decoding.start(self._model, self._variables, 1, self._context, self._source_slots)
        part = copy_rows(part, self._state, numbers, rows=1)
        state = copy_rows(state, part, np.array([number], np.int32), rows=size)
    elif in_use:
      numbers = np.full(len(self._rows), size, np.int32)
      numbers[in_use] = range(len(in_use))
      state = copy_rows(state, self._state, numbers, rows=size)
    self._rows, self._state = [*self.texts, *[None] * (size - len(self.texts))], state


def continue_texts(
  model: Model, params: Any, texts: Sequence[Text], steps: int = MAX_STEPS
) -> Iterator[list[Text]]:
  """Continues texts, in their order, until all are done; put those of similar lengths together.

  Yields after each call of Stream.advance the texts that have new tokens, at most `steps` each. One
  that is then marked as `stopped` stays as it is.
  """
  stream = Stream(model, params)
  waiting = list(texts)
  while waiting or stream.texts:
    room = stream.capacity - len(stream.texts)
    stream.add(*waiting[:room])
    waiting = waiting[room:]
    yield stream.advance(steps)
    for text in stream.texts:
      if text.stopped:
        stream.remove(text)


def read_before(model: Model, length: int) -> int:
  """How many of a prompt's tokens are read at once, before the last one is read to continue it.

  Under prefix attention all of them are, since each attends to the last one too; reading that again
  gives the same keys and values.
  """
  return length if model.config.attention == "prefix" else length - 1


def check_fits(model: Model, prompt_tokens: int, max_tokens: int) -> None:
  """Raises InputError if a prompt is empty or leaves no room for max_tokens in the context."""
  context = model.config.trunk.context
  if not prompt_tokens:
    raise InputError(_EMPTY)
  if prompt_tokens + max_tokens > context:
    raise InputError(
      f"{prompt_tokens} tokens of the prompt and max_tokens={max_tokens} are more than the model's "
      f"context of {context}; give a shorter prompt or a smaller max_tokens"
    )


def source_slots_for(length: int) -> int:
  """Slots for a source of so many tokens, a power of two; 0 without one."""
  return bucket(length, 2**30) if length else 0


def _fit(number: int, sizes: Sequence[int]) -> int:
  """The smallest of ascending sizes that is large enough; the largest if none is."""
  return next((size for size in sizes if size >= number), sizes[-1])


def _append(text: Text, chosen: Any, row: int, count: int) -> None:
  """Adds `count` tokens of a row; the arrays of chosen are [steps, B, …]."""
  ids, log_probs, best, best_log_probs = chosen
  for step in range(count):
    pairs: list[tuple[int, float]] = []
    if text.best:
      pairs = list(zip(best[step, row].tolist(), best_log_probs[step, row].tolist(), strict=True))
    text.added.append(Token(int(ids[step, row]), float(log_probs[step, row]), pairs))
    # All rows go on to the last step; what follows an end is nothing.
    if text.done:
      break
