"""The device mesh, with axes `data` (the batch) and `model` (tensor parallelism); path rules that
partition parameters and optimizer state over it; layout constraints on activations.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError

# (regular expression on the parameter's path, partition of its axes)
Rules = Sequence[tuple[str, P]]
PMAP_AXIS = "batch"  # the axis of devices within pmap, which has no mesh


@register("mesh")
@dataclasses.dataclass(frozen=True)
class MeshConfig(Config):
  """How a run uses the devices."""

  data: int = option(0, "devices along the batch; 0: all that remain", unit="devices", low=0)
  model: int = option(
    1,
    "devices along heads, hidden units and vocabulary (tensor parallel)",
    unit="devices",
    low=1,
    needs="backend=jit",
  )
  fsdp: bool = option(
    False, "also shard parameters and optimizer state along `data`", needs="backend=jit"
  )
  backend: str = option(
    "jit", "how a step is compiled; pmap: data parallel only", choices=("jit", "pmap")
  )
  cpu_products: str = option(
    "xla",
    "matrix products of a step on a CPU: XLA's own, oneDNN's (jax 0.11), or auto: the faster ones",
    choices=("xla", "onednn", "auto"),
    needs="backend=jit",
  )


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh with axes `data` and `model`. Raises InputError if the devices do not divide."""
  devices = jax.devices() if devices is None else devices
  # If `model` does not divide the devices the product below differs, and raises.
  data = config.data or len(devices) // config.model
  if data * config.model != len(devices):
    count = f"there {'is 1' if len(devices) == 1 else f'are {len(devices)}'}"
    if config.data:
      wanted = f"mesh.data={data} and mesh.model={config.model} need {data * config.model} devices"
    else:
      wanted = f"mesh.model={config.model} needs a multiple of {config.model} devices"
    raise InputError(f"{wanted}; {count} ({devices[0].platform})")
  # make_mesh's default, explicit axes, needs shardings in array types, which Linen does not carry.
  return jax.make_mesh(
    (data, config.model), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices
  )


def platform() -> str:
  """The platform of the current computation: cpu, gpu or tpu."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
  """JAX's name of the devices of the current computation, which need not be here."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0].device_kind if device is None else device.device_kind


def axis_size(name: str) -> int:
  """Devices along an axis of the current mesh; 1 without a mesh, or under pmap."""
  return jax.sharding.get_abstract_mesh().shape.get(name, 1)


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
