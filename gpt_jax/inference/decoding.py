"""The compiled functions of a Stream: prompts are read, tokens added, rows of a cache moved.

Letters: B rows of the cache, S tokens of a source, P tokens of a prompt, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.inference.sampling import choose
from gpt_jax.ops.cross_entropy import logits, token_log_probs

MAX_STEPS = 32  # tokens per call of `extend`
BEST = 5  # alternatives that come with a token


def read_source(source: np.ndarray) -> Rows:
  """Encoder input from ids int32 [B, S], padded with -1."""
  positions = jnp.broadcast_to(jnp.arange(source.shape[1])[None], source.shape)
  return Rows(jnp.maximum(source, 0), positions, (source >= 0).astype(jnp.int32))


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
def read(model, variables, ids, lengths, sources, *, length):
  """The state, of `length` slots, after prompts [B, P] of lengths [B].

  Args:
    sources: what an encoder reads, int32 [B, S] with -1 for padding; None: there is no encoder.
  """
  # [B, P]
  valid = jnp.arange(ids.shape[1])[None] < lengths[:, None]
  of_source = {} if sources is None else {"source": read_source(sources)}
  *_, state = model.apply(variables, ids, valid, **of_source, method="read_prompt")
  source_slots = 0 if sources is None else sources.shape[1]
  empty = start(model, variables, len(ids), length, source_slots)
  return jax.tree.map(_write_first, empty, state)


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
def extend(
  model, variables, state, last, lengths, numbers, active, settings, log_probs, best, count
):
  """Adds `count` tokens to each row: the state, and arrays [32, B, …] of the tokens.

  Args:
    last: int32 [B], the newest token of each text, which the state does not have.
    lengths: int32 [B], tokens of each text with its newest.
    numbers: int32 [B], how many of them were added.
    active: bool [B]; elsewhere the row is not in use and its output is discarded.
    log_probs, best: whether a text asks for them.
  """

  def add(carry):
    number, ids, state, added = carry
    # At most the last position: of what is discarded.
    positions = jnp.minimum(lengths + number, model.config.trunk.context) - 1
    about = positions[:, None], active[:, None], state
    hidden, table, state = model.apply(variables, ids[:, None], *about, method="extend")
    # [B, V]; the table may have rows beyond the vocabulary.
    vocab_size = model.num_tokens
    scores = logits(hidden[:, 0], table, vocab_size)[:, :vocab_size]
    chosen = choose(scores, settings, numbers + number)
    told = chosen, *_report(scores, chosen, log_probs, best)
    added = jax.tree.map(lambda rows, new: rows.at[number].set(new), added, told)
    return number + 1, chosen, state, added

  one, several = (MAX_STEPS, len(last)), (MAX_STEPS, len(last), min(BEST, model.num_tokens))
  added = tuple(
    jnp.zeros(shape, dtype) for shape in (one, several) for dtype in (jnp.int32, jnp.float32)
  )
  carry = jnp.int32(0), jnp.asarray(last), state, added
  # One program for any number of tokens: `count` is an argument, the arrays have MAX_STEPS rows.
  *_, state, added = jax.lax.while_loop(lambda carry: carry[0] < count, add, carry)
  return state, added


@functools.partial(jax.jit, static_argnames=("model", "size", "slots", "source_slots"))
def start(model, variables, size, slots, source_slots):
  of_source = {"source_length": source_slots} if source_slots else {}
  return model.apply(variables, size, slots, **of_source, method="start")


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=0)
def place(state, part, row, number, rows, part_rows):
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
def take(model, variables, state, row, rows, length, source_slots):
  """One row of a state of `rows` rows, as a state of `length` slots and so many of the source."""

  def take(empty, x):
    per_row = len(x) // rows
    x = jax.lax.dynamic_slice_in_dim(x, row * per_row, per_row)
    return _write_first(empty, x[tuple(slice(0, size) for size in empty.shape)])

  empty = start(model, variables, 1, length, source_slots)
  return jax.tree.map(take, empty, state)


def _write_first(x, first):
  """x with `first` at the beginning of its axes."""
  return jax.lax.dynamic_update_slice(x, first, (0,) * x.ndim)
