"""The bytes that a training step moves, by operation and by cause; nothing runs."""

from typing import Any, NamedTuple

from gpt_jax.apps import traffic
from gpt_jax.apps.timing import Measured
from gpt_jax.apps.topologies import (
  compile_recipe,
  find_chip,
  find_devices,
  recipe_to_compile,
  why_not_compiled,
)
from gpt_jax.apps.traffic import Kernel
from gpt_jax.errors import InputError
from gpt_jax.programs.finetune import finetune_recipe
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.start import load_start

_ROWS = 40  # operations that are printed; the file has all


class Audit(NamedTuple):
  """The bytes that one device moves in a step."""

  kernels: list[Kernel]
  ideal: dict[str, float]  # bytes that each cause would move at least
  rate: float  # bytes/s; 0: unknown

  def table(self) -> str:
    """The operations that move most, and the sums by cause, in lines."""
    head = f"{'kernels':>7} {'read GB':>8} {'written':>8} {'ms':>8} {'TFLOP':>7}"
    share = f"{100 * traffic.BANDWIDTH_SHARE:.0f} % of the bandwidth"
    lines = [f"{head}  operation | kind | result | cause (ms at {share})"]
    for kernel in self.kernels[:_ROWS]:
      names = (kernel.path, kernel.kind, kernel.result[:60], kernel.cause)
      lines.append(f"{self._numbers(kernel)}  {' | '.join(names)}")
    lines.append(f"{head}  cause (GB at least)")
    for cause, kernel in traffic.by_cause(self.kernels).items():
      least = f" ({self.ideal[cause] / 1e9:.3f})" if cause in self.ideal else ""
      lines.append(f"{self._numbers(kernel)}  {cause}{least}")
    return "\n".join(lines)

  def _numbers(self, kernel: Kernel) -> str:
    time = 1e3 * kernel.moved / self.rate if self.rate else 0.0
    read, written = kernel.read / 1e9, kernel.written / 1e9
    return f"{kernel.runs:7,} {read:8.3f} {written:8.3f} {time:8.3f} {kernel.flops / 1e12:7.3f}"

  def sums(self) -> Measured:
    """The bytes of each cause, and of all kernels."""
    for cause, kernel in traffic.by_cause(self.kernels).items():
      yield cause, kernel.moved / 1e9, "GB"
    yield "all", sum(kernel.moved for kernel in self.kernels) / 1e9, "GB"
    yield "kernels", sum(kernel.runs for kernel in self.kernels), ""


def check_topology(topology: str) -> None:
  """Refuses devices that nothing can compile for; to be called before JAX is asked for others."""
  devices, kind = find_devices(topology)
  if devices[0] is None:
    raise InputError(f"--topology={topology}: {why_not_compiled(kind)}")
  if devices[0].platform == "tpu":
    raise InputError(f"--topology={topology}: bytes are read of programs for GPUs, such as h200:1")


def audit(
  config: PretrainConfig | FinetuneConfig, topology: str, data_dir: str = "", tokenizer: str = ""
) -> Audit:
  """The audit of a config's step, on devices that need not be there; "": on this machine's.

  data_dir and tokenizer: of a fine-tuning, see finetune.run.
  """
  devices, kind = find_devices(topology)
  ideal: dict[str, float] = {}
  if isinstance(config, FinetuneConfig):
    start = load_start(config, "none", tokenizer)
    config, task, encoded = load_task(config, data_dir, start)
    recipe = finetune_recipe(config, task, encoded["train"], start, devices)
    rows, length = recipe.batches(config.train).shape
    print(f"{config.batch_size} examples a step, in {rows} rows of {length} tokens")
  else:
    recipe, ideal = recipe_to_compile(config, devices), ideal_bytes(config, len(devices))
  print(f"compiling the step for {len(devices)} x {kind}, which may take minutes", flush=True)
  found, chip = traffic.kernels(compile_recipe(recipe).as_text()), find_chip(kind)
  rate = traffic.BANDWIDTH_SHARE * chip.bandwidth if chip else 0.0
  return Audit(found, ideal, rate)


def ideal_bytes(config: PretrainConfig, devices: int) -> dict[str, float]:
  """The bytes that a device moves where no array is read or written without need, by cause.

  Known of Transformers with a causal objective, whose model is not split over devices.
  """
  trunk: Any = config.trunk
  is_causal = config.objective.attention == "causal" and "blocks" in trunk.gives
  if not is_causal or config.mesh.model > 1 or config.mesh.fsdp:
    return {}
  width = 4 if trunk.dtype == "float32" else 2
  tokens = config.data.batch_size * config.data.length / devices
  hidden = trunk.layers * tokens * trunk.width * width  # bytes of the states after all layers
  return {
    # Parameter, gradient and two moments in float32: read, and but for the gradient written; the
    # norm reads the gradient, too.
    "optimizer": 8 * 4.0 * trunk.parameter_count(),
    # The loss reads them, and writes their gradient in their place.
    "logits": 2.0 * tokens * trunk.rows * width,
    # Each of two sublayers: 3 passes forward, 5 backward, masks drawn anew.
    "norm, residual, dropout": 2 * 8 * hidden,
    # 4 D wide: 2 passes forward, 3 backward with the sum for the bias.
    "MLP activation": 4 * 5 * hidden,
    # The sum for the biases.
    "q, k, v layout": 3 * hidden,
  }
