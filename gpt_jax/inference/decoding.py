"""The compiled functions of Stream and beam search: read prompts, add tokens, copy rows of a cache.

A cache holds one text per row. The first axis of each of its arrays is rows, or rows times heads.
Letters: B rows of the cache, S tokens of a source, P tokens of a prompt, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.inference.sampling import choose
from gpt_jax.inference.scoring import bucket, padded
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits, token_log_probs

MAX_STEPS = 32  # tokens per call of `extend`
BEST = 5  # alternatives that come with a token


def read_prompts(
  model: Model,
  variables: Any,
  prompts: Sequence[Sequence[int]],
  sources: Sequence[Sequence[int]],
  *,
  rows: int,
  slots: int,
  source_slots: int,
) -> Any:
  """A cache that has read a prompt in each of its first rows.

  Args:
    sources: ids that the encoder reads beside each prompt.
    rows, slots, source_slots: size of the cache: texts, tokens of each, tokens of each source; no
      source_slots: there is no encoder.
  """
  lengths = np.zeros(rows, np.int32)
  lengths[: len(prompts)] = [len(ids) for ids in prompts]
  ids = padded(prompts, (rows, bucket(int(lengths.max()), model.config.trunk.context)))
  # -1 is padding, which the encoder does not attend to.
  source_ids = padded(sources, (rows, source_slots), -1) if source_slots else None
  return _read(model, variables, ids, lengths, source_ids, slots=slots)


@functools.partial(jax.jit, static_argnames=("model", "slots"))
def _read(model, variables, ids, lengths, sources, *, slots):
  """As read_prompts, of arrays: prompts [B, P] of lengths [B], sources [B, S] or None."""
  # [B, P]
  valid = jnp.arange(ids.shape[1])[None] < lengths[:, None]
  of_source, source_slots = {}, 0
  if sources is not None:
    positions = jnp.broadcast_to(jnp.arange(sources.shape[1])[None], sources.shape)
    source = Rows(jnp.maximum(sources, 0), positions, (sources >= 0).astype(jnp.int32))
    of_source, source_slots = {"source": source}, sources.shape[1]
  *_, state = model.apply(variables, ids, valid, **of_source, method="read_prompt")
  empty = start(model, variables, len(ids), slots, source_slots)

  def write_first(x, first):
    return jax.lax.dynamic_update_slice(x, first, (0,) * x.ndim)

  return jax.tree.map(write_first, empty, state)


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
    new = chosen, *_report(scores, chosen, log_probs, best)
    added = jax.tree.map(lambda steps, x: steps.at[number].set(x), added, new)
    return number + 1, chosen, state, added

  one, several = (MAX_STEPS, len(last)), (MAX_STEPS, len(last), min(BEST, model.num_tokens))
  added = tuple(
    jnp.zeros(shape, dtype) for shape in (one, several) for dtype in (jnp.int32, jnp.float32)
  )
  carry = jnp.int32(0), jnp.asarray(last), state, added
  # One program for any number of tokens: `count` is an argument, the arrays have MAX_STEPS rows.
  *_, state, added = jax.lax.while_loop(lambda carry: carry[0] < count, add, carry)
  return state, added


@functools.partial(jax.jit, static_argnames=("model", "rows", "slots", "source_slots"))
def start(model, variables, rows, slots, source_slots):
  """An empty cache of this size; see read_prompts."""
  of_source = {"source_length": source_slots} if source_slots else {}
  return model.apply(variables, rows, slots, **of_source, method="start")


@functools.partial(jax.jit, static_argnames="rows", donate_argnames="state")
def copy_rows(state, other, numbers, *, rows):
  """The cache, of `rows` rows, with rows replaced by those of another cache.

  Args:
    other: of len(numbers) rows; its texts fit, but it may have more or fewer slots.
    numbers: int32, the row that each row of `other` replaces; `rows`: it is not copied.
  """

  def copy(x, y):
    by_row = x.reshape(rows, len(x) // rows, *x.shape[1:])
    new = y.reshape(len(numbers), len(y) // len(numbers), *y.shape[1:])
    common = tuple(slice(0, min(sizes)) for sizes in zip(x.shape[1:], y.shape[1:], strict=True))
    index = numbers, slice(None), *common
    new = new[(slice(None), slice(None), *common)]
    return by_row.at[index].set(new, mode="drop").reshape(x.shape)

  return jax.tree.map(copy, state, other)


def take_rows(state, numbers, rows):
  """A cache with the rows `numbers` of a cache of `rows` rows, of which any may be repeated."""

  def take(x):
    return x.reshape(rows, len(x) // rows, *x.shape[1:])[numbers].reshape(-1, *x.shape[1:])

  return jax.tree.map(take, state)
