"""Path rules that partition parameters and optimizer state; layout constraints on activations."""

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.errors import InputError

# (regular expression on the parameter's path, partition of its axes)
Rules = Sequence[tuple[str, P]]


def partition(tree: Any, rules: Rules, mesh: Mesh, fsdp: bool = False) -> Any:
  """A NamedSharding for every leaf of a parameter tree or of anything that mirrors one (optimizer
  moments).

  The first rule whose expression is found in the leaf's path decides which axes `model` shards, no
  rule means none. With `fsdp`, `data` then shards the largest axis that is left and divides. A
  dimension that does not divide by its
  mesh axis is an error: sharding never silently falls back.
  """

  def of_leaf(path, leaf) -> NamedSharding:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    spec = (
      next((rule for pattern, rule in rules if re.search(pattern, name)), P())
      if mesh.shape["model"] > 1
      else P()
    )
    axes = [*spec, *[None] * (leaf.ndim - len(spec))]
    for size, axis in zip(leaf.shape, axes, strict=True):
      if axis and size % mesh.shape[axis]:
        raise InputError(
          f"mesh.{axis}={mesh.shape[axis]}: does not divide the axis of size {size} of {name} {leaf.shape}"
        )
    if fsdp:
      free = [
        i for i, axis in enumerate(axes) if axis is None and leaf.shape[i] % mesh.shape["data"] == 0
      ]
      if free:
        axes[max(free, key=lambda i: leaf.shape[i])] = "data"
    return NamedSharding(mesh, P(*axes))

  return jax.tree_util.tree_map_with_path(of_leaf, tree)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Fixes the layout of an activation; nothing without a mesh, or under pmap.

  Without it FSDP and tensor parallelism together make XLA rematerialize whole activations.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or "data" not in mesh.axis_names or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, P(*axes))
