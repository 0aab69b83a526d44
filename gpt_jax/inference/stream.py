"""Generation: texts that a model continues together, a few tokens at a time.

Texts come and go, and have settings of their own. generate.py and the server are built on it.
Letters: B rows of the cache, S its slots, or tokens of a source, P tokens of a prompt, V
vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.inference.sampling import Settings, choose
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits, token_log_probs

MAX_STEPS = 32  # tokens per call of `advance`
_SIZES = (1, 4, 16)  # rows of the cache, so that few shapes need compiling
# Slots of the cache: at most a third is not needed, or a few sizes for all texts.
_MANY_SLOTS = tuple(sorted(size for n in range(4, 28) for size in (2**n, 3 * 2**n)))
_FEW_SLOTS = (256, 2**30)
_EMPTY = "the prompt is empty: the model needs a token to begin with; give a word"
BEST = 5  # alternatives that come with a token


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a text is continued; the names are those of generate.continuations."""

  max_tokens: int = 100
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0


class Token(NamedTuple):
  """A token that was added.

  Attributes:
    id: the token.
    log_prob: of the model, in nats, before temperature, top_k and top_p; 0 if the text did not ask
      for it.
    best: (id, log_prob) of the most likely tokens; empty if the text did not ask for them.
  """

  id: int
  log_prob: float
  best: list[tuple[int, float]]


class Text:
  """A text that is continued. `added` grows with each `advance`, up to sampling.max_tokens."""

  def __init__(
    self,
    prompt: Sequence[int],
    sampling: Sampling,
    log_probs: bool = False,
    best: bool = False,
    source: Sequence[int] = (),
    end: int | None = None,
  ):
    """log_probs: whether to report those of the tokens; best: also the most likely tokens.

    source: token ids that an encoder reads; end: token after which the text is done.
    """
    self.prompt, self.sampling, self.best = list(map(int, prompt)), sampling, best
    self.log_probs = log_probs or best
    self.source, self.end = list(map(int, source)), end
    self.added: list[Token] = []
    self._begin = 0  # of the tokens that the model attends to

  @property
  def ids(self) -> list[int]:
    """The prompt and what was added."""
    return [*self.prompt, *self.added_ids]

  @property
  def added_ids(self) -> list[int]:
    """The tokens that were added."""
    return [token.id for token in self.added]

  @property
  def missing(self) -> int:
    """Tokens to add."""
    return self.sampling.max_tokens - len(self.added)

  @property
  def done(self) -> bool:
    return self.missing <= 0 or bool(self.added and self.added[-1].id == self.end)

  @property
  def last(self) -> int:
    """The newest token."""
    return self.added[-1].id if self.added else self.prompt[-1]

  @property
  def length(self) -> int:
    """Tokens that the model attends to, with the newest."""
    return len(self.prompt) + len(self.added) - self._begin

  def slide(self, context: int) -> bool:
    """Keeps the second half of a full context; whether it was full."""
    full = self.length >= context
    if full:
      # The rest is read again at positions 0, 1, …: there is no row for later ones.
      self._begin += self.length - context // 2
    return full

  def to_read(self, count: int) -> list[int]:
    """The first `count` tokens that the model attends to."""
    return self.ids[self._begin :][:count]


class Stream:
  """Texts that a model continues together.

  When the context is full, its second half is read again from position 0; so is a prompt that is
  too long. A text does not depend on the others.

  Attributes:
    texts: those that are being continued, at most `capacity`.
  """

  capacity = _SIZES[-1]

  def __init__(self, model: Model, params: Any, few_shapes: bool = False):
    """few_shapes: run few programs, which `warm_up` compiles, instead of one of a fitting size.

    Args:
      model: from LoadedModel.generator.
      params: on the device.
    """
    self._model, self._params = model, {"trunk": params["trunk"]}
    self._context: int = model.config.trunk.context
    self._few_shapes = few_shapes
    self._rows: list[Text | None] = []
    self._slots = self._source_slots = 0
    self._state: Any = None

  @property
  def texts(self) -> list[Text]:
    return [text for text in self._rows if text is not None]

  def add(self, *texts: Text) -> None:
    """Reads the prompts in one pass, up to where `read_before` says.

    Raises:
      InputError: an empty prompt.
    """
    if len(self.texts) + len(texts) > self.capacity:
      raise ValueError(f"more than {self.capacity} texts at a time")
    for text in texts:
      if not text.prompt:
        raise InputError(_EMPTY)
    if not texts:
      return
    for text in texts:
      text.slide(self._context)
    every = [*self.texts, *texts]
    self._resize(_fit(len(every), _SIZES), self._slots_for(every), _source_slots_for(every))
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
        for text in texts:
          self.remove(text)

  def remove(self, text: Text) -> None:
    """Forgets a text, done or not."""
    self._rows = [None if other is text else other for other in self._rows]
    if not self.texts:
      self._rows, self._slots, self._source_slots, self._state = [], 0, 0, None

  def advance(self, steps: int = 4) -> list[Text]:
    """Adds up to `steps` tokens, at most 32, to each text; texts that are done leave.

    Returns:
      The texts, all with the same number of new tokens but for those that ended: fewer than steps
      where one of them has all its tokens or its context is full before.
    """
    texts = self.texts
    if not texts:
      return []
    size = _fit(len(texts), _SIZES)
    if self._few_shapes and size < len(self._rows):
      self._resize(size, self._slots_for(texts), _source_slots_for(texts))
    full = [row for row, text in enumerate(self._rows) if text and text.slide(self._context)]
    if full:
      self._read(full)
    count = min(steps, MAX_STEPS)
    for text in texts:
      # All rows add as many tokens, so none can pass its end or the context in between.
      count = min(count, text.missing, self._context - text.length)
    self._state, chosen = _extend(
      self._model,
      self._params,
      self._state,
      np.array([text.last if text else 0 for text in self._rows], np.int32),
      # Rows without a text are computed too, at position 0, and discarded.
      np.array([text.length if text else 1 for text in self._rows], np.int32),
      np.array([len(text.added) if text else 0 for text in self._rows], np.int32),
      np.array([text is not None for text in self._rows]),
      _settings(self._rows),
      any(text.log_probs for text in texts),
      any(text.best for text in texts),
      np.int32(count),
    )
    chosen = jax.tree.map(np.asarray, chosen)
    for row, continued in enumerate(self._rows):
      if continued is not None:
        _append(continued, chosen, row, count)
    for text in texts:
      if text.done:
        self.remove(text)
    return texts

  def _slots_for(self, texts: Sequence[Text]) -> int:
    """Slots of a cache for these texts, so that few shapes need compiling."""
    needed = max(text.length + text.missing for text in texts)
    longest = max(text.length for text in texts)
    read = bucket(read_before(self._model, longest), self._context)
    # Prompts are padded to a bucket, all of which is written into the cache.
    sizes = _FEW_SLOTS if self._few_shapes else _MANY_SLOTS
    return min(self._context, _fit(max(needed, read), sizes))

  def _read(self, rows: Sequence[int]) -> None:
    """Reads what the model attends to of the texts in these rows."""
    groups = [[row] for row in rows] if self._few_shapes else [rows]
    for group in groups:
      texts = [text for row in group if (text := self._rows[row])]
      windows = [text.to_read(read_before(self._model, text.length)) for text in texts]
      # Rows beyond the windows have length 0 and are not placed anywhere.
      lengths = np.zeros(_fit(len(windows), _SIZES), np.int32)
      lengths[: len(windows)] = [len(ids) for ids in windows]
      ids = np.zeros((len(lengths), bucket(int(lengths.max()), self._context)), np.int32)
      for row_ids, window in zip(ids, windows, strict=False):
        row_ids[: len(window)] = window
      sources = None
      if self._source_slots:
        sources = _padded([text.source for text in texts], len(ids), self._source_slots)
      part = _read(self._model, self._params, ids, lengths, sources, length=self._part_slots)
      for number, row in enumerate(group):
        self._state = _place(self._state, part, row, number, len(self._rows), len(ids))

  def _resize(self, size: int, slots: int, source_slots: int) -> None:
    """Moves the texts to a cache of at least `size` rows, `slots` slots, and so many of the source.

    With few shapes it may also become smaller; otherwise that would compile more programs.
    """
    if not self._few_shapes:
      size, slots = max(size, len(self._rows)), max(slots, self._slots)
      source_slots = max(source_slots, self._source_slots)
    if (size, slots, source_slots) == (len(self._rows), self._slots, self._source_slots):
      return
    texts, rows, state = self.texts, self._rows, self._state
    self._rows, self._slots = [*texts, *[None] * (size - len(texts))], slots
    self._source_slots = source_slots
    self._state = _start(self._model, self._params, size, slots, source_slots)
    for number, row in enumerate(row for row, text in enumerate(rows) if text is not None):
      lengths = self._part_slots, source_slots
      part = _take(self._model, self._params, state, row, len(rows), *lengths)
      self._state = _place(self._state, part, number, 0, size, 1)

  @property
  def _part_slots(self) -> int:
    """Slots of what `_read` and `_take` give."""
    return self._context if self._few_shapes else self._slots


def continue_texts(
  model: Model, params: Any, texts: Sequence[Text], steps: int = MAX_STEPS
) -> Iterator[list[Text]]:
  """Continues texts, in their order, until all are done; put those of similar lengths together.

  Yields:
    After each call of Stream.advance with `steps`: the texts that have new tokens.
  """
  stream = Stream(model, params)
  waiting = list(texts)
  while waiting or stream.texts:
    room = stream.capacity - len(stream.texts)
    stream.add(*waiting[:room])
    waiting = waiting[room:]
    yield stream.advance(steps)


def by_length(texts: Sequence[Text]) -> list[Text]:
  """Sorts texts by length, so that batches have little padding."""
  return sorted(
    texts, key=lambda text: (len(text.prompt), len(text.source), text.sampling.max_tokens)
  )


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


def read_source(source: np.ndarray) -> Rows:
  """Encoder input from ids int32 [B, S], padded with -1."""
  positions = jnp.broadcast_to(jnp.arange(source.shape[1])[None], source.shape)
  return Rows(jnp.maximum(source, 0), positions, (source >= 0).astype(jnp.int32))


def _source_slots_for(texts: Sequence[Text]) -> int:
  """Slots for what the encoder reads, a power of two; 0 without one."""
  longest = max(len(text.source) for text in texts)
  return bucket(longest, 2**30) if longest else 0


def _padded(sources: Sequence[Sequence[int]], rows: int, length: int) -> np.ndarray:
  """int32 [rows, length], with -1 for padding."""
  padded = np.full((rows, length), -1, np.int32)
  for row, source in zip(padded, sources, strict=False):
    row[: len(source)] = source
  return padded


def _fit(number: int, sizes: Sequence[int]) -> int:
  """The smallest of ascending sizes that is large enough; the largest if none is."""
  return next((size for size in sizes if size >= number), sizes[-1])


def _settings(texts: Sequence[Text | None]) -> Settings:
  greedy = Sampling(temperature=0.0)
  settings = [text.sampling if text else greedy for text in texts]
  return Settings(
    np.array([s.temperature for s in settings], np.float32),
    np.array([s.top_k for s in settings], np.int32),
    np.array([s.top_p for s in settings], np.float32),
    np.array([s.seed for s in settings], np.uint32),
  )


def _append(text: Text, chosen: Any, row: int, count: int) -> None:
  """Adds `count` tokens of a row; the arrays of chosen are [steps, B, …]."""
  ids, log_probs, best, best_log_probs = chosen
  for step in range(count):
    pairs: list[tuple[int, float]] = []
    if text.best:
      pairs = list(zip(best[step, row].tolist(), best_log_probs[step, row].tolist(), strict=True))
    text.added.append(Token(int(ids[step, row]), float(log_probs[step, row]), pairs))
    if text.done:
      break


def _report(scores, ids, with_log_probs, with_best):
  """Log-probabilities [B] of ids [B], and the best ids and log-probabilities [B, 5]; or zeros."""
  batch, size = len(ids), min(BEST, scores.shape[1])
  none = jnp.zeros((batch, size), jnp.int32), jnp.zeros((batch, size), jnp.float32)

  def log_probs():
    chosen = token_log_probs(scores, ids)
    return chosen, jax.nn.logsumexp(scores, axis=-1)

  zeros = jnp.zeros(batch, jnp.float32)
  chosen, log_sum = jax.lax.cond(with_log_probs, log_probs, lambda: (zeros, zeros))

  def best():
    values, indices = jax.lax.top_k(scores, size)
    return indices, values - log_sum[:, None]

  return chosen, *jax.lax.cond(with_best, best, lambda: none)


@functools.partial(jax.jit, static_argnames=("model", "length"))
def _read(model, params, ids, lengths, sources, *, length):
  """The state, of `length` slots, after prompts [B, P] of lengths [B].

  Args:
    sources: what an encoder reads, int32 [B, S] with -1 for padding; None: there is no encoder.
  """
  # [B, P]
  valid = jnp.arange(ids.shape[1])[None] < lengths[:, None]
  of_source = {} if sources is None else {"source": read_source(sources)}
  *_, state = model.apply({"params": params}, ids, valid, **of_source, method="read_prompt")
  source_slots = 0 if sources is None else sources.shape[1]
  empty = _start(model, params, len(ids), length, source_slots)
  return jax.tree.map(_write_first, empty, state)


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
def _extend(model, params, state, last, lengths, numbers, active, settings, log_probs, best, count):
  """Adds `count` tokens to each row: the state, and arrays [32, B, …] of the tokens.

  Args:
    last: int32 [B], the newest token of each text, which the state does not have.
    lengths: int32 [B], tokens of each text with its newest.
    numbers: int32 [B], how many of them were added.
    active: bool [B]; elsewhere the row is not in use and its output is discarded.
    log_probs, best: whether a text asks for them.
  """
  vocab_size = model.num_tokens

  def step(number, ids, state):
    positions = (lengths + number - 1)[:, None]
    positions = jnp.minimum(positions, model.config.trunk.context - 1)  # of rows not in use
    hidden, table, state = model.apply(
      {"params": params}, ids[:, None], positions, active[:, None], state, method="extend"
    )
    # [B, V]; the table may have rows beyond the vocabulary.
    scores = logits(hidden[:, 0], table, vocab_size)[:, :vocab_size]
    ids = choose(scores, settings, numbers + number)
    return (ids, *_report(scores, ids, log_probs, best)), state

  def add(carry):
    number, ids, state, added = carry
    chosen, state = step(number, ids, state)
    added = jax.tree.map(lambda rows, new: rows.at[number].set(new), added, chosen)
    return number + 1, chosen[0], state, added

  # Shapes alone: nothing is computed for them.
  shapes, _ = jax.eval_shape(step, jnp.int32(0), last, state)
  empty = jax.tree.map(lambda x: jnp.zeros((MAX_STEPS, *x.shape), x.dtype), shapes)
  carry = jnp.int32(0), jnp.asarray(last), state, empty
  # One program for any number of tokens: `count` is an argument, the arrays have MAX_STEPS rows.
  *_, state, added = jax.lax.while_loop(lambda carry: carry[0] < count, add, carry)
  return state, added


@functools.partial(jax.jit, static_argnames=("model", "size", "slots", "source_slots"))
def _start(model, params, size, slots, source_slots):
  of_source = {"source_length": source_slots} if source_slots else {}
  return model.apply({"params": params}, size, slots, **of_source, method="start")


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=0)
def _place(state, part, row, number, rows, part_rows):
  """The state of `rows` rows with `row` replaced by that of `number` of the `part_rows` of part."""

  def place(x, y):
    # The first axis is rows, or rows times heads: each row has as many entries, side by side.
    per_row = len(x) // rows
    y = jax.lax.dynamic_slice_in_dim(y, number * per_row, per_row)
    # A part may have more slots than the state; its text fits into fewer.
    y = y[tuple(slice(0, size) for size in (per_row, *x.shape[1:]))]
    return jax.lax.dynamic_update_slice(x, y, (row * per_row, *[0] * (x.ndim - 1)))

  return jax.tree.map(place, state, part)


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _take(model, params, state, row, rows, length, source_slots):
  """One row of a state of `rows` rows, as a state of `length` slots and so many of the source."""

  def take(empty, x):
    per_row = len(x) // rows
    x = jax.lax.dynamic_slice_in_dim(x, row * per_row, per_row)
    return _write_first(empty, x[tuple(slice(0, size) for size in empty.shape)])

  empty = _start(model, params, 1, length, source_slots)
  return jax.tree.map(take, empty, state)


def _write_first(x, first):
  """x with `first` at the beginning of its axes."""
  return jax.lax.dynamic_update_slice(x, first, (0,) * x.ndim)
