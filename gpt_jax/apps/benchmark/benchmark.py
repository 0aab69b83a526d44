"""Benchmarks of one config on this machine: a step and its parts, generation, attention."""

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gpt_jax.apps.benchmark.bytes_moved import audit, check_topology
from gpt_jax.apps.benchmark.generation import generation
from gpt_jax.apps.benchmark.parts import attention_backends, ladder
from gpt_jax.apps.benchmark.training import training
from gpt_jax.apps.study import choice
from gpt_jax.apps.timing import Measured
from gpt_jax.apps.topologies import for_topology
from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.programs import pretrain_config
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.outputs import check_out
from gpt_jax.programs.pretrain_config import PAPER_VOCABULARY, PretrainConfig

PARTS: dict[str, Callable[..., Measured]] = {
  "step": training,
  "generation": generation,
  "attention": attention_backends,
  "parts": ladder,
}
BYTES = "bytes"
WITH_PEERS = ("step", "generation")
_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


class Row(NamedTuple):
  part: str
  name: str
  value: float
  unit: str


def run(
  config: PretrainConfig,  # or a FinetuneConfig; the command line wants the name of one class
  only: tuple[str, ...] = (),
  out: str = "",
  *,
  topology: str = "",
  data: str = "",
  tokenizer: str = "",
  peers: bool = False,
  overwrite: bool = False,
) -> list[Row]:
  """Measures and prints a table.

  Args:
    config: what to measure; without a vocabulary size it gets the paper's 40,478. For bytes also
      that of a fine-tuning.
    only: of step, generation, attention, parts, bytes; by default step,generation.
    out: JSON file for the numbers.
    topology: for bytes, a device that need not be there, such as h200:1; by default this machine's.
    data: folder of the official files of a fine-tuning's task.
    tokenizer: folder of its vocabulary, for a model of config.trunk's size.
    peers: let PyTorch and transformers do the work of step and generation too, in turns with ours.
    overwrite: replace an existing output.
  """
  check_type(config)
  if isinstance(config, FinetuneConfig):
    if set(only) != {BYTES}:
      raise InputError(f"--config: a FinetuneConfig goes with --only={BYTES} alone")
    if not tokenizer:
      raise InputError("--config: a FinetuneConfig needs --tokenizer=DIR, a vocabulary's folder")
  elif data or tokenizer:
    raise InputError("--data and --tokenizer: go with a FinetuneConfig; leave them out")
  if topology and set(only) != {BYTES}:
    raise InputError(f"--topology={topology}: only bytes need no device; give --only={BYTES}")
  if topology:
    check_topology(topology)
    config = for_topology(config)
  config = resume_choices(config)
  if out:
    check_out(out, overwrite)
  for part in only:
    choice("only", part, PARTS | {BYTES: audit})
  if not config.trunk.vocab_size and not isinstance(config, FinetuneConfig):
    trunk = dataclasses.replace(config.trunk, vocab_size=PAPER_VOCABULARY)
    config = dataclasses.replace(config, trunk=trunk)
  here = machine()
  print(", ".join(f"{name} {value}" for name, value in here.items()))
  rows, of_bytes = [], {}
  for part in dict.fromkeys(only or WITH_PEERS):
    options = {"peers": True} if peers and part in WITH_PEERS else {}
    if part == BYTES:
      moved = audit(config, topology, data, tokenizer)
      print(moved.table())
      operations = [kernel._asdict() for kernel in moved.kernels]
      of_bytes = {"operations": operations, "ideal": moved.ideal}
      measured = moved.sums()
    else:
      measured = PARTS[part](config, **options)
    for name, value, unit in measured:
      rows.append(Row(part, name, value, unit))
      print(f"{part:11} {name:48} {value:>12,.4g} {unit}", flush=True)
  if out:
    saved = {"rows": [row._asdict() for row in rows], **of_bytes}
    write_json(out, {**here, "topology": topology, "config": to_json(config), **saved})
  return rows


def check_type(config: Any) -> None:
  """Refuses the config of another program."""
  if not isinstance(config, FinetuneConfig):
    pretrain_config.check_type(config, "a benchmark")


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
