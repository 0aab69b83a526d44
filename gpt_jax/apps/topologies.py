"""Devices that need not be there, what they can do, and a training step compiled for them."""

import functools
import importlib.util
import math
import os
import re
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.data.tokenizers.base import SpecialTokens
from gpt_jax.errors import InputError, did_you_mean, how_to_install, require
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.config_files import override
from gpt_jax.programs.pretrain import PretrainConfig, step_recipe
from gpt_jax.training.recipe import Recipe, make_trainer
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
  "Tesla V100-SXM2-32GB": (32e9, 9e11, 1.5e11),
  "NVIDIA L4": (24e9, 3e11, 3.2e10),
  "NVIDIA L40": (48e9, 8.64e11, 3.2e10),
  "NVIDIA A100": (80e9, 2.0e12, 3e11),
  "NVIDIA A100-SXM4-40GB": (40e9, 1.555e12, 3e11),
  "NVIDIA A100-PCIE-40GB": (40e9, 1.555e12, 3e11),
  "NVIDIA H100": (80e9, 3.35e12, 4.5e11),
  "NVIDIA H100 PCIe": (80e9, 2.0e12, 3e11),
  "NVIDIA H200": (141e9, 4.8e12, 4.5e11),
  "NVIDIA B200": (180e9, 7.7e12, 9e11),
}
TPU_NAMES = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")  # of libtpu
# JAX's name of a GPU by a short one, such as h100.
GPU_KINDS = {kind.partition(" ")[2].replace(" ", "-").lower(): kind for kind in _GPUS}
_HOST = 8  # GPUs of a host


# What XLA asks of a GPU that it compiles for, in the words of its GpuTargetConfigProto; of the SXM
# boards, with the libraries of jax 0.11's CUDA 12 wheels. What is fused may hang on the bandwidth's
# third digit, so these are CUDA's figures and not the data sheets'.
_AMPERE = """cuda_compute_capability { major: 8 } core_count: 108 fpus_per_core: 64
  shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 l2_cache_size: 41943040
  clock_rate_ghz: 1.41"""
_HOPPER = """cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128
  shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 l2_cache_size: 52428800
  clock_rate_ghz: 1.98"""
_DESCRIBED = {  # CUDA's name, bytes of memory, bytes/s, cores
  "NVIDIA A100": ("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2_039_040_000_000, _AMPERE),
  "NVIDIA H100": ("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000, _HOPPER),
  "NVIDIA H200": ("NVIDIA H200", 151_397_597_184, 4_800_000_000_000, _HOPPER),
}
_TARGET = """gpu_device_info {{ {cores} device_memory_size: {memory} memory_bandwidth: {bandwidth}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" device_description_str: "{name}"
dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 9 }}
"""


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


def find_devices(topology: str) -> tuple[Sequence[Any], str]:
  """The devices of a topology, and JAX's name of their kind; "": those of this machine.

  Devices of GPUs that nothing can compile for are None; see why_not_compiled.
  """
  if not topology:
    return jax.devices(), jax.devices()[0].device_kind
  name, _, shape = topology.partition(":")
  kind = GPU_KINDS.get(name.lower())
  if kind is not None:
    if not shape.isdecimal() or not 0 < int(shape) <= 10_000:
      raise InputError(f"--topology={topology}: name the number of GPUs, such as {name}:8")
    count = int(shape)
    if count > _HOST and count % _HOST:
      raise InputError(f"--topology={topology}: more than {_HOST} GPUs are whole hosts of {_HOST}")
    return ([None] * count if why_not_compiled(kind) else _described_gpus(kind, count)), kind
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


@functools.cache
def why_not_compiled(kind: str) -> str:
  """Why nothing can be compiled for a kind of GPU; "" if it can."""
  if kind not in _DESCRIBED:
    return f"{kind} has no description here"
  if not any(map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))):
    return f"the compiler for GPUs is not installed: {how_to_install('cuda')}"
  # The plugin asks for a driver when it is loaded, which a machine without a GPU does not have.
  os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
  try:
    _described_gpus(kind, 1)
  except RuntimeError as error:  # of the plugin, in its own words
    return f"jax {jax.__version__}'s plugin for GPUs says: {str(error).splitlines()[0]}"
  return ""


@functools.cache
def _described_gpus(kind: str, count: int) -> tuple[Any, ...]:
  from jax.experimental import topologies

  name, memory, bandwidth, cores = _DESCRIBED[kind]
  target = _TARGET.format(name=name, cores=cores, memory=memory, bandwidth=bandwidth)
  hosts = count // _HOST if count % _HOST == 0 else 1
  options = {"target_config": target, "topology": f"1x{hosts}x{count // hosts}"}
  described: Any = topologies.get_topology_desc(platform="cuda", **options)
  return tuple(described.devices)


def for_topology(config: PretrainConfig) -> PretrainConfig:
  """The config with its choices made as accelerators make them, which are not asked."""
  config = override(config, "mesh.cpu_products", "xla")
  return override(config, "trunk.dtype", "bfloat16") if config.trunk.dtype == "auto" else config


def recipe_to_compile(config: PretrainConfig, devices: Sequence[Any]) -> Recipe:
  """The recipe of a training step of a config with a vocabulary size, on these devices."""
  # Stands in for a tokenizer: a batch has the same shapes whatever it is.
  tokenizer: Any = types.SimpleNamespace(
    vocab_size=1,
    special=SpecialTokens(1, config.objective.special),
    word_starts=lambda ids: np.ones(ids.shape, bool),
  )
  objective = config.objective.bind(tokenizer, config.data.length)
  return step_recipe(config, objective, make_mesh(config.mesh, devices))


def compile_step(config: PretrainConfig, devices: Sequence[Any]) -> Any:
  """The compiled training step of a config with a vocabulary size; nothing runs."""
  return compile_recipe(recipe_to_compile(config, devices))


def compile_recipe(recipe: Recipe) -> Any:
  """The compiled training step, on the devices of the recipe; nothing runs."""
  return make_trainer(recipe).compile(recipe.batches(recipe.config.train).example())
