"""The memory that training takes, as planned and as measured, in processes of their own."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np

from gpt_jax.apps.benchmark.training import random_batch, trainer_with
from gpt_jax.batch import Batch, Labels
from gpt_jax.config import from_json, to_json
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.parallel.memory import FreedMemory, bytes_needed, in_use, needed
from gpt_jax.parallel.memory import peak as peak_of
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.timing import Measured
from gpt_jax.training.trainer import Trainer

STEPS = 10
# As launch/command_line/process.py tunes glibc: freed memory is kept, and comes in huge pages.
_KEEP = (
  "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold="
  "18446744073709551615:glibc.malloc.top_pad=67108864:glibc.malloc.hugetlb=1"
)
_CHILD = "import sys; from gpt_jax.apps.benchmark import memory; memory.report(*sys.argv[1:])"


def memory(config: PretrainConfig) -> Measured:
  """Pre-training and fine-tuning at the config's shapes; its trunk has a vocabulary size.

  On CPUs in processes of their own, first with glibc as it is, then as launch/ sets it, so that it
  keeps freed memory. Other devices belong to this process: there only pre-training is measured, and
  the peak is that of all parts up to here.
  """
  check_batch(config.data.batch_size, make_mesh(config.mesh), config.train.parts)
  if jax.default_backend() != "cpu":
    yield from _rows("pre-training", measure(config, "pre-training"))
    return
  if not peak_of(jax.devices()):  # this system does not tell
    return
  for kind in ("pre-training", "fine-tuning"):
    yield from _rows(kind, _in_a_process(config, kind, tunables=""))
    kept = _in_a_process(config, kind, tunables=_KEEP)
    yield f"{kind}, peak where freed memory is kept", kept["peak"] / 1e9, "GB"


def _rows(kind: str, sizes: dict[str, float]) -> Measured:
  grown = sizes["peak"] - sizes["before"]
  yield f"{kind}, a step as compiled", sizes["step"] / 1e9, "GB"
  yield f"{kind}, in use before the state is made", sizes["before"] / 1e9, "GB"
  yield f"{kind}, peak", sizes["peak"] / 1e9, "GB"
  yield f"{kind}, step over growth to the peak", 100 * sizes["step"] / grown, "%"
  whole = 100 * (sizes["before"] + sizes["step"]) / sizes["peak"]
  yield f"{kind}, planned over peak", whole, "%"
  yield f"{kind}, planned at most", (sizes["before"] + sizes["most"]) / 1e9, "GB"


def _in_a_process(config: PretrainConfig, kind: str, tunables: str) -> dict[str, float]:
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "config.json")
    with open(path, "w", encoding="utf-8") as file:
      json.dump(to_json(config), file)
    command = [sys.executable, "-c", _CHILD, path, kind]
    env = {**os.environ, "GLIBC_TUNABLES": tunables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
  if done.returncode:
    raise RuntimeError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


def report(path: str, kind: str) -> None:
  """Prints what `measure` returns; runs in the process that is measured."""
  with open(path, encoding="utf-8") as file:
    print(json.dumps(measure(from_json(json.load(file)), kind)))


def measure(config: PretrainConfig, kind: str) -> dict[str, float]:
  """Bytes of a step as compiled ("step", "most": see Needed), in use before the state is made, and
  at the peak of some steps.
  """
  trainer, batch = _trainer(config, kind)
  devices = trainer.mesh.local_devices
  compiled = trainer.compile(batch)
  step = bytes_needed(compiled) * (len(devices) if devices[0].platform == "cpu" else 1)
  most, temporaries = needed(compiled, devices)
  before = in_use(devices)
  state = trainer.init(0)
  freed = FreedMemory(1.5 * temporaries)
  for _ in range(STEPS):
    freed.give_back(lambda: None)
    state, _ = trainer.step(state, trainer.to_device(batch), 0)
    jax.block_until_ready(state)
  return {"step": step, "most": most, "before": before, "peak": peak_of(devices)}


def _trainer(config: PretrainConfig, kind: str) -> tuple[Trainer, Batch]:
  """A trainer at the config's shapes, and a batch of random ids."""
  batch = random_batch(config)
  heads: list[Any] = [LanguageHead()]
  if kind == "fine-tuning":
    batch, heads = labeled_batch(config), [LanguageHead(0.5), ClassifyHead()]
  return trainer_with(config, heads, batch), batch


def labeled_batch(config: PretrainConfig) -> Batch:
  """Random tokens, one example in each row, read at its end."""
  size, length = config.data.batch_size, config.data.length
  microbatches = config.train.parts  # rows are counted within one
  rows = np.arange(size, dtype=np.int32)[:, None] % (size // microbatches)
  distributions = np.tile(np.array([1, 0], np.float32), (size, 1))
  labels = Labels((rows + 1) * length - 1, distributions, np.ones(size, np.float32))
  return random_batch(config)._replace(labels=labels)
