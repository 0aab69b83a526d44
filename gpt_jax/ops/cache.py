"""The cache of keys and values that a decoder attends to when it generates.

Letters: B rows, H heads, T tokens, S slots, K width of a head.
"""

import jax
import jax.numpy as jnp


def write(cache: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
  """The cache [B H, S, K] with `new` [B, T, H, K] at slots [B, T].

  With B and H as one axis, which the products want, a CPU writes new tokens in place.
  """
  batch, length, heads, width = new.shape
  new = new.astype(cache.dtype)

  def scatter(cache, new, positions):
    row = jnp.arange(batch)[:, None]
    # Two index arrays around a slice: their axes [B, T] come first, so the place is [B, T, H, K] as
    # `new`.
    split = cache.reshape(batch, heads, *cache.shape[1:])
    return split.at[row, :, positions].set(new).reshape(cache.shape)

  def slice_by_slice(cache, new, positions):
    for row in range(batch):
      update = new[row, 0][:, None]
      cache = jax.lax.dynamic_update_slice(cache, update, (row * heads, positions[row, 0], 0))
    return cache

  if length > 1:
    return scatter(cache, new, positions)
  # On a CPU a scatter is a loop; slices are written in place.
  return jax.lax.platform_dependent(cache, new, positions, cpu=slice_by_slice, default=scatter)
