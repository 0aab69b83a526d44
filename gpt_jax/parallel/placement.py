"""Host arrays to devices: this process's rows of the global batch, and replicated parameters."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.errors import InputError


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


def to_device(batch: Any, mesh: Mesh, microbatches: int = 1, backend: str = "jit") -> Any:
  """Host arrays [local rows, ...] to device arrays [M, B / M, ...], sharded along the second axis.

  For pmap: [local devices, M, rows, ...], as `jax.pmap` wants them.
  """

  def of_leaf(x: np.ndarray):
    x = np.asarray(x).reshape(microbatches, -1, *x.shape[1:])
    if backend == "pmap":
      devices = jax.local_device_count()
      return np.moveaxis(x.reshape(microbatches, devices, -1, *x.shape[2:]), 1, 0)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P(None, "data")), x)

  return jax.tree.map(of_leaf, batch)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, such as a loaded model's parameters, whole on every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, P()))


def _local_indices(sharding: NamedSharding, size: int):
  return sharding.addressable_devices_indices_map((size,)).values()
