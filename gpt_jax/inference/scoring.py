"""How likely a text is: the log-probability of each token, and padded lengths that compile once."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from gpt_jax.batch import Rows
from gpt_jax.errors import InputError
from gpt_jax.models.heads.contrastive import text_vectors
from gpt_jax.models.model import Model
from gpt_jax.models.trunk import States
from gpt_jax.ops.cross_entropy import logits, token_log_probs

_SHORTEST = 16


def bucket(length: int, limit: int) -> int:
  """The padded length for texts of at most `length` tokens: a power of two from 16, up to limit.

  So few shapes need compiling.
  """
  return min(limit, max(_SHORTEST, 1 << max(0, length - 1).bit_length()))


def check_length(ids: Any, name: str, room: int, context: int) -> None:
  """Raises InputError for a text without a token, or with more than there is room for."""
  if not len(ids):
    raise InputError(f"{name}: empty; give at least one word")
  if len(ids) > room:
    raise InputError(
      f"{name}: {len(ids)} tokens, and the model's context is {context}; give a part of it"
    )


def text_states(
  model: Model, params: Any, ids: jax.Array, segments: jax.Array | None = None
) -> States:
  """The states of whole texts, ids int32 [B, T].

  Padding at the end changes nothing before it in a causal model; any other needs segments [B, T].
  """
  # [B, T]
  positions = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
  states = model.apply({"params": params}, Rows(ids, positions, segments), method="states")
  return cast(States, states)


@functools.partial(jax.jit, static_argnames="model")
def text_log_probs(model: Model, params: Any, ids: jax.Array) -> jax.Array:
  """log P of every token but the first given those before it: [B, T] -> float32 [B, T - 1]."""
  hidden, table, *_ = text_states(model, params, ids)

  def of_row(row):  # so that the logits of one text at a time are in memory
    hidden, ids = row
    return token_log_probs(logits(hidden[:-1], table, model.num_tokens), ids[1:])

  return jax.lax.map(of_row, (hidden, ids))


@functools.partial(jax.jit, static_argnames="model")
def continuation_log_probs(
  model: Model, params: Any, ids: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """log P of the token after each position, and whether it is the most likely one.

  Args:
    ids: what the model reads, int32 [B, T].
    targets: the token after each, int32 [B, T].

  Returns:
    float32 [B, T] and bool [B, T].
  """
  hidden, table, *_ = text_states(model, params, ids)

  def of_row(row):
    hidden, targets = row
    scores = logits(hidden, table, model.num_tokens)
    return token_log_probs(scores, targets), scores.argmax(-1) == targets

  return jax.lax.map(of_row, (hidden, targets))


@functools.partial(jax.jit, static_argnames=("model", "pooling"))
def embeddings(
  model: Model, params: Any, ids: jax.Array, lengths: jax.Array, pooling: str = "mean"
) -> jax.Array:
  """A vector of each text: [B, T] and lengths [B] -> float32 [B, D].

  Args:
    pooling: see text_vectors; or max, of each feature.
  """
  inside = jnp.arange(ids.shape[1])[None] < lengths[:, None]
  states = text_states(model, params, ids, inside.astype(jnp.int32))
  if pooling == "max":
    hidden = states.hidden.astype(jnp.float32)
    return jnp.where(inside[..., None], hidden, -jnp.inf).max(axis=1)
  return text_vectors(states.hidden, inside, pooling)
