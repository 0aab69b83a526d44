"""Next-token logits, and their cross-entropy in chunks, so that all logits never exist at once."""

from functools import partial, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.ops.product import product
from gpt_jax.parallel.mesh import axis_size, constrain, platform

# Logits of one chunk on one device, in elements: 256 MB in float32. Chunks bound memory, and cost
# time on GPUs only, which read and write the whole gradient of the table in each.
CHUNK_ELEMENTS = 2**26
_GPU_CHUNKS = 4


def chunk_elements(of: str = "", half: bool = False) -> int:
  """Logits of one chunk on one device of a platform ("": the current one), half: in 16 bits.

  In half the bytes twice as many; their gradient takes the memory of the logits.
  """
  return CHUNK_ELEMENTS * (_GPU_CHUNKS if (of or platform()) == "gpu" else 1) * (2 if half else 1)


def _in_half(dtype: jax.typing.DTypeLike) -> bool:
  """Whether memory has the logits of a compute type in float16.

  A GPU takes longer to write and read logits than to compute them. float16 of logits and table
  loses less than float32 logits of a table in bfloat16 did (0.8 to 0.9 times the error of a loss);
  bfloat16 logits lose 2 to 6 times as much. A logit beyond 65504 is infinite, and the update is
  refused.
  """
  return platform() == "gpu" and jnp.dtype(dtype) == jnp.bfloat16


def cross_entropy(
  hidden, table, targets, weights, num_tokens: int, z_loss: float = 0.0
) -> jax.Array:
  """Weighted sum of the cross-entropies of token predictions, in nats.

  Args:
    hidden: [B, T, D].
    table: float32 [R, D], as its gradient; products with it have hidden's type. [R, D + 1]: the
      last column is a bias.
    targets, weights: [B, T].
    num_tokens: rows of the table that are tokens; the logits of all others are masked.
    z_loss: weight of (log Z)^2, Z = sum exp(logits), which each cross-entropy has added (T5).
  """
  return _cross_entropy(as_wide(hidden, table), table, targets, weights, num_tokens, z_loss)


def as_wide(hidden: jax.Array, table: jax.Array) -> jax.Array:
  """hidden [..., D], with a further feature of 1 where the table [R, D + 1] has a bias."""
  if table.shape[1] == hidden.shape[-1]:
    return hidden
  return jnp.concatenate([hidden, jnp.ones_like(hidden[..., :1])], axis=-1)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _cross_entropy(hidden, table, targets, weights, num_tokens, z_loss) -> jax.Array:
  """The gradient is computed in the forward pass, chunk by chunk along T (chunks of flattened
  tokens would add all-gathers under data parallelism), and only scaled in the backward pass.
  """
  half = _in_half(hidden.dtype)
  parts = _chunks(hidden, targets, weights, table.shape[0], half)
  # Only evaluation comes here: where a gradient is taken, _cross_entropy_forward runs instead.
  table = table.astype(jnp.float16 if half else hidden.dtype)

  def of_chunk(part):
    h, t, w = part
    return _chunk(h, t, w, table, num_tokens, z_loss, half)[0]

  if parts[0].shape[0] == 1:  # no loop over a single chunk
    return of_chunk(jax.tree.map(lambda x: x[0], parts))
  return jax.lax.scan(lambda total, part: (total + of_chunk(part), None), jnp.float32(0), parts)[0]


def _cross_entropy_forward(hidden, table, targets, weights, num_tokens, z_loss):
  # One sum for each device along the batch: a single one would cost an all-reduce of the whole
  # table in every chunk.
  groups = axis_size("data")
  low_table = table.astype(hidden.dtype)  # once, not in every chunk
  half = _in_half(hidden.dtype)
  score_table = table.astype(jnp.float16) if half else low_table
  # The sums [G, R, D] would be, on a CPU, a product with a transposed copy of all d_scores.
  transposed = platform() == "cpu"
  order = "gdr" if transposed else "grd"
  axes = ("data", None, "model") if transposed else ("data", "model", None)

  def of_chunk(part):
    h, t, w = part
    total, scores, log_sum = _chunk(h, t, w, score_table, num_tokens, z_loss, half)
    # softmax - one-hot, weighted. A masked row has probability 0 and no gradient.
    hot = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 2) == t[..., None]
    softmax = jnp.exp(scores - log_sum[..., None])
    if z_loss:  # the derivative of z (log Z)^2 is 2 z log Z softmax
      softmax *= 1 + 2 * z_loss * log_sum[..., None]
    # In the compute type for both products; the table's, a sum over all tokens, adds up in float32.
    d_scores = ((softmax - hot) * w[..., None]).astype(h.dtype)
    d_hidden = product("btr,rd->btd", d_scores, low_table)
    # [B, t, ...] -> [G, B / G, t, ...], with G devices along the batch.
    d_scores, h = (x.reshape(groups, -1, *x.shape[1:]) for x in (d_scores, h))
    d_table = jnp.einsum(f"gbtr,gbtd->{order}", d_scores, h, preferred_element_type=jnp.float32)
    return (total, constrain(d_table, *axes)), d_hidden

  parts = _chunks(hidden, targets, weights, table.shape[0], half)
  if parts[0].shape[0] == 1:
    (total, d_table), d_hidden = of_chunk(jax.tree.map(lambda x: x[0], parts))
  else:

    def body(carry, part):
      sums, d_hidden = of_chunk(part)
      return jax.tree.map(jnp.add, carry, sums), d_hidden

    shape = table.shape[::-1] if transposed else table.shape
    start = jnp.float32(0), constrain(jnp.zeros((groups, *shape), jnp.float32), *axes)
    (total, d_table), d_hidden = jax.lax.scan(body, start, parts)
    # [chunks, B, t, D] -> [B, T, D]
    d_hidden = jnp.moveaxis(d_hidden, 0, 1).reshape(hidden.shape)
  d_table = d_table.sum(0)  # the one all-reduce of the table
  if transposed:  # the barrier keeps XLA from computing it as [R, D] after all
    d_table = jax.lax.optimization_barrier(d_table).T
  return total, (d_hidden, d_table.astype(table.dtype))


def _cross_entropy_backward(num_tokens, z_loss, gradients, scale):
  # `scale` is the gradient of the result, a scalar. Targets and weights have none.
  d_hidden, d_table = ((d * scale).astype(d.dtype) for d in gradients)
  return d_hidden, d_table, None, None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _chunk(hidden, targets, weights, table, num_tokens, z_loss, half=False):
  """Weighted loss of one chunk [B, t], its logits [B, t, R] and their log-sum-exp [B, t].

  half: whether memory has the logits in float16, as the table is.
  """
  if half:  # the compiler converts and masks them wherever it reads them
    scores = product("btd,rd->btr", hidden.astype(jnp.float16), table).astype(jnp.float32)
    scores = _masked(scores, num_tokens)
    log_sum = _log_sum_exp(scores)
  else:
    scores = logits(hidden, table, num_tokens)  # float32 [B, t, R]
    log_sum = jax.nn.logsumexp(scores, axis=-1)  # log Z, [B, t]
  right = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
  # -log softmax(scores)[target], from float32 logits.
  losses = log_sum - right
  if z_loss:
    losses += z_loss * jnp.square(log_sum)
  return (losses * weights).sum(), scores, log_sum  # weight 0: padding, or not predicted


def _log_sum_exp(scores: jax.Array) -> jax.Array:
  """log sum exp over the last axis in a single reading of it; logsumexp reads it twice.

  Each partial sum is relative to the largest score in it (Milakov & Gimelshein 2018, Online
  normalizer calculation for softmax).
  """

  def join(a, b):
    (largest_a, sum_a), (largest_b, sum_b) = a, b
    ratio = jnp.exp(-jnp.abs(largest_a - largest_b))
    total = jnp.where(largest_a > largest_b, sum_a + sum_b * ratio, sum_a * ratio + sum_b)
    return jnp.maximum(largest_a, largest_b), total

  start = np.finfo(np.float32).min, np.float32(0)
  parts = scores, jnp.ones_like(scores)
  largest, total = jax.lax.reduce(parts, start, join, (scores.ndim - 1,))
  return largest + jnp.log(total)


def _chunks(hidden, targets, weights, rows, half=False):
  """Each array [B, T, ...] as [chunks, B, T / chunks, ...]; half: of logits in 16 bits."""
  batch, length = targets.shape
  # A chunk's logits are split over both mesh axes: by rows of the batch, and by rows of the table.
  most = chunk_elements(half=half) * axis_size("data") * axis_size("model")
  # The fewest chunks of equal length that fit; if none do, a chunk per position.
  count = next(
    n
    for n in range(1, length + 1)
    if length % n == 0 and batch * (length // n) * rows <= most or n == length
  )
  return tuple(
    jnp.moveaxis(x.reshape(batch, count, length // count, *x.shape[2:]), 1, 0)
    for x in (hidden, targets, weights)
  )


def logits(hidden: jax.Array, table: Any, num_tokens: int) -> jax.Array:
  """Scores of all tokens, float32 [..., R]; -1e9 for rows of the table that are no token.

  The table is [R, D], or with a bias in its last column [R, D + 1]; or what stands for it.
  """
  return _masked(all_scores(table, hidden), num_tokens)


def _masked(scores: jax.Array, num_tokens: int) -> jax.Array:
  if num_tokens == scores.shape[-1]:
    return scores
  used = jnp.arange(scores.shape[-1]) < num_tokens
  # Not -inf: the probability of -1e9 is 0 as well, and 0 * -inf would be nan.
  return jnp.where(used.reshape((1,) * (scores.ndim - 1) + (-1,)), scores, -1e9)


@singledispatch
def all_scores(table: Any, hidden: jax.Array) -> jax.Array:
  """Products of hidden [..., D] with all rows of a table, float32 [..., R].

  This is the product with an array; what stands for one in decoding registers its own.
  """
  hidden = as_wide(hidden, table)
  return jax.lax.dot_general(
    hidden,
    table.astype(hidden.dtype),
    (((hidden.ndim - 1,), (1,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def token_log_probs(scores: jax.Array | np.ndarray, ids: jax.Array | np.ndarray) -> jax.Array:
  """log P of each id, float32 [...], from logits [..., R]."""
  chosen = jnp.take_along_axis(scores, ids[..., None], axis=-1)[..., 0]
  return chosen - jax.nn.logsumexp(scores, axis=-1)
