"""The bytes that a training step moves, by operation and by cause; nothing runs."""

from typing import Any, NamedTuple

from gpt_jax.apps import traffic
from gpt_jax.apps.timing import Measured
from gpt_jax.apps.topologies import compile_step, find_chip, find_devices, why_not_compiled
from gpt_jax.apps.traffic import Kernel
from gpt_jax.errors import InputError
from gpt_jax.programs.pretrain import PretrainConfig

_ROWS = 40  # operations that are printed; the file has all


class Audit(NamedTuple):
  """What one device moves in a step."""

  kernels: list[Kernel]
  ideal: dict[str, float]  # bytes of a fused form, by cause
  rate: float  # bytes/s; 0: unknown

  def milliseconds(self, moved: float) -> float:
    return 1e3 * moved / self.rate if self.rate else 0.0

  def lines(self) -> list[str]:
    """A table of the operations that move most."""
    lines = [f"{'kernels':>7} {'read GB':>8} {'written':>8} {'ms':>7} {'TFLOP':>6}  operation"]
    for kernel in self.kernels[:_ROWS]:
      lines.append(
        f"{kernel.runs:7,} {kernel.read / 1e9:8.3f} {kernel.written / 1e9:8.3f} "
        f"{self.milliseconds(kernel.moved):7.3f} {kernel.flops / 1e12:6.2f}  "
        f"{kernel.path} | {kernel.kind} | {kernel.result[:60]} | {kernel.cause}"
      )
    return lines

  def sums(self) -> Measured:
    """Kernels and bytes of each cause, the bytes of a fused form, and the sums."""
    causes = traffic.by_cause(self.kernels)
    for cause, kernel in causes.items():
      yield f"{cause}, kernels", kernel.runs, ""
      yield f"{cause}, bytes", kernel.moved / 1e9, "GB"
      if cause in self.ideal:
        yield f"{cause}, bytes of a fused form", self.ideal[cause] / 1e9, "GB"
      if self.rate:
        yield f"{cause}, at the bandwidth", self.milliseconds(kernel.moved), "ms"
    yield "kernels", sum(kernel.runs for kernel in causes.values()), ""
    yield "bytes", sum(kernel.moved for kernel in causes.values()) / 1e9, "GB"
    yield "products", causes[traffic.PRODUCTS].flops / 1e12, "TFLOP"


def check_topology(topology: str) -> None:
  """Refuses devices that nothing can compile for; to be called before JAX is asked for others."""
  devices, kind = find_devices(topology)
  if devices[0] is None:
    raise InputError(f"--topology={topology}: {why_not_compiled(kind)}")


def audit(config: PretrainConfig, topology: str) -> Audit:
  """The audit of a config's step, on devices that need not be there."""
  devices, kind = find_devices(topology)
  chip = find_chip(kind)
  print(f"compiling the step for {len(devices)} x {kind}, which may take minutes", flush=True)
  found = traffic.kernels(compile_step(config, devices).as_text())
  rate = traffic.BANDWIDTH_SHARE * chip.bandwidth if chip else 0.0
  return Audit(found, ideal_bytes(config, len(devices)), rate)


def ideal_bytes(config: PretrainConfig, devices: int) -> dict[str, float]:
  """What each cause would move on a device where nothing is read or written twice.

  Known of Transformers whose model is not split over devices; see the README.
  """
  trunk: Any = config.trunk
  if "blocks" not in trunk.gives or config.mesh.model > 1 or config.mesh.fsdp:
    return {}
  width = 4 if trunk.dtype == "float32" else 2
  tokens = config.data.batch_size * config.data.length / devices
  hidden = tokens * trunk.width * width  # bytes of the states after a layer
  return {
    # Parameter, gradient and two moments in float32: read, and but for the gradient written; the
    # gradient is read for the norm, too.
    "optimizer": 8 * 4.0 * trunk.parameter_count(),
    # Written in place by the loss: their product writes them, and those of the gradient read them.
    "logits": 2 * tokens * trunk.rows * width,
    # Each of two sublayers: 3 passes forward, 5 backward, masks drawn anew.
    "norm, residual, dropout": 2 * 8 * trunk.layers * hidden,
    # 4 D wide, 2 passes forward, 3 backward with the sum for the bias.
    "MLP activation": 4 * 5 * trunk.layers * hidden,
    # The sum for the biases.
    "q, k, v layout": 3 * trunk.layers * hidden,
  }
