"""Plans a pre-training run before it starts: memory and time.

The numbers come from compiling the real training step, for TPUs, the devices of this machine, and
GPUs where JAX's plugin for them is installed. Without it a formula estimates a GPU's memory.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gpt_jax import errors
from gpt_jax.apps import traffic
from gpt_jax.apps.topologies import (
  Chip,
  compile_step,
  find_chip,
  find_devices,
  for_topology,
  why_not_compiled,
)
from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.ops.attention_auto import HOPPER, JAX, MAX_WIDTH
from gpt_jax.ops.cross_entropy import chunk_elements
from gpt_jax.parallel.memory import bytes_needed, capacity
from gpt_jax.parallel.placement import check_batch
from gpt_jax.programs.config_files import override, override_all
from gpt_jax.programs.outputs import check_out
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_config import PAPER_VOCABULARY, check_type, model_spec
from gpt_jax.programs.pretrain_mixture import load_texts
from gpt_jax.training.fitting import larger_counts, what_fits

# What a compiled program does not say. GPT-1's step of 2026-11-26 took 75 ms on an H200; of its
# program this said 65 (configs/RESULTS.md, One H200).
NOT_KNOWN = (
  "not known: tuned products, gaps between kernels, clocks, and a network slower than NVLink; the "
  "one step that was timed, GPT-1's on an H200, took 1.15 times as long as this said"
)


class Plan(NamedTuple):
  """One way to run a config."""

  changes: tuple[tuple[str, str], ...]  # (field, value) that it changes
  devices: int
  memory: float  # bytes that a step needs on each device, the state included
  capacity: float  # bytes of each device; 0: unknown
  # Of a step that is compiled for GPUs: bytes moved by cause, and seconds of its parts, one after
  # the other (see apps.traffic). Else no bytes, and the seconds that a step takes at least for its
  # "arithmetic", "memory" (traffic) and "network" (each gradient sent twice). {}: unknown
  moved: dict[str, float]
  times: dict[str, float]
  tokens: int
  steps: int  # of the whole run; 0: unknown
  compiled: bool  # whether the compiler said so, or a formula
  remedy: str = ""  # what makes it fit

  @property
  def fits(self) -> bool:
    return not self.capacity or self.memory <= self.capacity

  @property
  def step_time(self) -> float:
    """Seconds: expected, or at least, where nothing waits for anything else. 0: unknown."""
    return sum(self.times.values()) if self.moved else max(self.times.values(), default=0.0)


def run(
  config: PretrainConfig,
  topology: str = "",
  vary: Sequence[str] = (),
  data: str = "",
  *,
  price: float = 0.0,
  out: str = "",
  overwrite: bool = False,
) -> list[Plan]:
  """Prints a table of plans and recommends one.

  Args:
    config: what is to be trained; without a vocabulary size and data it gets the paper's 40,478.
    topology: devices that need not be there, such as v5e:4x4, v5p:2x2x2, v6e:8x8 (extra tpu) or
      h100:8 (extra cuda; without it a formula); by default those of this machine.
    vary: FIELD=VALUE,VALUE,… of the config: a plan for every combination, side by side.
    data: folders that launch/prepare.py wrote, for the vocabulary and the number of steps; may be
      empty.
    price: of one device for an hour, in any currency.
    out: JSON file for the numbers.
    overwrite: replace an existing output.
  """
  check_type(config, "a plan")
  if out:
    check_out(out, overwrite)
  config = resume_choices(for_topology(config) if topology else config)
  if data:
    text = load_texts(config, data)
    config = dataclasses.replace(config, trunk=config.trunk.with_vocabulary(text.tokenizer))
  elif not config.trunk.vocab_size:
    trunk = dataclasses.replace(config.trunk, vocab_size=PAPER_VOCABULARY)
    config = dataclasses.replace(config, trunk=trunk)
  devices, kind = find_devices(topology)
  chip = find_chip(kind)
  if chip and not topology:  # as a part of a GPU, or one with other memory, has its name
    chip = chip._replace(memory=capacity(devices) or chip.memory)
  size = f"{config.trunk.parameter_count() / 1e6:,.1f}M parameters"
  print(f"{topology or 'this machine'}: {len(devices)} x {kind}; {size}", flush=True)
  if chip is None:
    print("no time can be said: the speed of this device is not known")
  if devices[0] is None:
    print(f"nothing is compiled: {why_not_compiled(kind)}")
  plans = []
  for changes in _combinations(vary):
    varied, steps_per_epoch = override_all(config, changes), 0
    varied = for_topology(varied) if topology else varied
    if data:
      steps_per_epoch = text.windows(varied, text.train, varied.train.seed).steps_per_epoch
    plan = make_plan(varied, devices, chip, steps_per_epoch, kind)
    plans.append(plan._replace(changes=changes))
    print(describe(plans[-1], price), flush=True)
  if any(plan.moved for plan in plans):
    print(NOT_KNOWN)
  fitting = [plan for plan in plans if plan.fits and plan.step_time]
  if len(plans) > 1 and fitting:
    best = max(fitting, key=lambda plan: (plan.tokens / plan.step_time, -plan.memory))
    settings = " ".join(f"--config.{name}={value}" for name, value in best.changes)
    print("recommended, as the fastest that fits, then that with the least memory:", settings)
  if out:
    write_json(out, {"topology": topology, "plans": [plan._asdict() for plan in plans]})
  return plans


def make_plan(
  config: PretrainConfig,
  devices: Sequence[Any],
  chip: Chip | None,
  steps_per_epoch: int = 0,
  kind: str = "",
) -> Plan:
  """The plan of a config with a vocabulary size, on devices of jax or, for a formula, on None; of a
  kind, JAX's name.
  """
  compiled, read = devices[0] is not None, 0.0
  kernels: list[traffic.Kernel] = []
  if compiled:
    step = compile_step(config, devices)
    memory = float(bytes_needed(step))
    if devices[0].platform == "gpu":  # which is asked nothing where it is not there
      kernels = traffic.kernels(step.as_text())
    else:
      read = step.cost_analysis().get("bytes accessed", 0.0)
  else:
    memory = _estimated(_with_kernels(config, kind), devices)
  there = chip.memory if chip else 0.0
  if chip is None and compiled and devices[0].platform != "tpu":  # a TPU may not be here
    there = capacity(devices)
  trunk, mesh, count = config.trunk, config.mesh, len(devices)
  tokens = config.data.batch_size * config.data.length
  times = {}
  if chip and (devices[0] is None or devices[0].platform == "gpu"):
    # Products of float32 are of TF32, which takes twice as long; before the A100 they take longer.
    chip = chip._replace(flops=2 * chip.flops / _width(config))
  if chip and chip.flops:
    flops, products = (trunk.flops_per_token(length) for length in (config.data.length, 0))
    has_replicas = (mesh.data or count // mesh.model) > 1
    gradients = _width(config) * trunk.parameter_count() / mesh.model if has_replicas else 0.0
    # Bounds and not summed, since all three may overlap.
    times = {
      "arithmetic": tokens * flops / count / chip.flops,
      "memory": read / chip.bandwidth,
      "network": 2 * gradients / chip.interconnect,
    }
    if kernels:
      times = traffic.seconds(kernels, chip, tokens * (flops - products) / count)
  moved = {cause: kernel.moved for cause, kernel in traffic.by_cause(kernels).items()}
  steps = config.train.steps or config.train.epochs * steps_per_epoch
  plan = Plan((), count, memory, there, moved, times, tokens, steps, compiled)
  return plan if plan.fits else plan._replace(remedy=_remedy(config, plan, devices, kind))


def _with_kernels(config: PretrainConfig, kind: str) -> PretrainConfig:
  """The config with the attention that keeps no scores, where a kind of GPU takes it by itself."""
  trunk: Any = config.trunk
  are_there = kind.startswith(HOPPER) and jax.__version_info__ >= JAX and trunk.dtype != "float32"
  if not are_there or "blocks" not in trunk.gives or trunk.width // trunk.heads > MAX_WIDTH:
    return config
  if trunk.attention_backend == "auto":
    return override(config, "trunk.attention_backend", "mosaic")
  return config


def _remedy(config: PretrainConfig, plan: Plan, devices: Sequence[Any], kind: str) -> str:
  """The settings with which it fits, by the rule by which a run chooses its microbatches."""
  train, replicas = config.train, config.mesh.data or len(devices) // config.mesh.model
  has_formula = "blocks" in config.trunk.gives and (plan.moved or not plan.compiled)
  if not has_formula:  # minutes for each
    return "a run may choose more microbatches, which --vary=train.microbatches=2,4,8 plans"
  config = _with_kernels(config, kind)
  # Where a GPU's step was compiled, the formula says by how much less others need.
  scale = plan.memory / _estimated(config, devices)

  def peak(microbatches: int, remat: str) -> float:
    other = dataclasses.replace(train, microbatches=microbatches, remat=remat)
    return scale * _estimated(dataclasses.replace(config, train=other), devices)

  counts = [train.parts]
  if not model_spec(config).needs_whole_batch:
    counts = larger_counts(config.data.batch_size, replicas, train.parts)
  smaller = "a smaller config.data.batch_size or config.data.length"
  smaller += ", config.mesh.fsdp=true" if replicas > 1 else ""
  fits = errors.for_user(what_fits(peak, counts, train.remat, plan.capacity, smaller, "gpu"))
  fits += " by a formula" if plan.compiled and fits.startswith("it fits") else ""
  if "microbatches=" in fits and not train.microbatches:
    fits += "; a run chooses its microbatches"
  return fits


def _width(config: PretrainConfig) -> int:
  """Bytes of an activation or a gradient."""
  return 4 if config.trunk.dtype == "float32" else 2


def describe(plan: Plan, price: float = 0.0) -> str:
  """The plan in lines for the console."""
  settings = " ".join(f"{name}={value}" for name, value in plan.changes) or "as configured"
  verdict = "" if plan.fits else f": DOES NOT FIT; {plan.remedy}"
  capacity = f" of {plan.capacity / 1e9:.1f}" if plan.capacity else ""
  source = "" if plan.compiled else ", by a formula"
  lines = [settings, f"  memory   {plan.memory / 1e9:.2f}{capacity} GB a device{source}{verdict}"]
  if plan.moved:
    causes = sorted(plan.moved.items(), key=lambda item: -item[1])
    listed = "; ".join(f"{cause} {size / 1e9:.1f}" for cause, size in causes)
    lines.append(f"  traffic  {sum(plan.moved.values()) / 1e9:.1f} GB a device: {listed}")
  if plan.times:
    parts = ", ".join(f"{name} {1000 * time:.1f} ms" for name, time in plan.times.items() if time)
    bound = f"bound by {max(plan.times, key=plan.times.__getitem__)} ({parts})"
    least, most = ("about", "about") if plan.moved else ("at least", "at most")
    how = parts if plan.moved else bound
    lines.append(f"  step     {least} {1000 * plan.step_time:.1f} ms, {how}")
    lines.append(f"  speed    {most} {plan.tokens / plan.step_time:,.0f} tokens/s")
    if plan.steps:
      duration = datetime.timedelta(seconds=round(plan.steps * plan.step_time))
      cost = price * plan.devices * duration.total_seconds() / 3600
      charged = f", {cost:,.2f} at {price:g} a device and hour" if price else ""
      only = "" if plan.compiled else "; arithmetic only, at the peak of the GPUs: expect far more"
      lines.append(f"  run      {plan.steps:,} steps, {least} {duration}{charged}{only}")
  if price and not (plan.times and plan.steps):
    length = (
      "give --data=DIR, or --config.train.steps=N --config.train.epochs=0, for the run's length"
    )
    reason = length if plan.times else "the speed of this device is not known"
    lines.append(f"  price    unknown: {reason}")
  return "\n".join(lines)


def _combinations(vary: Sequence[str]) -> list[tuple[tuple[str, str], ...]]:
  axes = []
  for setting in vary:
    name, equals, values = setting.partition("=")
    if not equals or not name or not values:
      raise InputError(f"--vary={setting}: must be FIELD=VALUE,VALUE,…")
    axes.append([(name.removeprefix("config."), value) for value in values.split(",")])
  return list(itertools.product(*axes))


def _estimated(config: PretrainConfig, devices: Sequence[Any]) -> float:
  """Bytes of memory that a step needs on each device, by a formula.

  Parameters, two moments and the gradient in float32; activations by Korthikanti et al. 2022,
  Reducing Activation Recomputation in Large Transformer Models, equations 1 and 2.
  """
  trunk, mesh = config.trunk, config.mesh
  if "blocks" not in trunk.gives:
    raise InputError("--topology: only Transformers have a formula; name a TPU or nothing")
  data = mesh.data or len(devices) // mesh.model
  if data * mesh.model != len(devices):
    raise InputError(f"mesh.data={data} and mesh.model={mesh.model}: there are {len(devices)} GPUs")
  check_batch(config.data.batch_size, data, config.train.parts)
  parameters, width = trunk.parameter_count(), _width(config)
  rows = config.data.batch_size // data // config.train.parts
  features = rows * config.data.length * trunk.width  # s b h, elements
  scores = rows * trunk.heads * config.data.length**2  # a s s b
  if trunk.attention_backend in ("fused", "mosaic"):
    # q, k, v and the output, which are kept, are among the features. With "auto" the scores count,
    # see _with_kernels.
    scores = 0
  # Bytes of a block at 16 bits: 34 s b h + 5 a s s b; the matrix products alone: 20 s b h.
  block = (34 * features + 5 * scores) * width / 2
  kept = {"none": block, "dots": 10 * features * width, "full": features * width}
  activations = trunk.layers * kept[config.train.remat] / mesh.model
  if config.train.remat != "none":
    activations += block / mesh.model  # that which is being computed anew
  # In 16 bits the gradient takes the memory of the logits; in 32 three arrays are there.
  half = trunk.dtype == "bfloat16"
  chunk = min(chunk_elements("gpu", half), rows * config.data.length * trunk.rows / mesh.model)
  logits = (2 if half else 12) * chunk
  state = 16 * parameters / mesh.model / (data if mesh.fsdp else 1)
  copy = width * parameters / mesh.model if width == 2 else 0
  return state + copy + activations + logits
