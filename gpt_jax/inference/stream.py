"""Generation a few tokens at a time, for texts that come and go and have settings of their own.

generate.py continues a fixed list of prompts with the same settings; both give the same tokens.
Letters: B rows of the cache, P tokens of a prompt, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.inference.scoring import bucket
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits

_STEPS = 4  # tokens per call of `advance`
_SIZES = (1, 4, 16)  # rows of the cache, so that few shapes need compiling
BEST = 5  # alternatives that come with a token


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a text is continued; the names are those of generate.continuations."""

  max_tokens: int = 100
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0

  @property
  def filtered(self) -> bool:
    """Whether less likely tokens are left out."""
    return self.top_k > 0 or self.top_p < 1


class Token(NamedTuple):
  """A token that was added.

  Attributes:
    id: the token.
    log_prob: of the model, in nats, before temperature, top_k and top_p.
    best: (id, log_prob) of the most likely tokens; empty if the text did not ask for them.
  """

  id: int
  log_prob: float
  best: list[tuple[int, float]]


class Text:
  """A text that is continued. `added` grows with each `advance`, up to sampling.max_tokens."""

  def __init__(self, prompt: Sequence[int], sampling: Sampling, best: bool = False):
    """best: whether to report the most likely tokens."""
    self.prompt, self.sampling, self.best = list(prompt), sampling, best
    self.added: list[Token] = []

  @property
  def last(self) -> int:
    """The newest token."""
    return self.added[-1].id if self.added else self.prompt[-1]

  @property
  def done(self) -> bool:
    return len(self.added) >= self.sampling.max_tokens


class _Settings(NamedTuple):
  """The settings of each row: arrays [B]."""

  temperature: Any
  top_k: Any
  top_p: Any
  seed: Any


class Stream:
  """Texts that a model continues together.

  Attributes:
    texts: those that are being continued, at most `capacity`.
  """

  capacity = _SIZES[-1]

  def __init__(self, model: Model, params: Any):
    """model: from LoadedModel.language_model; params: on the device."""
    self._model, self._params = model, {"trunk": params["trunk"]}
    self._slots: list[Text | None] = []
    self._state: Any = None

  @property
  def texts(self) -> list[Text]:
    return [text for text in self._slots if text is not None]

  def add(self, text: Text) -> None:
    """Reads the prompt, but for its last token.

    Raises:
      InputError: an empty prompt, or one that leaves no room for max_tokens in the context.
    """
    check_fits(self._model, len(text.prompt), text.sampling.max_tokens)
    count = len(text.prompt) - 1
    ids = np.zeros((1, bucket(count, self._model.config.trunk.context)), np.int32)
    ids[0, :count] = text.prompt[:-1]
    state = _read(self._model, self._params, ids, np.array([count], np.int32))
    slot = self._free_slot()
    self._slots[slot] = text
    self._state = _place(self._state, state, slot)

  def warm_up(self) -> None:
    """Compiles all that any text needs."""
    context, length = self._model.config.trunk.context, 16
    while True:
      text = Text([0] * min(length + 1, context - 1), Sampling(max_tokens=1))
      self.add(text)
      self.remove(text)
      if length >= context:
        break
      length *= 2
    for size in _SIZES:
      for top_p in (1.0, 0.5):
        for _ in range(size):
          self.add(Text([0], Sampling(max_tokens=1, top_p=top_p)))
        self.advance()

  def remove(self, text: Text) -> None:
    """Forgets a text, done or not."""
    self._slots = [None if other is text else other for other in self._slots]
    if not self.texts:
      self._slots, self._state = [], None

  def advance(self) -> list[Text]:
    """Adds up to four tokens to each text, and returns the texts; those that are done leave."""
    texts = self.texts
    if not texts:
      return []
    self._resize(next(size for size in _SIZES if size >= len(texts)))
    missing = [text.sampling.max_tokens - len(text.added) if text else 0 for text in self._slots]
    self._state, chosen = _extend(
      self._model,
      self._params,
      self._state,
      np.array([text.last if text else 0 for text in self._slots], np.int32),
      np.array([len(text.prompt) + len(text.added) if text else 1 for text in self._slots]),
      np.array([len(text.added) if text else 0 for text in self._slots]),
      np.array(missing),
      _settings(self._slots),
      filtered=any(text.sampling.filtered for text in texts),
    )
    chosen = jax.tree.map(np.asarray, chosen)
    for row, text in enumerate(self._slots):
      if text is not None:
        _append(text, chosen, row, min(_STEPS, missing[row]))
        if text.done:
          self.remove(text)
    return texts

  def _free_slot(self) -> int:
    count = len(self.texts)
    if count == self.capacity:
      raise ValueError(f"more than {self.capacity} texts at a time")
    if None not in self._slots:
      self._resize(next(size for size in _SIZES if size > count))
    return self._slots.index(None)

  def _resize(self, size: int) -> None:
    """Moves the texts to a cache of `size` rows."""
    if size == len(self._slots):
      return
    rows = [row for row, text in enumerate(self._slots) if text is not None]
    if rows:
      self._state = _take(self._state, np.array(rows + [0] * (size - len(rows)), np.int32))
    else:
      self._state = _start(self._model, self._params, size)
    self._slots = [*self.texts, *[None] * (size - len(rows))]


def check_fits(model: Model, prompt_tokens: int, max_tokens: int) -> None:
  """Raises InputError if a prompt is empty or leaves no room for max_tokens in the context."""
  context = model.config.trunk.context
  if not prompt_tokens:
    raise InputError("the prompt is empty: the model needs a token to begin with; give a word")
  if prompt_tokens + max_tokens > context:
    raise InputError(
      f"{prompt_tokens} tokens of the prompt and max_tokens={max_tokens} are more than the model's "
      f"context of {context}; give a shorter prompt or a smaller max_tokens"
    )


def _settings(texts: Sequence[Text | None]) -> _Settings:
  settings = [text.sampling if text else Sampling() for text in texts]
  return _Settings(
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


def _choose(hidden, table, vocab_size, numbers, settings, filtered):
  """The next token of each row: hidden [B, D] -> ids [B], log_probs [B], and the best [B, 5]."""
  scores = logits(hidden, table, vocab_size)[:, :vocab_size]
  log_probs = jax.nn.log_softmax(scores)

  def noise(seed, number):
    # That of generate.sample: a text is the same in both.
    return jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), number), (vocab_size,))

  gumbel = jax.vmap(noise)(settings.seed, numbers)
  kept = _keep_likely(scores, settings) if filtered else scores
  ids = jnp.argmax(kept + settings.temperature[:, None] * gumbel, axis=-1).astype(jnp.int32)
  of_ids = jnp.take_along_axis(log_probs, ids[:, None], axis=-1)[:, 0]
  best_log_probs, best_ids = jax.lax.top_k(log_probs, min(BEST, vocab_size))
  return ids, of_ids, best_ids, best_log_probs


def _keep_likely(scores: jax.Array, settings: _Settings) -> jax.Array:
  """generate.keep_likely with top_k and top_p of each row."""
  vocab_size = scores.shape[-1]
  best = jnp.sort(scores, axis=-1, descending=True)
  limit = jnp.where(settings.top_k > 0, settings.top_k, vocab_size)[:, None]
  best = jnp.where(jnp.arange(vocab_size)[None] < limit, best, -jnp.inf)
  temperature = jnp.maximum(settings.temperature, 1e-6)[:, None]
  probabilities = jax.nn.softmax(best / temperature)
  before = jnp.cumsum(probabilities, -1) - probabilities
  top_p = settings.top_p[:, None]
  in_nucleus = (before < top_p) | (top_p >= 1)  # rounding must not cut a row that asks for all
  threshold = jnp.where(in_nucleus & (best > -jnp.inf), best, jnp.inf).min(-1, keepdims=True)
  return jnp.where(scores >= threshold, scores, -jnp.inf)


@functools.partial(jax.jit, static_argnames="model")
def _read(model, params, ids, lengths):
  """The state after prompts [B, P] of lengths [B]."""
  positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
  state = model.apply({"params": params}, len(ids), method="start")
  valid = positions < lengths[:, None]
  *_, state = model.apply({"params": params}, ids, positions, valid, state, method="extend")
  return state


@functools.partial(jax.jit, static_argnames=("model", "filtered"), donate_argnames=("state",))
def _extend(model, params, state, last, lengths, numbers, missing, settings, *, filtered):
  """Adds up to _STEPS tokens to each row: the state, and arrays [_STEPS, B, …] of the tokens.

  Rows that lack fewer tokens keep running beside the others; their output is discarded.

  Args:
    last: int32 [B], the newest token of each text, which the state does not have.
    lengths: int32 [B], tokens of each text with its newest.
    numbers: int32 [B], how many of them were added.
    missing: int32 [B], tokens to add; 0: an unused row.
  """
  context = model.config.trunk.context

  def step(number, ids, state):
    positions = jnp.minimum(lengths + number - 1, context - 1)[:, None]
    valid = (number < missing)[:, None]
    hidden, table, state = model.apply(
      {"params": params}, ids[:, None], positions, valid, state, method="extend"
    )
    chosen = _choose(hidden[:, 0], table, model.num_tokens, numbers + number, settings, filtered)
    return chosen, state

  def add(carry):
    number, ids, state, added = carry
    chosen, state = step(number, ids, state)
    added = jax.tree.map(lambda rows, new: rows.at[number].set(new), added, chosen)
    return number + 1, chosen[0], state, added

  shapes, _ = jax.eval_shape(step, jnp.int32(0), last, state)
  empty = jax.tree.map(lambda x: jnp.zeros((_STEPS, *x.shape), x.dtype), shapes)
  count = jnp.minimum(missing.max(), _STEPS)
  carry = jnp.int32(0), last, state, empty
  *_, state, added = jax.lax.while_loop(lambda carry: carry[0] < count, add, carry)
  return state, added


@functools.partial(jax.jit, static_argnames=("model", "size"))
def _start(model, params, size):
  return model.apply({"params": params}, size, method="start")


@functools.partial(jax.jit, donate_argnums=0)
def _place(state, one, slot):
  """The state [B, …] with row `slot` replaced by that of `one`, [1, …]."""
  return jax.tree.map(lambda rows, row: rows.at[slot].set(row[0]), state, one)


@jax.jit
def _take(state, rows):
  return jax.tree.map(lambda x: x[rows], state)
