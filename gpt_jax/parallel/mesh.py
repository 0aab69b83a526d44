"""The device mesh: axes `data` (the batch) and `model` (tensor parallelism)."""

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from gpt_jax.config import Config, option, register
from gpt_jax.errors import InputError

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


def axis_size(name: str) -> int:
  """Devices along an axis of the current mesh; 1 without a mesh, or under pmap."""
  return jax.sharding.get_abstract_mesh().shape.get(name, 1)
