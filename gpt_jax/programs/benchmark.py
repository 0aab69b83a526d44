"""Benchmarks of one config on this machine: training step, memory, data, generation, start,
checkpoints and packed fine-tuning.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenFile, TokenWriter
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.windows import Windows
from gpt_jax.errors import InputError
from gpt_jax.files import check_out, write_json
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, Outputs, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import CHUNK_ELEMENTS
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch
from gpt_jax.programs import generation_speed, memory_use
from gpt_jax.programs.pretrain import PretrainConfig, make_trainer
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import LabeledTask, find
from gpt_jax.training.flops import mfu
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.trainer import Trainer

# Steps and matrix products are timed in turn, under the same load; medians are reported.
ROUNDS = 5
PAPER_VOCABULARY = 40_478
FINETUNING_BATCH = 32  # examples
TOTAL_STEPS = 10_000  # of the schedule; no run is that long


class Row(NamedTuple):
  """One measured number."""

  part: str
  name: str
  value: float
  unit: str


Measured = Iterator[tuple[str, float, str]]  # name, value, unit


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
    only: the parts to measure, of PARTS and "finetuning"; (): all whose data is given.
    out: JSON file for the same numbers.
    data_dir: for "finetuning", folder of CoLA's and MRPC's official files.
    tokenizer: for "finetuning", folder of a vocabulary.
    peers: for "generation": also transformers', in turns with ours.
    overwrite: whether an existing `out` is replaced.

  Raises:
    InputError: an unknown part, "finetuning" without its data, or an existing `out`.
  """
  if not isinstance(config, PretrainConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; what is measured is a pre-training, "
      "as in configs/gpt1.py"
    )
  if out:
    check_out(out, overwrite)
  parts = _parts(only, data_dir, tokenizer)
  if peers and "generation" in parts:
    parts["generation"] = functools.partial(generation, peers=True)
  vocab_size = config.trunk.vocab_size or PAPER_VOCABULARY
  config = dataclasses.replace(
    config, trunk=dataclasses.replace(config.trunk, vocab_size=vocab_size)
  )

  device = jax.devices()[0]
  devices = f"{jax.device_count()} x {device.device_kind} ({device.platform})"
  print(f"{devices}, {os.cpu_count()} CPU cores, jax {jax.__version__}")
  rows = []
  for part, measure in parts.items():
    for name, value, unit in measure(config):
      rows.append(Row(part, name, value, unit))
      print(f"{part:11} {name:48} {value:>12,.4g} {unit}", flush=True)
  if out:
    machine = {
      "device": device.device_kind,
      "devices": jax.device_count(),
      "cpus": os.cpu_count(),
      "jax": jax.__version__,
    }
    write_json(out, {**machine, "config": to_json(config), "rows": [row._asdict() for row in rows]})
  return rows


def _parts(
  only: tuple[str, ...], data_dir: str, tokenizer: str
) -> dict[str, Callable[[PretrainConfig], Measured]]:
  """The parts to measure. Raises InputError for an unknown one, or one without its data."""
  parts = dict(PARTS)
  if data_dir and tokenizer:
    parts["finetuning"] = functools.partial(finetuning, data_dir=data_dir, tokenizer=tokenizer)
  elif data_dir or tokenizer or "finetuning" in only:
    raise InputError(
      "finetuning needs both --data, with glue/ in it, and --tokenizer, the folder of a vocabulary"
    )
  for part in only:
    if part not in parts:
      raise InputError(f"--only={part}: must be among {', '.join([*PARTS, 'finetuning'])}")
  return {part: parts[part] for part in only or parts}


def step(config: PretrainConfig) -> Measured:
  """A training step, and its matrix products alone, whose times add up to a lower bound."""
  trainer = _trainer(config)
  state = trainer.init(config.train.seed)
  rows = np.random.default_rng(0).integers(
    config.trunk.vocab_size, size=(config.data.batch_size, config.data.length + 1), dtype=np.int32
  )
  batch = trainer.to_device(causal_batch(rows))

  def one_step():
    nonlocal state
    state, metrics = trainer.step(state, batch, config.train.seed)
    return metrics["loss"]

  dtypes = dict.fromkeys(("float32", config.trunk.dtype))
  products = matrix_products(config, trainer.mesh.size)
  multiplications = {
    dtype: [_multiplication(dtype, product) for product in products] for dtype in dtypes
  }
  for warm_up in (one_step, *itertools.chain(*multiplications.values())):
    jax.block_until_ready(warm_up())
  step_times = []
  product_times: dict[str, list[float]] = {dtype: [] for dtype in dtypes}  # of all products in turn
  for _ in range(ROUNDS):
    for dtype, calls in multiplications.items():
      timed = zip(products, calls, strict=True)
      product_times[dtype].append(sum(product.times * seconds(call) for product, call in timed))
    step_times.append(seconds(one_step))

  duration = statistics.median(step_times)
  tokens = config.data.batch_size * config.data.length
  flops = tokens * config.trunk.flops_per_token(config.data.length)
  yield "time of a step", duration, "s"
  yield "tokens", tokens / duration, "tokens/s"
  yield "work, attention counted whole", flops / duration / 1e9, "GFLOP/s"
  utilization = mfu(tokens / duration, config.trunk.flops_per_token(config.data.length))
  if utilization is not None:
    yield "MFU", 100 * utilization, "%"
  if not products:
    return
  work = sum(product.times * product.flops for product in products) * trainer.mesh.size
  for dtype, times in product_times.items():
    yield f"matrix products alone, {dtype}", work / statistics.median(times) / 1e9, "GFLOP/s"
    pairs = zip(step_times, times, strict=True)
    share = statistics.median(flops / whole * alone / work for whole, alone in pairs)
    yield f"share of that peak, {dtype}", 100 * share, "%"


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


def generation(config: PretrainConfig, peers: bool = False) -> Measured:
  """Greedy generation with random parameters; see generation_speed.generation."""
  params = _trainer(config).init(config.train.seed).params
  yield from generation_speed.generation(config.trunk, params, ROUNDS, peers)


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
      if line.startswith("step 1/1"):
        duration = time.perf_counter() - began
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
  state = _trainer(config).init(config.train.seed)
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


def finetuning(config: PretrainConfig, data_dir: str, tokenizer: str) -> Measured:
  """Examples per second of CoLA and MRPC: packed, as we fine-tune, and padded to the longest, as in
  OpenAI's code.
  """
  vocabulary = load_tokenizer(tokenizer)
  trunk = dataclasses.replace(config.trunk, vocab_size=vocabulary.vocab_size)
  config = dataclasses.replace(config, trunk=trunk)
  for name in ("cola", "mrpc"):
    task = find(name)
    encoded = task.encode(task.examples(data_dir, "train"), vocabulary, trunk.context)
    ratio = encoded.lengths.max() / encoded.lengths.mean()
    yield f"{name}, longest sequence over the mean", ratio, "times"
    yield from _packing(config, task, encoded)


def _packing(config: PretrainConfig, task: LabeledTask, encoded: Encoded) -> Measured:
  """Training with the auxiliary loss and evaluation of one batch, packed and padded in turns."""
  mesh = make_mesh(config.mesh)
  model = ModelConfig(config.trunk, (LanguageHead(0.5), *make_heads([task.head]))).build()
  packed = PackedBatches(encoded, FINETUNING_BATCH, seed=0, epochs=1, row_multiple=mesh.size)(0)
  trainer = Trainer.build(
    model,
    model_loss(model),
    packed,
    make_optimizer(config.optim, TOTAL_STEPS),
    mesh,
    rules=config.trunk.TENSOR_PARALLEL,
    fsdp=config.mesh.fsdp,
  )
  state = trainer.init(0)
  padded = one_sequence_per_row(packed, int(encoded.lengths.max()))
  batches = {"packed": trainer.to_device(packed), "padded": trainer.to_device(padded)}

  @jax.jit
  def scores(params, batch):
    outputs = model.apply({"params": params}, jax.tree.map(lambda x: x[0], batch))
    return cast(Outputs, outputs).heads[1]

  def training(layout):
    nonlocal state
    state, metrics = trainer.step(state, batches[layout], 0)
    return metrics["loss"]

  def evaluation(layout):
    return scores(state.params, batches[layout])

  for work in (training, evaluation):
    name = f"{task.name} {work.__name__}"
    times: dict[str, list[float]] = {layout: [] for layout in batches}
    for layout in batches:
      jax.block_until_ready(work(layout))  # compiles
    for _ in range(ROUNDS):
      for layout in batches:
        times[layout].append(seconds(functools.partial(work, layout)))
    for layout, batch in batches.items():
      shape = " x ".join(map(str, batch.rows.inputs.shape[1:]))
      rate = FINETUNING_BATCH / statistics.median(times[layout])
      yield f"{name}, {layout} to {shape}", rate, "examples/s"
    pairs = zip(times["packed"], times["padded"], strict=True)
    yield f"{name}, packed", statistics.median(b / a for a, b in pairs), "times as fast"


def one_sequence_per_row(batch: Batch, length: int) -> Batch:
  """The same examples with each sequence in a row of its own, padded to `length`."""
  assert batch.labels is not None and batch.predictions is not None
  rows, anchors = batch.rows, batch.labels.anchors
  count = anchors.size
  packed = [*rows[:3], batch.predictions.targets, batch.predictions.weights]
  padded = [np.zeros((count, length), x.dtype) for x in packed]
  for row, anchor in enumerate(anchors.reshape(-1)):
    packed_row, last = divmod(int(anchor), rows.inputs.shape[1])
    first = last - int(rows.positions[packed_row, last])
    size = last + 1 - first
    for x, packed_x in zip(padded, packed, strict=True):
      x[row, :size] = packed_x[packed_row, first : last + 1]
    padded[2][row, :size] = 1  # segments
  sizes = (padded[2] > 0).sum(axis=1)
  new_anchors = (np.arange(count) * length + sizes - 1).reshape(anchors.shape).astype(np.int32)
  return Batch(
    Rows(*padded[:3]),
    predictions=Predictions(*padded[3:]),
    labels=batch.labels._replace(anchors=new_anchors),
  )


PARTS = {
  "step": step,
  "memory": memory_use.training,
  "data": data,
  "generation": generation,
  "start": start,
  "checkpoint": checkpoint,
}


class Product(NamedTuple):
  """A matrix product: an einsum, the shapes of its operands, and how often a step computes it on
  one device.
  """

  einsum: str
  left: tuple[int, ...]
  right: tuple[int, ...]
  times: float

  @property
  def flops(self) -> float:
    """2 x the product of all dimensions."""
    inputs = self.einsum.partition("->")[0].split(",")
    sizes = dict(zip("".join(inputs), (*self.left, *self.right), strict=True))
    return 2.0 * float(np.prod(list(sizes.values()), dtype=float))


def matrix_products(config: PretrainConfig, devices: int) -> list[Product]:
  """The products of a Transformer's training step, forward and backward; [] for other trunks.

  Attention is counted whole, as in flops_per_token.
  """
  c = config.trunk
  if not isinstance(c, TransformerConfig):
    return []
  batch, length = config.data.batch_size / devices, config.data.length
  d, k = c.width, c.width // c.heads
  m = int(batch * length)
  products = []
  for inputs, outputs in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
    x, kernel, y = (m, inputs), (inputs, outputs), (m, outputs)
    products.append(Product("mi,io->mo", x, kernel, c.layers))
    products.append(Product("mo,io->mi", y, kernel, c.layers))
    products.append(Product("mi,mo->io", x, y, c.layers))
  chunk = min(m, CHUNK_ELEMENTS // c.vocab_size)  # positions whose logits are computed at once
  hidden, table, logits = (chunk, d), (c.vocab_size, d), (chunk, c.vocab_size)
  products.append(Product("md,vd->mv", hidden, table, m / chunk))
  products.append(Product("mv,vd->md", logits, table, m / chunk))
  products.append(Product("mv,md->vd", logits, hidden, m / chunk))
  attention_heads = max(1, int(batch * c.heads))
  heads, square = (attention_heads, length, k), (attention_heads, length, length)
  products.append(Product("htk,hsk->hts", heads, heads, 2 * c.layers))
  products.append(Product("hts,hsk->htk", square, heads, 2 * c.layers))
  products.append(Product("hts,htk->hsk", square, heads, 2 * c.layers))
  return products


def seconds(run: Callable[[], Any], least: float = 0.1) -> float:
  """Mean time of a call, over as many calls as take `least` seconds; waits for the device."""

  def mean_of(calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
      result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls

  # Calls return before their work is done, so their number is fixed beforehand, from the first one.
  first = mean_of(1)
  return first if first >= least else mean_of(math.ceil(least / first))


def _multiplication(dtype: str, product: Product) -> Callable[[], jax.Array]:
  left, right = (jnp.full(shape, 0.5, dtype) for shape in (product.left, product.right))
  multiply = jax.jit(lambda a, b: jnp.einsum(product.einsum, a, b))
  return lambda: multiply(left, right)


def _trainer(config: PretrainConfig) -> Trainer:
  """The config's trainer on its mesh."""
  mesh = make_mesh(config.mesh)
  check_batch(config.data.batch_size, mesh, config.train.microbatches)
  return make_trainer(config, ModelConfig(config.trunk), causal_batch, mesh, TOTAL_STEPS)


def _write_small_data(folder: str, length: int) -> None:
  os.makedirs(folder)
  tokenizer = SentencePieceTokenizer.train(["the benchmark reads this again and again"], 280)
  tokenizer.save(f"{folder}/tokenizer")
  for split in ("train", "valid"):
    writer = TokenWriter(folder, split, tokenizer.vocab_size)
    ids = np.random.default_rng(0).integers(2, tokenizer.vocab_size, size=20 * length)
    writer.add(ids, 4 * len(ids), len(ids))
    writer.close(tokenizer_hash=tokenizer.hash)
