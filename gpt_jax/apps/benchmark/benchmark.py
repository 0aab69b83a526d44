"""Benchmarks of one config on this machine: training step, evaluation, memory, data, generation,
start, checkpoints, packed fine-tuning, and how the cost grows.
"""

import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from gpt_jax.apps.benchmark.adapters import adapters
from gpt_jax.apps.benchmark.attention import attention_backends
from gpt_jax.apps.benchmark.classifier import classifier
from gpt_jax.apps.benchmark.finetuning import finetuning
from gpt_jax.apps.benchmark.generation import generation
from gpt_jax.apps.benchmark.growth import growth
from gpt_jax.apps.benchmark.machine import machine
from gpt_jax.apps.benchmark.memory import memory
from gpt_jax.apps.benchmark.parts import ladder
from gpt_jax.apps.benchmark.training import benchmark_trainer, evaluation, masked, training
from gpt_jax.checkpoints.run_folder import resume_choices
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.token_writer import TokenWriter
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.windows import Windows
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.programs.outputs import check_out
from gpt_jax.programs.pretrain_config import PAPER_VOCABULARY, PretrainConfig, check_type
from gpt_jax.training.timing import Measured, seconds

WITH_PEERS = ("step", "generation", "finetuning")


class Row(NamedTuple):
  """One measured number."""

  part: str
  name: str
  value: float
  unit: str


def run(
  config: PretrainConfig,
  only: tuple[str, ...] = (),
  out: str = "",
  *,
  data_dir: str = "",
  tokenizer: str = "",
  peers: bool = False,
  overwrite: bool = False,
) -> list[Row]:
  """Measures and prints a table.

  Args:
    config: what to measure; without a vocabulary size it gets the paper's 40,478.
    only: the parts to measure, of PARTS, MORE and "finetuning"; (): PARTS and, if its data is
      given, "finetuning".
    out: JSON file for the same numbers.
    data_dir: for "finetuning", folder of CoLA's and MRPC's official files.
    tokenizer: for "finetuning", folder of a vocabulary.
    peers: whether PyTorch and transformers do the work of WITH_PEERS too, in turns with ours.
    overwrite: whether an existing `out` is replaced.

  Raises:
    InputError: an unknown part, "finetuning" without its data, or an existing `out`.
  """
  check_type(config, "a benchmark")
  config = resume_choices(config)
  if out:
    check_out(out, overwrite)
  parts = _parts(only, data_dir, tokenizer)
  for part in WITH_PEERS if peers else ():
    if part in parts:
      parts[part] = functools.partial(parts[part], peers=True)
  vocab_size = config.trunk.vocab_size or PAPER_VOCABULARY
  config = dataclasses.replace(
    config, trunk=dataclasses.replace(config.trunk, vocab_size=vocab_size)
  )

  here = machine()
  print(", ".join(f"{name} {value}" for name, value in here.items()))
  rows = []
  for part, measure in parts.items():
    for name, value, unit in measure(config):
      rows.append(Row(part, name, value, unit))
      print(f"{part:11} {name:48} {value:>12,.4g} {unit}", flush=True)
  if out:
    write_json(out, {**here, "config": to_json(config), "rows": [row._asdict() for row in rows]})
  return rows


def _parts(
  only: tuple[str, ...], data_dir: str, tokenizer: str
) -> dict[str, Callable[..., Measured]]:
  """The parts to measure. Raises InputError for an unknown one, or one without its data."""
  parts = PARTS | MORE
  if data_dir and tokenizer:
    parts["finetuning"] = functools.partial(finetuning, data_dir=data_dir, tokenizer=tokenizer)
  elif data_dir or tokenizer or "finetuning" in only:
    raise InputError(
      "finetuning needs both --data, with glue/ in it, and --tokenizer, the folder of a vocabulary"
    )
  for part in only:
    if part not in parts:
      known = ", ".join([*PARTS, *MORE, "finetuning"])
      raise InputError(f"--only={part}: must be among {known}")
  given = ["finetuning"] if data_dir else []
  return {part: parts[part] for part in only or [*PARTS, *given]}


def data(config: PretrainConfig) -> Measured:
  """Batches of windows read from a token file by one thread."""
  with tempfile.TemporaryDirectory() as folder:
    writer = TokenWriter(folder, "train", config.trunk.vocab_size)
    rng = np.random.default_rng(0)
    for _ in range(100):
      writer.add(rng.integers(config.trunk.vocab_size, size=100_000), 400_000, 80_000)
    writer.close(tokenizer_hash="")
    windows, steps = Windows(TokenFile(folder, "train"), config.data), itertools.count()
    duration = seconds(lambda: causal_batch(windows(next(steps))))
  yield "windows", config.data.batch_size / duration, "windows/s"
  yield "tokens", config.data.batch_size * config.data.length / duration, "tokens/s"


def start(config: PretrainConfig) -> Measured:
  """From the command to the end of its first step, in a new process, with a small vocabulary."""
  config = dataclasses.replace(
    config,
    trunk=dataclasses.replace(config.trunk, vocab_size=0),
    train=dataclasses.replace(config.train, steps=1, epochs=0, log_every=1),
    evaluation_batches=1,
  )
  with tempfile.TemporaryDirectory() as folder:
    _write_small_data(f"{folder}/data", config.data.length)
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
      json.dump(to_json(config), file)
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
    for cache in ("cold", "warm"):
      duration = _time_to_first_step(folder, f"{folder}/{cache}", env)
      yield f"time to the first step, {cache} compilation cache", duration, "s"


def _time_to_first_step(folder: str, workdir: str, env: dict[str, str]) -> float:
  arguments = [f"{folder}/config.json", f"{folder}/data", workdir]
  began = time.perf_counter()
  with subprocess.Popen(
    [sys.executable, "-c", _START, *arguments], env=env, stderr=subprocess.PIPE, text=True
  ) as process:
    lines = []
    assert process.stderr is not None
    for line in process.stderr:
      lines.append(line)
      # The line is written once the step's loss is on the host.
      if line.startswith("step 1/1"):
        duration = time.perf_counter() - began
        # Until it ends: its next line would fail, once the pipe is closed.
        process.stderr.read()
        return duration
  raise RuntimeError("".join(lines))


_START = """
import json, sys
from gpt_jax.config import from_json
from gpt_jax.programs import pretrain
pretrain.run(from_json(json.load(open(sys.argv[1]))), *sys.argv[2:])
"""


def checkpoint(config: PretrainConfig) -> Measured:
  """Saving a state: how long training waits, and how long until it is on disk."""
  state = benchmark_trainer(config).init(config.train.seed)
  jax.block_until_ready(state)
  with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
    waits, totals = [], []
    for number in range(3):
      began = time.perf_counter()
      checkpoints.save(number, state, {})
      waits.append(time.perf_counter() - began)
      checkpoints.wait()
      totals.append(time.perf_counter() - began)
  yield "size", sum(x.nbytes for x in jax.tree.leaves(state)) / 1e9, "GB"
  # The first save compiles the fingerprints.
  yield "training waits", statistics.median(waits[1:]), "s"
  yield "until it is on disk", statistics.median(totals[1:]), "s"


PARTS: dict[str, Callable[..., Measured]] = {
  "step": training,
  "evaluation": evaluation,
  "memory": memory,
  "data": data,
  "generation": generation,
  "start": start,
  "checkpoint": checkpoint,
}
MORE: dict[str, Callable[..., Measured]] = {
  "adapters": adapters,
  "attention": attention_backends,
  "classifier": classifier,
  "growth": growth,
  "masked": masked,
  "parts": ladder,
}


def _write_small_data(folder: str, length: int) -> None:
  os.makedirs(folder)
  tokenizer = SentencePieceTokenizer.train(["the benchmark reads this again and again"], 280)
  tokenizer.save(f"{folder}/tokenizer")
  for split in ("train", "valid"):
    writer = TokenWriter(folder, split, tokenizer.vocab_size)
    ids = np.random.default_rng(0).integers(2, tokenizer.vocab_size, size=20 * length)
    writer.add(ids, 4 * len(ids), len(ids))
    writer.close(tokenizer_hash=tokenizer.hash)
