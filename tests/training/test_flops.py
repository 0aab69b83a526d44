"""Peaks of accelerators by the names that JAX gives them, and MFU."""

import jax
import pytest

from gpt_jax.training.reporter import PEAK_FLOPS, mfu, peak_flops


@pytest.mark.parametrize(
  "device_kind, peak",
  [
    ("TPU v2", 22.5e12),
    ("TPU v3", 61.5e12),
    ("TPU v4 lite", 138e12),
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v5p", 459e12),
    ("TPU v6 lite", 918e12),
    ("TPU v6e", 918e12),
    ("TPU7x", 2307e12 / 2),  # a JAX device is one of two cores
    ("Tesla T4", 65e12),
    ("Tesla V100-SXM2-16GB", 125e12),
    ("Tesla V100-PCIE-16GB", 112e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA GH200 480GB", 989e12),
    ("NVIDIA B200", 2250e12),
    ("NVIDIA GB200", 2500e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA L40", 181e12),
    ("NVIDIA L4", 121e12),
    ("cpu", 0.0),
    ("NVIDIA GeForce RTX 3090", 0.0),
  ],
)
def test_peak_of_a_device_kind(device_kind, peak):
  assert peak_flops(device_kind) == peak


def test_mfu_counts_all_devices(monkeypatch):
  monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 1e6)
  assert mfu(100.0, 4000.0 * jax.device_count()) == pytest.approx(0.4)


def test_mfu_is_unknown_without_a_peak_or_the_arithmetic(monkeypatch):
  assert mfu(100.0, 4000.0) is None
  monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 1e6)
  assert mfu(100.0, 0.0) is None
