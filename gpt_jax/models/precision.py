"""The type that a trunk computes in on the devices at hand."""

import dataclasses
import functools
import re
import warnings
from typing import Any

import jax

_FIRST_WITH_BFLOAT16 = 8.0  # CUDA compute capability: A100, RTX 30 and later; not V100, T4, RTX 20


def for_devices(trunk: Any) -> Any:
  """The trunk's config, with float32 in place of bfloat16 where a GPU lacks it, and a warning.

  Parameters and checkpoints are the same. float16 is left to the user: it needs a loss scale, which
  is part of a run's state.
  """
  if trunk.dtype != "bfloat16":
    return trunk
  for device in jax.devices():
    capability = getattr(device, "compute_capability", "")
    is_cuda = re.fullmatch(r"\d+\.\d+", str(capability))
    if is_cuda and float(capability) < _FIRST_WITH_BFLOAT16:
      _warn(device.device_kind, str(capability))
      return dataclasses.replace(trunk, dtype="float32")
  return trunk


@functools.cache  # once, since every program of a run asks
def _warn(kind: str, capability: str) -> None:
  warnings.warn(
    f"trunk.dtype=bfloat16: {kind} has none (compute capability {capability}, below "
    f"{_FIRST_WITH_BFLOAT16}); computing in float32. config.trunk.dtype=float16 is faster there",
    stacklevel=2,
  )
