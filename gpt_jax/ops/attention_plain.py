"""Plain attention: the scores of a block of queries as an array, softmax, dropout, sum."""

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.attention import AttentionMask, Dropout, Observer
from gpt_jax.ops.dropout import dropout as drop

_MASKED = -1e9  # what a masked score becomes


def attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None,
  dropout: Dropout,
  observe: Observer | None,
) -> jax.Array:
  """See attention.Backend."""
  length = q.shape[2]
  # Causal attention by blocks of queries, each over its own prefix of keys, skips most of the
  # masked half of the scores.
  blocks = 1
  # jax.export traces with a length that is no number.
  if mask.kind == "causal" and isinstance(length, int) and length % 4 == 0 and length >= 128:
    blocks = 4
  outputs = []
  for i in range(blocks):
    queries = slice(i * length // blocks, (i + 1) * length // blocks)
    keys = slice(0, queries.stop)
    block_bias = None
    if bias is not None:
      block_bias = bias[..., queries, keys]
    block_dropout = dropout
    if dropout.key is not None:
      block_dropout = dropout._replace(key=dropout.key.fold(i))
    output = attend_allowed(
      q[:, :, queries],
      k[:, :, keys],
      v[:, :, keys],
      _allowed(mask, queries, keys),
      block_bias,
      block_dropout,
      observe,
    )
    outputs.append(output)
  return jnp.concatenate(outputs, axis=2)


def attend_allowed(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  allowed: jax.Array | None,
  bias: jax.Array | None = None,
  dropout: Dropout = Dropout(),  # noqa: B008  # a constant
  observe: Observer | None = None,
) -> jax.Array:
  """Attention of q [B, H, t, K] over k and v [B, H, s, K] where allowed, bool [B or 1, 1, t, s]."""
  scores = jnp.einsum("bhtk,bhsk->bhts", q, k, preferred_element_type=jnp.float32)
  scores = scores * q.shape[-1] ** -0.5
  if bias is not None:
    scores = scores + bias
  if allowed is not None:
    scores = jnp.where(allowed, scores, _MASKED)
  probabilities = jax.nn.softmax(scores)
  if observe is not None:
    observe(probabilities)
  probabilities = drop(probabilities, dropout.rate, dropout.key)
  return jnp.einsum("bhts,bhsk->bhtk", probabilities.astype(q.dtype), v)


def _allowed(mask: AttentionMask, queries: slice, keys: slice) -> jax.Array | None:
  """bool [B or 1, 1, t, s]; None: everything."""
  allowed = None
  if mask.kind != "bidirectional":
    if isinstance(keys.stop, int):
      causal = np.arange(queries.start, queries.stop)[:, None] >= np.arange(keys.stop)[None, :]
      allowed = jnp.asarray(causal)[None, None]
    else:
      square = (1, 1, keys.stop, keys.stop)
      query, key = (jax.lax.broadcasted_iota(jnp.int32, square, axis) for axis in (2, 3))
      allowed = query >= key
    if mask.kind == "prefix" and mask.prefix is not None:
      allowed = allowed | mask.prefix[:, None, None, keys]
  if mask.segments is not None:
    same = mask.segments[:, queries, None] == mask.segments[:, None, keys]
    allowed = same[:, None] if allowed is None else allowed & same[:, None]
  return allowed
