"""Host arrays to devices: this process's rows of the global batch, and replicated parameters."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Batch
from gpt_jax.errors import InputError


def check_batch(
  size: int, devices: int, microbatches: int = 1, name: str = "data.batch_size"
) -> None:
  """Raises InputError if a batch does not divide over devices and microbatches."""
  parts = devices * microbatches
  if size % parts:
    raise InputError(
      f"{name}={size}: must be a multiple of {parts} ({devices} devices along the batch x "
      f"{microbatches} microbatches); use {max(parts, size // parts * parts)}"
    )


def local_rows(size: int, mesh: Mesh, microbatches: int = 1) -> np.ndarray:
  """The rows of the global batch that this process provides, in the order of `to_device`."""
  # [M, B / M]: a process has its devices' columns of every microbatch, not M of its own.
  rows = np.arange(size).reshape(microbatches, -1)
  sharding = NamedSharding(mesh, P("data"))
  indices = sharding.addressable_devices_indices_map((rows.shape[1],)).values()
  # By their first row: devices along `model` hold the same rows, in whatever order.
  columns = [index[0] for index in indices if index is not None]
  parts = {int(rows[0][column][0]): rows[:, column] for column in columns}
  return np.concatenate([parts[first] for first in sorted(parts)], axis=1).reshape(-1)


def local_part(batch: Any, mesh: Mesh, microbatches: int = 1) -> Any:
  """`local_rows` of each array of a global batch, however many rows each has."""
  return jax.tree.map(lambda x: x[local_rows(len(x), mesh, microbatches)], batch)


def anchors_of_parts(batch: Batch, rows: np.ndarray, part: int) -> Batch:
  """The batch with anchors that count the rows of their part of the global batch: a head sees one
  part at a time, a microbatch or, under pmap, a device's share of one.

  Args:
    batch: anchors of row r of its own rows are r * T + column.
    rows: the numbers of these rows in the global batch.
    part: rows in a part.
  """
  if batch.labels is None:
    return batch
  length = batch.rows.inputs.shape[1]
  row, column = np.divmod(batch.labels.anchors, length)  # [N, C] each
  anchors = (rows[row] % part * length + column).astype(np.int32)
  return batch._replace(labels=batch.labels._replace(anchors=anchors))


def to_device(batch: Any, mesh: Mesh, microbatches: int = 1, backend: str = "jit") -> Any:
  """Host arrays [local rows, ...] to device arrays [M, B / M, ...], sharded along the second axis;
  for pmap [local devices, M, rows, ...].
  """

  def place(x: np.ndarray):
    x = np.asarray(x).reshape(microbatches, -1, *x.shape[1:])  # [M, rows / M, …]
    if backend == "pmap":
      devices = jax.local_device_count()
      # pmap maps over the first axis: [M, devices, rows, …] -> [devices, M, rows, …].
      return np.moveaxis(x.reshape(microbatches, devices, -1, *x.shape[2:]), 1, 0)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P(None, "data")), x)

  return jax.tree.map(place, batch)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, such as a loaded model's parameters, copied to every device of the mesh."""
  return jax.device_put(tree, NamedSharding(mesh, P()))
