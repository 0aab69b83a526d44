"""Where arrays live: the (data, model) mesh, path rules for parameters, and placing a host's part
of a batch.

The model knows nothing of this but `constrain`. One training step serves jit and pmap: a batch
always reaches it as [M, B / M, ...], M microbatches, of which a device holds its columns.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.config import option, validate
from gpt_jax.errors import InputError

# (regular expression on the parameter's path, partition of its axes)
Rules = Sequence[tuple[str, P]]
PMAP_AXIS = "batch"


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """How the devices are used."""

  data: int = option(
    0, "devices along the batch; 0: all that `model` leaves", unit="devices", low=0
  )
  model: int = option(
    1, "devices along heads, hidden units and vocabulary (tensor parallel)", unit="devices", low=1
  )
  fsdp: bool = option(False, "also shard parameters and optimizer state along `data`")
  via: str = option("jit", "how a step is run", choices=("jit", "pmap"))

  def __post_init__(self):
    validate(self)
    if self.via == "pmap" and (self.model > 1 or self.fsdp):
      raise InputError(
        "mesh.via: pmap is data parallel only; use jit, or mesh.model=1 and mesh.fsdp=false"
      )


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh with axes `data` and `model`. Raises InputError where the devices do not divide so."""
  devices = jax.devices() if devices is None else devices
  data = config.data or len(devices) // config.model
  if data * config.model != len(devices):
    raise InputError(
      f"mesh.data x mesh.model: {data} x {config.model} is not the number of devices, {len(devices)} "
      f"({devices[0].platform}); choose two factors of {len(devices)}"
    )
  # Explicit axes, make_mesh's default, want shardings in the model's types, which Linen does not
  # carry.
  return jax.make_mesh(
    (data, config.model), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices
  )


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

  Without it FSDP and tensor parallelism together make XLA rematerialise whole activations.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or "data" not in mesh.axis_names or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, P(*axes))


def axis_size(name: str) -> int:
  """Devices along an axis of the mesh that a step is traced under; 1 without a mesh, or under
  pmap.
  """
  return jax.sharding.get_abstract_mesh().shape.get(name, 1)


def check_batch(
  size: int, mesh: Mesh, microbatches: int = 1, name: str = "data.batch_size"
) -> None:
  """Raises InputError where a batch cannot be shared evenly."""
  parts = mesh.shape["data"] * microbatches
  if size % parts:
    raise InputError(
      f"{name}={size}: must be a multiple of {parts} ({mesh.shape['data']} devices along the batch x {microbatches} "
      f"microbatches); use {max(parts, size // parts * parts)}"
    )


def local_rows(size: int, mesh: Mesh, microbatches: int = 1) -> np.ndarray:
  """The rows of the global batch, in the order of `place`, that this process has to provide."""
  sharding = NamedSharding(mesh, P("data"))
  rows = np.arange(size).reshape(microbatches, -1)
  # In the order of the array, whatever that of the devices; those along `model` hold the same rows.
  parts = {
    tuple(rows[0, index[0]]): rows[:, index[0]] for index in _local_indices(sharding, rows.shape[1])
  }
  return np.concatenate([parts[part] for part in sorted(parts)], axis=1).reshape(-1)


def local_part(batch: Any, mesh: Mesh, microbatches: int = 1) -> Any:
  """What this process provides of a whole batch: `local_rows` of each array, however many rows
  it has.
  """
  return jax.tree.map(lambda x: x[local_rows(len(x), mesh, microbatches)], batch)


def place(batch: Any, mesh: Mesh, microbatches: int = 1, via: str = "jit") -> Any:
  """Host arrays [local rows, ...] to device arrays [M, B / M, ...], sharded along the second axis.

  For pmap: [local devices, M, rows, ...], as `jax.pmap` wants them.
  """

  def of_leaf(x: np.ndarray):
    x = np.asarray(x).reshape(microbatches, -1, *x.shape[1:])
    if via == "pmap":
      devices = jax.local_device_count()
      return np.moveaxis(x.reshape(microbatches, devices, -1, *x.shape[2:]), 1, 0)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P(None, "data")), x)

  return jax.tree.map(of_leaf, batch)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, such as a loaded model's parameters, whole on every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, P()))


def _local_indices(sharding: NamedSharding, size: int):
  return sharding.addressable_devices_indices_map((size,)).values()
