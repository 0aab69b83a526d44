"""Perturbations r of looked-up embeddings [B, T, D], whose length is that of a whole sequence.

A packed row holds several sequences. Each has a perturbation of its own, all of its positions and
features together: what happens to it must not depend on which others share its row.
"""

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Rows
from gpt_jax.errors import InputError
from gpt_jax.models.loss import PERTURBATION
from gpt_jax.models.model import Model
from gpt_jax.ops.dropout import Key, random_bits, step_key


def no_perturbation(model: Model, params, batch: Batch) -> jax.Array:
  """Zeros [B, T, D] in the type of the embeddings, of a trunk that takes a perturbation."""
  collection, name = PERTURBATION

  def created(params, batch):
    return model.apply({"params": params}, batch, mutable=[collection])[1]

  shapes = jax.eval_shape(created, params, batch).get(collection, {})
  shape = shapes.get("trunk", {}).get(name)
  if shape is None:
    trunk = type(model.config.trunk).__name__
    raise InputError(f"trunk: a {trunk} takes no perturbation of its embeddings")
  return jnp.zeros(shape.shape, shape.dtype)


def of_length(x: jax.Array, length: float | jax.Array, rows: Rows) -> jax.Array:
  """[B, T, D] with the direction of x, and for each sequence of the rows the L2 norm `length`.

  A sequence of zeros, such as padding that no loss depends on, stays zero.
  """
  wide = x.astype(jnp.float32)
  # By the largest element first: the squares of small gradients would underflow.
  largest = _over_sequence(jnp.abs(wide).max(-1), rows, jnp.max)[..., None]
  wide = wide / jnp.where(largest > 0, largest, 1)
  norms = jnp.sqrt(_over_sequence(jnp.square(wide).sum(-1), rows, jnp.sum))[..., None]
  return (length * wide / jnp.where(norms > 0, norms, 1)).astype(x.dtype)


def within(x: jax.Array, radius: float, rows: Rows) -> jax.Array:
  """x [B, T, D], each sequence whose L2 norm is above `radius` shortened to it."""
  norms = sequence_norms(x, rows)[..., None]
  factor = jnp.where(norms > radius, radius / jnp.where(norms > 0, norms, 1), 1)
  return (x * factor).astype(x.dtype)


def sequence_norms(x: jax.Array, rows: Rows) -> jax.Array:
  """float32 [B, T]: at each position the L2 norm of its whole sequence in x [B, T, D]."""
  return jnp.sqrt(_over_sequence(jnp.square(x.astype(jnp.float32)).sum(-1), rows, jnp.sum))


def sequence_lengths(rows: Rows) -> jax.Array:
  """float32 [B, T]: at each position how many its sequence has."""
  return _over_sequence(jnp.ones(rows.inputs.shape), rows, jnp.sum)


def uniform(like: jax.Array, key: Key | None, rows: Rows) -> jax.Array:
  """float32 noise in (-1, 1), of the shape [B, T, D] of `like`; key: the step's; None: the first's.

  A function of the key and of a sequence's number in the batch, not of the row that it is packed
  into, so the same for every split into microbatches or devices.
  """
  key = step_key(0, 0) if key is None else key
  if rows.segments is None:
    count = len(rows.inputs)
    sequence = (jnp.arange(count, dtype=jnp.uint32) + key.shard * count)[:, None]
  else:
    # Packed batches number their sequences across all rows (tasks/packing.py).
    sequence = rows.segments.astype(jnp.uint32)
  word = step_key(key.word + sequence, rows.positions).word[..., None]
  bits = random_bits(jnp.arange(like.shape[-1], dtype=jnp.uint32)[None, None], word)
  # Never -1 or 1: 23 bits and a half are exact in float32.
  return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-22 - 1


def normal(like: jax.Array, key: Key | None, rows: Rows) -> jax.Array:
  """float32 noise from the standard normal distribution; see uniform."""
  return jnp.sqrt(2.0) * jax.lax.erf_inv(uniform(like, key, rows))


def _over_sequence(values: jax.Array, rows: Rows, reduce) -> jax.Array:
  """values [B, T] reduced over each sequence; [B, T], the result at each of its positions.

  reduce: jnp.sum or jnp.max of values that are not negative.
  """
  if rows.segments is None:
    return jnp.broadcast_to(reduce(values, axis=-1, keepdims=True), values.shape)
  # Not a scatter: a GPU adds one up in no fixed order.
  same = rows.segments[:, :, None] == rows.segments[:, None, :]  # [B, T, T]
  return reduce(jnp.where(same, values[:, None, :], 0), axis=-1)
