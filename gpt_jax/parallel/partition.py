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
  """A NamedSharding for every leaf of a parameter tree, or of a tree that mirrors one (moments).

  The first rule whose expression occurs in the leaf's path says which axes `model` shards; without
  a rule, none. With `fsdp`, `data` shards the largest of the other axes that it divides.
  """

  def leaf_sharding(path, leaf) -> NamedSharding:
    name = path_name(path)
    # Rules search: a moment's path is the parameter's after a prefix such as opt_state/…/mu.
    # The first one counts, so rules may go from special to general.
    found = (spec for pattern, spec in rules if re.search(pattern, name))
    spec = next(found, P()) if mesh.shape["model"] > 1 else P()
    if len(spec) > leaf.ndim or leaf.size == 1:  # Adafactor's means over an axis, its placeholders
      spec = P()
    axes = [*spec, *[None] * (leaf.ndim - len(spec))]
    for size, axis in zip(leaf.shape, axes, strict=True):
      if axis and size % mesh.shape[axis]:
        raise InputError(
          f"mesh.{axis}={mesh.shape[axis]}: does not divide the axis of size {size} of {name} "
          f"{leaf.shape}"
        )
    # After the rules, so that `data` takes an axis which `model` has left.
    devices = mesh.shape["data"]
    free = [i for i, axis in enumerate(axes) if axis is None and leaf.shape[i] % devices == 0]
    if fsdp and free:
      axes[max(free, key=lambda i: leaf.shape[i])] = "data"
    return NamedSharding(mesh, P(*axes))

  return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


def path_name(path: tuple) -> str:
  """The path of an array in a tree, such as "params/trunk/embedding"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Fixes the sharding of an activation; does nothing without a mesh, or under pmap.

  Without it, FSDP with tensor parallelism makes XLA rematerialize whole activations.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or "data" not in mesh.axis_names or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, P(*axes))
