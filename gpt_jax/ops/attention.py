"""Attention: the mask as a value, the dispatch to a backend, and the cache of a decoder.

A backend is a file gpt_jax/ops/attention_<name>.py with a function `attend` of the signature of
Backend. All backends are equal in value and gradient.

Letters: B rows, H heads, T queries, S keys (of a cache: slots), K width of a head.
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from gpt_jax.errors import InputError
from gpt_jax.ops.dropout import Key

_PREFIX = "attention_"


@partial(jax.tree_util.register_dataclass, meta_fields=["kind"], data_fields=["segments", "prefix"])
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """The keys that each query may attend to."""

  # "causal", itself and the positions before it; "bidirectional", all; "prefix", causal plus all
  # positions of its prefix
  kind: str
  # int32 [B, T]; attention stays among equal segments. None: each row is one segment.
  segments: jax.Array | None = None
  # bool [B, T], for kind "prefix": positions that their whole segment may attend to
  prefix: jax.Array | None = None


class Dropout(NamedTuple):
  """Dropout on the attention probabilities; key None: evaluation."""

  rate: float = 0.0
  key: Key | None = None


Observer = Callable[[jax.Array], object]


class Backend(Protocol):
  """Attention of queries over the keys of the same positions."""

  def __call__(
    self,
    qkv: jax.Array,
    mask: AttentionMask,
    bias: jax.Array | None,
    dropout: Dropout,
    observe: Observer | None,
  ) -> jax.Array:
    """[B, T, H, K] of queries, keys and values [B, T, 3, H, K], as one product gives them.

    bias: float32 broadcastable to [B, H, T, T], added to the scaled scores.

    `observe` is called with the probabilities before dropout, float32 [B, H, t, s], for consecutive
    blocks of queries; a backend that never has them raises InputError where it is not None.
    """


def attention(
  qkv: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None = None,
  dropout: Dropout = Dropout(),  # noqa: B008  # a constant
  backend: str = "plain",
  observe: Observer | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(K) + bias) v under a mask, [B, T, H, K]; see Backend."""
  return find_backend(backend)(qkv, mask, bias, dropout, observe)


def find_backend(name: str) -> Backend:
  """The backend of that name. Raises InputError naming those there are."""
  if name not in backends():
    raise InputError(f"attention backend {name!r}: must be one of {', '.join(backends())}")
  return importlib.import_module(f"{__package__}.{_PREFIX}{name}").attend


def backends() -> list[str]:
  """The names of all backends."""
  modules = (module.name for module in pkgutil.iter_modules(sys.modules[__package__].__path__))
  return sorted(name.removeprefix(_PREFIX) for name in modules if name.startswith(_PREFIX))


def write_cache(cache: jax.Array, new: jax.Array, positions: jax.Array) -> jax.Array:
  """The cache of keys or values [B H, S, K] with `new` [B, T, H, K] at slots [B, T].

  With B and H as one axis, which the products want, a CPU writes new tokens in place.
  """
  batch, length, heads, width = new.shape
  new = new.astype(cache.dtype)  # the cache may have fewer bits

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
