"""Fingerprints of arrays, by which a checkpoint is verified and two states are compared."""

from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.parallel.partition import path_name


def describe(tree: Any) -> dict[str, list]:
  """[type, shape, fingerprint] of every array, by its path."""
  described = {}
  # One program per array, run one after the other: concurrent programs with collectives can
  # deadlock on each other's devices, and a single program for all arrays takes many seconds to
  # compile, while a model has only a dozen different shapes.
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    described[path_name(path)] = [str(x.dtype), list(x.shape), int(_fingerprint(x))]
  return described


@jax.jit
def _fingerprint(x: jax.Array) -> jax.Array:
  """A uint32 hash of an array's exact bits and their positions; the same for every sharding.

  The bits of each element are mixed with its index and hashed by a bijection (the finalizer of
  MurmurHash3); the hashes are summed modulo 2^32. A change of one element is always detected, a
  change of several with probability 1 - 2^-32.
  """
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  # Bits and not values: 0.0 and -0.0 differ, and NaN equals itself.
  bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis, size in enumerate(x.shape):  # no reshape, so that devices hash only their own shards
    index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  h = bits ^ (index * jnp.uint32(0x9E3779B1))
  h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
  # Integer addition is associative: shards may be summed in any order.
  return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)
