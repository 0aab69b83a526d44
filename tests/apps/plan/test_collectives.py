"""Bytes between devices, against programs whose traffic is known."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.apps.plan.collectives import bytes_moved
from gpt_jax.parallel.mesh import MeshConfig, make_mesh

ROWS, WIDTH = 64, 24
WHOLE = 4 * ROWS * WIDTH  # bytes of the array in float32


@pytest.fixture(scope="module")
def moved():
  """moved(function): of a function of [ROWS, WIDTH], divided over 8 devices along the rows."""
  mesh = make_mesh(MeshConfig())

  def compile(function, out=None):
    mapped = jax.shard_map(
      function, mesh=mesh, in_specs=P("data"), out_specs=out or P(None), check_vma=False
    )
    sharded = jax.ShapeDtypeStruct(
      (ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("data"))
    )
    return bytes_moved(jax.jit(mapped).lower(sharded).compile().as_text())

  return compile


def test_an_all_reduce_is_what_goes_in(moved):
  assert moved(lambda x: jax.lax.psum(x, "data")) == {"all-reduce": WHOLE // 8}


def test_an_all_gather_is_what_comes_out(moved):
  assert moved(lambda x: jax.lax.all_gather(x, "data", tiled=True)) == {"all-gather": WHOLE}


def test_a_reduce_scatter_is_what_goes_in(moved):
  scatter = partial(jax.lax.psum_scatter, axis_name="data", tiled=True)
  assert moved(scatter, P("data")) == {"reduce-scatter": WHOLE // 8}


def test_a_permutation_and_other_types_count_too(moved):
  shift = [(i, (i + 1) % 8) for i in range(8)]

  def both(x):
    return jax.lax.ppermute(x, "data", shift), jax.lax.psum((x > 0).astype(jnp.int16), "data")

  sizes = moved(both, (P("data"), P(None)))
  assert sizes["collective-permute"] == WHOLE // 8
  assert sizes["all-reduce"] in (WHOLE // 16, WHOLE // 8)  # a compiler may add in 32 bits


def test_loops_count_as_often_as_they_run(moved):
  def outer(x, _):
    def inner(y, _):
      return jnp.tanh(jax.lax.psum(y, "data")), None

    return jax.lax.scan(inner, x, None, length=3)[0], None

  assert moved(lambda x: jax.lax.scan(outer, x, None, length=5)[0]) == {
    "all-reduce": 15 * WHOLE // 8
  }


def test_a_program_of_one_device_moves_nothing():
  assert bytes_moved(jax.jit(jnp.tanh).lower(1.0).compile().as_text()) == {}
