"""Rows of a table by index: the forms of the gradient's sums, on one device and on several."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.ops import lookup as module
from gpt_jax.ops.lookup import lookup, multiplied, select, sorted_sums
from gpt_jax.parallel.mesh import MeshConfig, make_mesh

R, N, D = 40, 500, 3
RNG = np.random.default_rng(0)
INDICES = (RNG.zipf(1.3, N) % R).astype(np.int32)  # a few are frequent
INDICES[(INDICES > 20) & (INDICES < 30)] = 7  # some never occur
VALUES = RNG.normal(size=(N, D)).astype(np.float32)


def exact(rows=R, indices=INDICES, values=VALUES):
  sums = np.zeros((rows, D))
  np.add.at(sums, indices, values.astype(np.float64))
  return sums


@pytest.mark.parametrize("form", [sorted_sums, multiplied])
def test_sums_of_equal_indices(form):
  assert len(set(INDICES)) < R
  sums = jax.jit(partial(form, rows=R))(INDICES, VALUES)
  np.testing.assert_allclose(sums, exact(), atol=1e-4)
  once = np.asarray(jax.jit(partial(form, rows=R))(INDICES[:1], VALUES[:1]))
  np.testing.assert_array_equal(once, exact(R, INDICES[:1], VALUES[:1]).astype(np.float32))


@pytest.mark.parametrize("form", [sorted_sums, multiplied])
def test_sums_of_bfloat16_are_exact(form):
  """In bfloat16 a sum of ones ends at 256."""
  ones = jnp.ones((N, D), jnp.bfloat16)
  sums = jax.jit(partial(form, rows=R))(np.zeros(N, np.int32), ones)
  assert sums.dtype == jnp.float32
  np.testing.assert_array_equal(sums[0], N)
  np.testing.assert_array_equal(sums[1:], 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lookup(dtype):
  table = RNG.normal(size=(R, D)).astype(np.float32)
  indices = INDICES.reshape(5, 100)
  rows, backward = jax.vjp(lambda table: lookup(table, indices, dtype), table)
  assert rows.dtype == dtype
  np.testing.assert_array_equal(rows, jnp.asarray(table[indices]).astype(dtype))
  gradient = jnp.asarray(VALUES.reshape(5, 100, D)).astype(dtype)
  (found,) = backward(gradient)
  assert found.dtype == jnp.float32
  values = np.asarray(gradient.astype(jnp.float32)).reshape(N, D)
  np.testing.assert_allclose(found, exact(values=values), atol=1e-4)


def test_select():
  hidden = RNG.normal(size=(4, 7, D)).astype(np.float32)
  at = np.array([[0, 3, 3], [6, 0, 1], [2, 2, 2], [5, 4, 3]], np.int32)
  chosen, backward = jax.vjp(lambda hidden: select(hidden, at), hidden)
  np.testing.assert_array_equal(chosen, np.take_along_axis(hidden, at[..., None], 1))
  gradient = RNG.normal(size=(4, 3, D)).astype(np.float32)
  flat = (np.arange(4)[:, None] * 7 + at).reshape(-1)
  expected = exact(28, flat, gradient.reshape(-1, D)).reshape(4, 7, D)
  np.testing.assert_allclose(backward(gradient)[0], expected, atol=1e-5)


@pytest.mark.parametrize("rows", [R, module.MAX_PRODUCT_ROWS + 1])
def test_every_device_sorts_its_own(rows):
  """On a mesh, as on GPUs: only the sums of all devices travel."""
  mesh = make_mesh(MeshConfig(data=4), jax.devices()[:4])
  batch = NamedSharding(mesh, P("data"))
  indices = jax.device_put(INDICES.reshape(4, -1), batch)
  gradient = jax.device_put(VALUES.reshape(4, -1, D), batch)
  with jax.set_mesh(mesh):
    compiled = jax.jit(partial(module._deterministic, rows=rows)).lower(indices, gradient).compile()
  np.testing.assert_allclose(compiled(indices, gradient), exact(rows), atol=1e-4)
  assert f"{N},{D}]" not in compiled.as_text(), "a device has all values"
  moved = set(re.findall(r" (all-\w+|collective-\w+|reduce-scatter)\(", compiled.as_text()))
  assert moved <= {"all-reduce"}
  assert bool(re.search(r" sort\(", compiled.as_text())) == (rows > module.MAX_PRODUCT_ROWS)
