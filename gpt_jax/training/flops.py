"""Peak FLOP/s of known accelerators, and model FLOP/s utilization (MFU)."""

# Dense bfloat16 FLOP/s of one JAX device, from the vendors' data sheets, by the beginning of its
# device_kind; the first match counts. A device of TPU v2 and v3 is a core, half a chip.
PEAK = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v6": 918e12,
  "NVIDIA A100": 312e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA L40S": 362e12,
  "NVIDIA L40": 181e12,
  "NVIDIA L4": 121e12,
}


def peak_flops(device_kind: str) -> float:
  """Dense bfloat16 FLOP/s of one device; 0 where it is not known."""
  return next((peak for start, peak in PEAK.items() if device_kind.startswith(start)), 0.0)
