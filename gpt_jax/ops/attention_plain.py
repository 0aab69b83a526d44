"""Plain attention: the scores of a block of queries as an array, softmax, dropout, sum."""

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.attention import AttentionMask, Dropout, Observer
from gpt_jax.ops.dropout import Key, row_words
from gpt_jax.ops.dropout import dropout as drop

# Finite: a query without any key, in padding, has equal probabilities and no nan.
_MASKED = -1e9


def attend(qkv, mask, bias, dropout, observe) -> jax.Array:
  """See attention.Backend."""
  # Not indexed: the gradient would be a sum of three padded arrays, not a concatenation.
  q, k, v = (x[:, :, 0].swapaxes(1, 2) for x in jnp.split(qkv, 3, axis=2))  # [B, H, T, K]
  return attend_heads(q, k, v, mask, bias, dropout, observe).swapaxes(1, 2)


def attend_heads(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: AttentionMask,
  bias: jax.Array | None = None,
  dropout: Dropout = Dropout(),  # noqa: B008  # a constant
  observe: Observer | None = None,
) -> jax.Array:
  """As attention.Backend, of arrays [B, H, T, K]."""
  length = q.shape[2]
  blocks = _blocks(mask.kind, length)
  outputs = []
  for i in range(blocks):
    queries = slice(i * length // blocks, (i + 1) * length // blocks)
    # Keys up to the last query of the block; with one block these are all keys.
    keys = slice(0, queries.stop)
    block_bias = None if bias is None else bias[..., queries, keys]
    block_dropout = dropout._replace(key=dropout.key and dropout.key.fold(i))
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


def dropout_words(
  kind: str, key: Key, rows: int, heads: int, length: int
) -> tuple[jax.Array, np.ndarray]:
  """Arguments of random_bits for dropout on each probability, for kernels that draw the bits.

  Returns:
    words [B, T], starts [H, T], uint32: the bits of row b, head h, query t and key s are
    random_bits(starts[h, t] + s, words[b, t]).
  """
  blocks = _blocks(kind, length)
  size = length // blocks  # queries in a block
  words = [row_words((rows, 1), key.fold(i)) for i in range(blocks)]
  block, query = np.divmod(np.arange(length, dtype=np.uint64), np.uint64(size))
  head = np.arange(heads, dtype=np.uint64)[:, None]
  # dropout() counts the elements of a block, [h, t, s], from 0; keys end with the block.
  starts = (head * np.uint64(size) + query) * ((block + np.uint64(1)) * np.uint64(size))
  return jnp.repeat(jnp.concatenate(words, axis=1), size, axis=1), starts.astype(np.uint32)


def _blocks(kind: str, length: int) -> int:
  """Blocks of queries that are attended one by one.

  Causal attention by blocks of queries, each over its own prefix of keys, skips most of the masked
  half of the scores.
  """
  # jax.export traces with a length that is no number.
  if kind == "causal" and isinstance(length, int) and length % 4 == 0 and length >= 128:
    # Of 4 blocks, (1 + 2 + 3 + 4) / 16 of the scores are computed, 63 %.
    return 4
  return 1


@jax.named_scope("scores")
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
  # softmax(q k^T / sqrt(K)) v (Vaswani et al. 2017, eq. 1), with scores and softmax in float32.
  scores = jnp.einsum("bhtk,bhsk->bhts", q, k, preferred_element_type=jnp.float32)
  scores = scores * q.shape[-1] ** -0.5
  if bias is not None:
    scores = scores + bias
  if allowed is not None:
    scores = jnp.where(allowed, scores, _MASKED)
  probabilities = jax.nn.softmax(scores)  # float32 [B, H, t, s]
  if observe is not None:
    observe(probabilities)
  probabilities = drop(probabilities, dropout.rate, dropout.key)
  # What is kept was scaled by 1 / (1 - rate) and is not normalized again, as in OpenAI's code.
  return jnp.einsum("bhts,bhsk->bhtk", probabilities.astype(q.dtype), v)


def _allowed(mask: AttentionMask, queries: slice, keys: slice) -> jax.Array | None:
  """bool [B or 1, 1, t, s]; None: everything."""
  allowed = None
  if mask.kind != "bidirectional":
    if isinstance(keys.stop, int):
      # A NumPy constant: the length is known when the program is traced.
      causal = np.arange(queries.start, queries.stop)[:, None] >= np.arange(keys.stop)[None, :]
      allowed = jnp.asarray(causal)[None, None]
    else:
      square = (1, 1, keys.stop, keys.stop)
      query, key = (jax.lax.broadcasted_iota(jnp.int32, square, axis) for axis in (2, 3))
      allowed = query >= key
    if mask.kind == "prefix" and mask.prefix is not None:
      # Prefix attention has one block, so `keys` are all keys.
      allowed = allowed | mask.prefix[:, None, None, keys]
  if mask.segments is not None:
    same = mask.segments[:, queries, None] == mask.segments[:, None, keys]
    allowed = same[:, None] if allowed is None else allowed & same[:, None]
  return allowed
