"""Model FLOP/s utilization (MFU), and the peak FLOP/s of known accelerators."""

import jax

# Peak dense FLOP/s of one JAX device, without sparsity, by the beginning of its device_kind; the
# longest match counts. bfloat16; float16 on V100 and T4, whose tensor cores have no bfloat16.
#
# TPU: https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of each
# version; v4 lite (v4i): Jouppi et al. 2021, "Ten Lessons From Three Generations Shaped Google's
# TPUv4i", table 1. A JAX device is a TensorCore, half a chip, on v2, v3 and TPU7x (2,307 TFLOP/s a
# chip; https://docs.cloud.google.com/tpu/docs/tpu7x, "Dual-chiplet architecture"); a chip on all
# others.
# NVIDIA: the data sheets of V100, T4, A100, H100, H200, GH200, L4, L40, L40S, and of the HGX B200
# and GB200 NVL72 systems, whose sparse figures are halved.
PEAK_FLOPS = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4 lite": 138e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v6": 918e12,
  "TPU7x": 1153.5e12,
  "Tesla T4": 65e12,
  "Tesla V100": 125e12,
  "Tesla V100-PCIE": 112e12,
  "NVIDIA A100": 312e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA GH200": 989e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA GB200": 2500e12,
  "NVIDIA L40S": 362e12,
  "NVIDIA L40": 181e12,
  "NVIDIA L4": 121e12,
}


def peak_flops(device_kind: str) -> float:
  """Dense FLOP/s of one device; 0 if unknown."""
  # The longest, since "TPU v5" begins "TPU v5 lite" too.
  matches = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
  return PEAK_FLOPS[max(matches, key=len)] if matches else 0.0


def mfu(tokens_per_second: float, flops_per_token: float) -> float | None:
  """Model FLOP/s utilization: the share of all devices' peak that the model's arithmetic uses.

  Args:
    tokens_per_second: of the whole run, on all hosts.
    flops_per_token: of a training step (see the trunk's flops_per_token); 0 if unknown.

  Returns:
    None if the peak or the model's arithmetic is unknown.
  """
  peak = peak_flops(jax.devices()[0].device_kind) * jax.device_count()
  if not peak or not flops_per_token:
    return None
  return tokens_per_second * flops_per_token / peak
