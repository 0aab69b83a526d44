"""Plans a pre-training run before it starts: memory and time.

For TPUs, and for the devices of this machine, the numbers come from compiling the real training
step. There is no compiler for GPUs that are not attached; a formula estimates their memory.
"""

import dataclasses
import datetime
import itertools
import math
import os
import re
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax import errors
from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.errors import InputError, did_you_mean, require
from gpt_jax.files import write_json
from gpt_jax.ops.cross_entropy import chunk_elements
from gpt_jax.parallel.memory import bytes_needed, capacity
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch
from gpt_jax.programs.config_files import override, override_all
from gpt_jax.programs.outputs import check_out
from gpt_jax.programs.pretrain import PretrainConfig, step_recipe
from gpt_jax.programs.pretrain_config import PAPER_VOCABULARY, check_type, model_spec
from gpt_jax.programs.pretrain_mixture import load_texts
from gpt_jax.training.fitting import larger_counts, what_fits
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.reporter import peak_flops

EXAMPLES = "examples: v5e:4x4, v5p:2x2x2, v6e:8x8, h100:8"

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
TPU_NAMES = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")  # of libtpu
# JAX's name of a GPU by a short one, such as h100.
GPU_KINDS = {kind.split()[-1].lower(): kind for kind in _GPUS}


class Chip(NamedTuple):
  """One JAX device."""

  memory: float  # bytes
  bandwidth: float  # bytes/s between memory and cores
  interconnect: float  # bytes/s to the other devices
  flops: float  # dense FLOP/s, see training.reporter


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


class Plan(NamedTuple):
  """One way to run a config."""

  changes: tuple[tuple[str, str], ...]  # (field, value) that it changes
  devices: int
  memory: float  # bytes that a step needs on each device, the state included
  capacity: float  # bytes of each device; 0: unknown
  # Seconds that a step takes at least for its "arithmetic", "memory" (traffic) and "network" (each
  # gradient sent twice); {} if the chip is not known
  bounds: dict[str, float]
  tokens: int
  steps: int  # of the whole run; 0: unknown
  compiled: bool  # whether the compiler said so, or a formula
  remedy: str = ""  # what makes it fit

  @property
  def fits(self) -> bool:
    return not self.capacity or self.memory <= self.capacity

  @property
  def step_time(self) -> float:
    """Seconds, at least: nothing waits for anything else. 0: unknown."""
    return max(self.bounds.values(), default=0.0)


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
    topology: devices that need not be there, such as v5e:4x4, v5p:2x2x2, v6e:8x8 (compiled; extra
      tpu) or h100:8 (a formula); by default those of this machine.
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
  if topology:  # accelerators, which are not asked
    config = override(config, "mesh.cpu_products", "xla")
    if config.trunk.dtype == "auto":
      config = override(config, "trunk.dtype", "bfloat16")
  config, steps_per_epoch = resume_choices(config), 0
  if data:
    text = load_texts(config, data)
    config = dataclasses.replace(config, trunk=config.trunk.with_vocabulary(text.tokenizer))
    steps_per_epoch = text.windows(config, text.train, config.train.seed).steps_per_epoch
  elif not config.trunk.vocab_size:
    trunk = dataclasses.replace(config.trunk, vocab_size=PAPER_VOCABULARY)
    config = dataclasses.replace(config, trunk=trunk)
  devices, kind = find_devices(topology)
  chip = find_chip(kind)
  size = f"{config.trunk.parameter_count() / 1e6:,.1f}M parameters"
  print(f"{topology or 'this machine'}: {len(devices)} x {kind}; {size}", flush=True)
  if chip is None:
    print("no time can be said: the speed of this device is not known")
  plans = []
  for changes in _combinations(vary):
    plan = make_plan(override_all(config, changes), devices, chip, steps_per_epoch)
    plans.append(plan._replace(changes=changes))
    print(describe(plans[-1], price), flush=True)
  fitting = [plan for plan in plans if plan.fits and plan.step_time]
  if len(plans) > 1 and fitting:
    best = max(fitting, key=lambda plan: (plan.tokens / plan.step_time, -plan.memory))
    settings = " ".join(f"--config.{name}={value}" for name, value in best.changes)
    print("recommended, as the fastest that fits, then that with the least memory:", settings)
  if out:
    write_json(out, {"topology": topology, "plans": [plan._asdict() for plan in plans]})
  return plans


def make_plan(
  config: PretrainConfig, devices: Sequence[Any], chip: Chip | None, steps_per_epoch: int = 0
) -> Plan:
  """The plan of a config with a vocabulary size, on devices of jax or, for a formula, on None."""
  compiled = devices[0] is not None
  memory, traffic = (_compiled if compiled else _estimated)(config, devices)
  there = chip.memory if chip else 0.0
  if chip is None and compiled and devices[0].platform != "tpu":  # a TPU may not be here
    there = capacity(devices)
  trunk, mesh, count = config.trunk, config.mesh, len(devices)
  tokens = config.data.batch_size * config.data.length
  bounds = {}
  if chip and chip.flops:
    has_replicas = (mesh.data or count // mesh.model) > 1
    gradients = _width(config) * trunk.parameter_count() / mesh.model if has_replicas else 0.0
    # Bounds and not summed, since all three may overlap.
    bounds = {
      "arithmetic": tokens * trunk.flops_per_token(config.data.length) / count / chip.flops,
      "memory": traffic / chip.bandwidth,
      "network": 2 * gradients / chip.interconnect,
    }
  steps = config.train.steps or config.train.epochs * steps_per_epoch
  plan = Plan((), count, memory, there, bounds, tokens, steps, compiled)
  return plan if plan.fits else plan._replace(remedy=_remedy(config, plan, devices))


def _remedy(config: PretrainConfig, plan: Plan, devices: Sequence[Any]) -> str:
  """The settings with which it fits, by the rule by which a run chooses its microbatches."""
  train, replicas = config.train, config.mesh.data or len(devices) // config.mesh.model
  if plan.compiled:  # minutes for each
    return "a run may choose more microbatches, which --vary=train.microbatches=2,4,8 plans"

  def peak(microbatches: int, remat: str) -> float:
    other = dataclasses.replace(train, microbatches=microbatches, remat=remat)
    return _estimated(dataclasses.replace(config, train=other), devices)[0]

  counts = [train.parts]
  if not model_spec(config).needs_whole_batch:
    counts = larger_counts(config.data.batch_size, replicas, train.parts)
  smaller = "a smaller config.data.batch_size or config.data.length"
  smaller += ", config.mesh.fsdp=true" if replicas > 1 else ""
  fits = errors.for_user(what_fits(peak, counts, train.remat, plan.capacity, smaller, "gpu"))
  if "microbatches=" in fits and not train.microbatches:
    fits += "; a run chooses its microbatches"
  return fits


def _width(config: PretrainConfig) -> int:
  """Bytes of an activation or a gradient."""
  return 4 if config.trunk.dtype == "float32" else 2


def find_devices(topology: str) -> tuple[list[Any], str]:
  """The devices of a topology, and JAX's name of their kind. Devices of a formula are None."""
  if not topology:
    return jax.devices(), jax.devices()[0].device_kind
  name, _, shape = topology.partition(":")
  kind = GPU_KINDS.get(name.lower())
  if kind is not None:
    if not shape.isdecimal() or not 0 < int(shape) <= 10_000:
      raise InputError(f"--topology={topology}: name the number of GPUs, such as {name}:8")
    return [None] * int(shape), kind
  if google := re.fullmatch(r"(v[4-6]\w*)-(\d{1,6})", topology):
    raise InputError(f"--topology={topology}: {_shape_of(*google.groups())} ({EXAMPLES})")
  if name not in TPU_NAMES:
    known = f"GPUs are {', '.join(sorted(GPU_KINDS))}, TPUs {', '.join(TPU_NAMES)}"
    guess = did_you_mean(name, (*GPU_KINDS, *TPU_NAMES))
    raise InputError(f"--topology={topology}: {name} is not known{guess} ({known}; {EXAMPLES})")
  if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", shape):
    raise InputError(f"--topology={topology}: name the shape of the chips ({EXAMPLES})")
  require("libtpu", f"--topology={topology}", "libtpu", "tpu")
  from jax.experimental import topologies

  # This machine is not asked what TPU it is, or there are 10 lines of complaints.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  try:
    described: Any = topologies.get_topology_desc(platform="tpu", topology_name=topology)
  except Exception as error:  # of libtpu, in its own words
    reason = str(error).splitlines()[0]  # such as of its lockfile, while another program runs
    raise InputError(f"--topology={topology}: {reason} ({EXAMPLES})") from error
  return list(described.devices), described.devices[0].device_kind


def _shape_of(version: str, count: str) -> str:
  """Advice for Google's name of a TPU, which has no shape: v5litepod-16, v4-16. People type it.

  v5e and v6e are counted in chips, which form a rectangle; others in cores, two a chip, in a box.
  """
  version = version.replace("litepod", "e").replace("lite", "e")
  is_flat = version.endswith("e")
  chips = int(count) if is_flat else int(count) // 2
  if chips & (chips - 1) or not chips:
    return "name the shape of the chips"
  sides = [1] * (2 if is_flat else 3)
  while math.prod(sides) < chips:
    sides[sides.index(min(sides))] *= 2
  sides.sort(key=lambda side: (side == 1, side))  # 2x2x1
  return f"did you mean {version}:{'x'.join(map(str, sides))}?"


def describe(plan: Plan, price: float = 0.0) -> str:
  """The plan in lines for the console."""
  settings = " ".join(f"{name}={value}" for name, value in plan.changes) or "as configured"
  verdict = "" if plan.fits else f": DOES NOT FIT; {plan.remedy}"
  capacity = f" of {plan.capacity / 1e9:.1f}" if plan.capacity else ""
  source = "" if plan.compiled else ", by a formula"
  lines = [settings, f"  memory   {plan.memory / 1e9:.2f}{capacity} GB a device{source}{verdict}"]
  if plan.bounds:
    bound = max(plan.bounds, key=plan.bounds.__getitem__)
    parts = ", ".join(f"{name} {1000 * time:.1f} ms" for name, time in plan.bounds.items() if time)
    speed = plan.tokens / plan.step_time
    lines.append(f"  step     at least {1000 * plan.step_time:.1f} ms, bound by {bound} ({parts})")
    lines.append(f"  speed    at most {speed:,.0f} tokens/s")
    if plan.steps:
      duration = datetime.timedelta(seconds=round(plan.steps * plan.step_time))
      cost = price * plan.devices * duration.total_seconds() / 3600
      charged = f", {cost:,.2f} at {price:g} a device and hour" if price else ""
      only = "" if plan.compiled else "; arithmetic only, at the peak of the GPUs: expect far more"
      lines.append(f"  run      {plan.steps:,} steps, at least {duration}{charged}{only}")
  if price and not (plan.bounds and plan.steps):
    length = "give --data=DIR or --config.train.steps=N, for the length of the run"
    reason = length if plan.bounds else "the speed of this device is not known"
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


def _compiled(config: PretrainConfig, devices: Sequence[Any]) -> tuple[float, float]:
  """Bytes of memory, and bytes read and written, as compiled."""
  # Stands in for a tokenizer: a batch has the same shapes whatever it is.
  tokenizer: Any = types.SimpleNamespace(
    vocab_size=1,
    special=SpecialTokens(1, config.objective.special),
    word_starts=lambda ids: np.ones(ids.shape, bool),
  )
  objective = config.objective.bind(tokenizer, config.data.length)
  recipe = step_recipe(config, objective, make_mesh(config.mesh, devices))
  example = recipe.batches(config.train).example()
  compiled: Any = make_trainer(recipe).compile(example)
  return bytes_needed(compiled), compiled.cost_analysis().get("bytes accessed", 0.0)


def _estimated(config: PretrainConfig, devices: Sequence[Any]) -> tuple[float, float]:
  """The same by a formula; traffic between memory and cores is not known.

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
    # q, k, v and the output, which are kept, are among the features. With "auto" the scores count:
    # which GPUs and which jax will run is not known here.
    scores = 0
  # Bytes of a block at 16 bits: 34 s b h + 5 a s s b; the matrix products alone: 20 s b h.
  block = (34 * features + 5 * scores) * width / 2
  kept = {"none": block, "dots": 10 * features * width, "full": features * width}
  activations = trunk.layers * kept[config.train.remat] / mesh.model
  if config.train.remat != "none":
    activations += block / mesh.model  # that which is being computed anew
  logits = 3 * 4 * min(chunk_elements("gpu"), rows * config.data.length * trunk.rows / mesh.model)
  state = 16 * parameters / mesh.model / (data if mesh.fsdp else 1)
  copy = width * parameters / mesh.model if width == 2 else 0
  return state + copy + activations + logits, 0.0
