"""Specifications of accelerators: memory, bandwidths, peak FLOP/s."""

from collections.abc import Mapping
from typing import NamedTuple

from gpt_jax.training.reporter import peak_flops

# TPU: JAX's own table, by JAX's name of the chip and the TensorCores of one device. Interconnect:
# both directions of all axes of the torus (Austin et al. 2025, How to Scale Your Model, chapter 2).
_TPUS = {
  "TPU v4": ("TPU_V4", 2, 2.7e11),
  "TPU v5 lite": ("TPU_V5E", 1, 1.8e11),
  "TPU v5": ("TPU_V5P", 2, 5.4e11),
  "TPU v6 lite": ("TPU_V6E", 1, 3.6e11),
}
# NVIDIA's data sheets: bytes of memory, bytes/s from memory, bytes/s of NVLink in one direction.
_GPUS = {
  "Tesla T4": (16e9, 3.2e11, 1.6e10),
  "Tesla V100": (16e9, 9e11, 1.5e11),
  "NVIDIA L4": (24e9, 3e11, 3.2e10),
  "NVIDIA A100": (80e9, 2.0e12, 3e11),
  "NVIDIA H100": (80e9, 3.35e12, 4.5e11),
  "NVIDIA H200": (141e9, 4.8e12, 4.5e11),
  "NVIDIA B200": (180e9, 7.7e12, 9e11),
}
# JAX's name of a GPU by a short one, such as h100.
GPU_KINDS = {kind.split()[-1].lower(): kind for kind in _GPUS}


class Chip(NamedTuple):
  """One JAX device.

  Attributes:
    memory: bytes.
    bandwidth: bytes/s between memory and cores.
    interconnect: bytes/s to the other devices.
    flops: dense FLOP/s, see training.reporter.
  """

  memory: float
  bandwidth: float
  interconnect: float
  flops: float

  def bounds(
    self, flops: float, traffic: float, collectives: Mapping[str, float]
  ) -> dict[str, float]:
    """Seconds that a program takes at least for its "arithmetic", "memory" and "network"; {} if
    the chip's FLOP/s are not known.

    Args:
      flops: of one device.
      traffic: bytes between the memory and the cores of one device.
      collectives: operation -> bytes on one device, see collectives.bytes_moved.
    """
    if not self.flops:
      return {}
    # An all-reduce sends every byte twice.
    sent = sum(collectives.values()) + collectives.get("all-reduce", 0)
    return {
      "arithmetic": flops / self.flops,
      "memory": traffic / self.bandwidth,
      # Collectives may overlap with arithmetic, so these are bounds and not summed.
      "network": sent / self.interconnect,
    }


def find_chip(device_kind: str) -> Chip | None:
  """The Chip of JAX's device kind; None if it is not known."""
  flops = peak_flops(device_kind)
  if device_kind in _TPUS:
    from jax.experimental.pallas import tpu

    name, cores, interconnect = _TPUS[device_kind]
    info = tpu.get_tpu_info_for_chip(tpu.ChipVersion[name], cores)
    memory, bandwidth = info.hbm_capacity_bytes, info.mem_bw_bytes_per_second
    return Chip(cores * memory, cores * bandwidth, interconnect, flops)
  matches = [name for name in _GPUS if device_kind.startswith(name)]
  return Chip(*_GPUS[max(matches, key=len)], flops) if matches else None
