"""The machine and the versions that figures belong to."""

import importlib.metadata
import os
import platform

import jax

_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


def machine() -> dict[str, str | int]:
  """Device and processor, its extensions for matrix products, and versions, by their names."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "platform": device.platform,
    "devices": jax.device_count(),
    "processor": _processor("model name") or platform.processor() or platform.machine(),
    "extensions": " ".join(x for x in _EXTENSIONS if x in _processor("flags", "Features").split()),
    "cpus": os.cpu_count() or 1,
    "python": platform.python_version(),
    "jax": jax.__version__,
    "jaxlib": importlib.metadata.version("jaxlib"),
  }


def _processor(*fields: str) -> str:
  """The value of the first processor's field, by any of its names; "" where Linux does not say."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
      lines = [line.partition(":") for line in file]
  except OSError:
    return ""
  values = [value.strip() for name, _, value in lines if name.strip() in fields]
  return values[0] if values else ""
