"""Rows of a table by index, with a gradient that has the same bits at every run.

The gradient of a gather adds rows that have the same index. As a scatter, a GPU adds them by atomic
operations in whatever order they arrive, so two runs differ; there the same sums are made by a
sort, or as a product. CPUs and TPUs add in a fixed order and keep the scatter.

Letters: R rows of the table, D width, N indices.
"""

from functools import partial

import jax
import jax.numpy as jnp

from gpt_jax.parallel.mesh import axis_size, constrain

# A product with a one-hot matrix takes 2 R D operations per index: for 1,024 positions a hundredth
# of a small model's 6 N. Above that a sort, which takes no product.
MAX_PRODUCT_ROWS = 1024


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table: jax.Array, indices: jax.Array, dtype: str = "float32") -> jax.Array:
  """table[indices] as `dtype`, [B, …, D], for indices int [B, …]; devices split the first axis.

  table: float32 [R, D], and so is its gradient: a frequent token adds up thousands of rows. Or
    what stands for it in decoding.
  """
  return table[indices].astype(dtype)  # a gather; only its gradient needs care


def _forward(table, indices, dtype):
  return lookup(table, indices, dtype), (indices, table.shape[0])


def _backward(dtype, residuals, gradient):
  indices, rows = residuals
  sums = jax.lax.platform_dependent(
    indices,
    gradient,
    cuda=partial(_deterministic, rows=rows),
    rocm=partial(_deterministic, rows=rows),
    default=partial(_scattered, rows=rows),
  )
  return sums, None


lookup.defvjp(_forward, _backward)


@jax.custom_vjp
def select(hidden: jax.Array, at: jax.Array) -> jax.Array:
  """hidden[b, at[b, m]], [B, M, D], of hidden [B, T, D] and int at [B, M]."""
  return jnp.take_along_axis(hidden, at[..., None], axis=1)


def _select_forward(hidden, at):
  return select(hidden, at), (at, hidden.shape[1])


def _select_backward(residuals, gradient):
  at, length = residuals

  def as_product(at, gradient):
    return jax.vmap(partial(multiplied, rows=length))(at, gradient).astype(gradient.dtype)

  def as_scatter(at, gradient):
    zeros = jnp.zeros((len(at), length, gradient.shape[-1]), gradient.dtype)
    return zeros.at[jnp.arange(len(at))[:, None], at].add(gradient)

  d_hidden = jax.lax.platform_dependent(
    at, gradient, cuda=as_product, rocm=as_product, default=as_scatter
  )
  return d_hidden, None


select.defvjp(_select_forward, _select_backward)


def _scattered(indices, gradient, rows):
  zeros = jnp.zeros((rows, gradient.shape[-1]), jnp.float32)
  return zeros.at[indices].add(gradient.astype(jnp.float32))


def _deterministic(indices, gradient, rows):
  """The same sums, with a sum for each device along the batch before those of all are added."""
  groups = axis_size("data")
  width = gradient.shape[-1]  # D
  indices = constrain(indices.reshape(groups, -1), "data")
  gradient = constrain(gradient.reshape(groups, -1, width), "data")
  sums = multiplied if rows <= MAX_PRODUCT_ROWS else sorted_sums
  return jax.vmap(partial(sums, rows=rows))(indices, gradient).sum(0)


def multiplied(indices: jax.Array, values: jax.Array, rows: int) -> jax.Array:
  """Sums the values [N, D] that share an index, as a matrix product: float32 [R, D]."""
  one_hot = jax.nn.one_hot(indices, rows, dtype=values.dtype)
  return jnp.einsum(
    "nr,nd->rd",
    one_hot,
    values,
    precision=jax.lax.Precision.HIGHEST,  # a GPU would round float32 to 10 bits
    preferred_element_type=jnp.float32,
  )


def sorted_sums(indices: jax.Array, values: jax.Array, rows: int) -> jax.Array:
  """The same sums from sorted values: about 2 N D additions, and log2(N) passes over them.

  A scan adds up the values of each index; the last one that has the index holds the sum. Summing
  all and taking differences would be shorter and would lose digits.
  """
  indices, order = jax.lax.sort_key_val(indices, jnp.arange(indices.size))
  values = values[order].astype(jnp.float32)
  # Where the next index begins.
  begins = jnp.concatenate([jnp.ones(1, bool), indices[1:] != indices[:-1]])

  def add(left, right):
    begins, total = right
    # A segmented sum: a total in which an index begins forgets all to the left of it.
    return left[0] | begins, jnp.where(begins[:, None], total, left[1] + total)

  _, totals = jax.lax.associative_scan(add, (begins, values))
  # One past the last value of each row of the table; that value has the whole sum.
  after = jnp.searchsorted(indices, jnp.arange(rows), side="right")
  occurs = jnp.diff(after, prepend=0) > 0
  return jnp.where(occurs[:, None], totals[jnp.maximum(after - 1, 0)], 0)
