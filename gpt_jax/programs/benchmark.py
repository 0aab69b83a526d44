"""The program that measures: training step, data, generation, start and checkpoints of one
config on this machine.
"""

import dataclasses
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
from gpt_jax.files import write_json
from gpt_jax.inference import generate
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, language_model, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import CHUNK_ELEMENTS
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch, to_device
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import Task, find
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.step import TrainState, compile_init, init_state, make_step

ROUNDS = (
  5  # of matrix products and steps in turn, so that both meet the same load; medians are reported
)
PAPER_VOCABULARY = 40_478
EXAMPLES = 32  # in a batch of fine-tuning


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
) -> list[Row]:
  """Measures and prints a table.

  Args:
    config: what to measure; without a vocabulary it gets the paper's 40,478 ids.
    only: the parts to measure, of PARTS; none: all, "finetuning" only with its data.
    out: JSON file for the same numbers.
    data_dir, tokenizer: for "finetuning", the folder with CoLA's and MRPC's official files, and
      that of a vocabulary.

  Raises:
    InputError: an unknown part, or "finetuning" without its data.
  """
  if not isinstance(config, PretrainConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; what is measured is a pre-training, as configs/gpt1.py has"
    )
  if out and (os.path.isdir(out) or not os.path.isdir(os.path.dirname(os.path.abspath(out)))):
    raise InputError(
      f"--json={out}: {'a folder' if os.path.isdir(out) else 'no such folder'}; name a file"
    )
  parts = PARTS | {
    "finetuning": functools.partial(finetuning, data_dir=data_dir, tokenizer=tokenizer)
  }
  for part in only:
    if part not in parts:
      raise InputError(f"--only={part}: must be among {', '.join(parts)}")
  if bool(data_dir) != bool(tokenizer) or ("finetuning" in only and not data_dir):
    raise InputError(
      "finetuning needs both --data_dir, with glue/ in it, and --tokenizer, the folder of a vocabulary"
    )
  config = dataclasses.replace(
    config,
    trunk=dataclasses.replace(config.trunk, vocab_size=config.trunk.vocab_size or PAPER_VOCABULARY),
  )
  device = jax.devices()[0]
  devices = f"{jax.device_count()} x {device.device_kind} ({device.platform})"
  print(f"{devices}, {os.cpu_count()} CPU cores, jax {jax.__version__}")
  rows = []
  for part in only or (parts if data_dir else PARTS):
    for name, value, unit in parts[part](config):
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


Measured = Iterator[tuple[str, float, str]]


def step(config: PretrainConfig) -> Measured:
  """A training step, beside the matrix products in it alone: their times add up to the least a
  step can take.
  """
  mesh = make_mesh(config.mesh)
  state, advance = _training(config)
  rows = np.random.default_rng(0).integers(
    config.trunk.vocab_size, size=(config.data.batch_size, config.data.length + 1), dtype=np.int32
  )
  batch = to_device(causal_batch(rows), mesh, config.train.microbatches, config.mesh.backend)

  def one_step():
    nonlocal state
    state, metrics = advance(state, batch)
    return metrics["loss"]

  tokens = config.data.batch_size * config.data.length
  flops = tokens * config.trunk.flops_per_token(config.data.length)
  dtypes = dict.fromkeys(("float32", config.trunk.dtype))
  products = [(dtype, p) for dtype in dtypes for p in matrix_products(config, mesh.size)]
  runs = [_product(dtype, p) for dtype, p in products]
  for warm_up in (one_step, *runs):
    jax.block_until_ready(warm_up())
  steps, times = [], []
  for _ in range(ROUNDS):
    times.append([seconds(run) for run in runs])
    steps.append(seconds(one_step))
  took = statistics.median(steps)
  yield "time of a step", took, "s"
  yield "tokens", tokens / took, "tokens/s"
  yield "work, attention counted whole", flops / took / 1e9, "GFLOP/s"
  for dtype in dtypes:
    here = [i for i, (kind, _) in enumerate(products) if kind == dtype]
    alone = [sum(products[i][1].count * of_round[i] for i in here) for of_round in times]
    work = sum(products[i][1].count * products[i][1].flops for i in here) * mesh.size
    if here:
      yield f"matrix products alone, {dtype}", work / statistics.median(alone) / 1e9, "GFLOP/s"
      share = statistics.median(flops / a * b / work for a, b in zip(steps, alone, strict=True))
      yield f"share of that peak, {dtype}", 100 * share, "%"


def data(config: PretrainConfig) -> Measured:
  """Windows read from a token file by one thread."""
  with tempfile.TemporaryDirectory() as folder:
    writer = TokenWriter(folder, "train", config.trunk.vocab_size)
    rng = np.random.default_rng(0)
    for _ in range(100):
      writer.add(rng.integers(config.trunk.vocab_size, size=100_000), 400_000, 80_000)
    writer.close(tokenizer_hash="")
    windows, steps = Windows(TokenFile(folder, "train"), config.data), iter(range(1 << 40))
    took = seconds(lambda: causal_batch(windows(next(steps))))
  yield "windows", config.data.batch_size / took, "windows/s"
  yield "tokens", config.data.batch_size * config.data.length / took, "tokens/s"


def generation(config: PretrainConfig) -> Measured:
  """Tokens added to prompts of 16, by 112 or as many as the context has room for."""
  state, _ = _training(config)
  model = language_model(config.trunk)
  new = min(112, config.trunk.context - 16)
  for batch in (1, 16):
    prompts = [list(range(16))] * batch

    def sample(prompts=prompts):
      return generate.sample(model, state.params, prompts, range(len(prompts)), new)

    sample()
    yield (
      f"batch {batch}",
      batch * new / statistics.median(seconds(sample) for _ in range(3)),
      "tokens/s",
    )


def start(config: PretrainConfig) -> Measured:
  """From a command to the end of its first step, in a new process, with a small vocabulary."""
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
      command = [
        sys.executable,
        "-c",
        _START,
        f"{folder}/config.json",
        f"{folder}/data",
        f"{folder}/{cache}",
      ]
      began = time.perf_counter()
      with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
          said.append(line)
          if line.startswith("step 1/1"):
            yield (
              f"time to the first step, {cache} compilation cache",
              time.perf_counter() - began,
              "s",
            )
            break
        else:
          raise RuntimeError("".join(said))
        process.stderr.read()


_START = """
import json, sys
from gpt_jax import config
from gpt_jax.config import from_json
from gpt_jax.programs import pretrain
pretrain.run(from_json(json.load(open(sys.argv[1]))), *sys.argv[2:])
"""


def checkpoint(config: PretrainConfig) -> Measured:
  """Saving a state: how long training waits, and how long until all is on disk."""
  state, _ = _training(config)
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
  # The first compiles the fingerprints.
  yield "training waits", statistics.median(waits[1:]), "s"
  yield "until it is on disk", statistics.median(totals[1:]), "s"


def finetuning(config: PretrainConfig, data_dir: str, tokenizer: str) -> Measured:
  """Examples a second of CoLA and MRPC, packed as for fine-tuning, and padded to the longest as
  in OpenAI's code.
  """
  vocabulary = load_tokenizer(tokenizer)
  trunk = dataclasses.replace(config.trunk, vocab_size=vocabulary.vocab_size)
  for name in ("cola", "mrpc"):
    task = find(name)
    encoded = task.encode(task.examples(data_dir, "train"), vocabulary, trunk.context)
    yield (
      f"{name}, longest sequence over the mean",
      encoded.lengths.max() / encoded.lengths.mean(),
      "times",
    )
    yield from _packing(dataclasses.replace(config, trunk=trunk), task, encoded)


def _packing(config: PretrainConfig, task: Task, encoded: Encoded) -> Measured:
  """One batch, packed and padded, trained on with the auxiliary loss and evaluated, in turns."""
  mesh = make_mesh(config.mesh)
  model = ModelConfig(config.trunk, (LanguageHead(0.5), *make_heads([task.head]))).build()
  packed = PackedBatches(encoded, EXAMPLES, seed=0, epochs=1, row_multiple=mesh.size)(0)
  batches = {"packed": packed, "padded": one_sequence_per_row(packed, int(encoded.lengths.max()))}
  optimizer, schedule = make_optimizer(config.optim, 10_000)
  make_state = init_state(lambda key: model.init(key, packed)["params"], optimizer)
  make_state, shardings = compile_init(
    make_state, mesh, config.trunk.TENSOR_PARALLEL, config.mesh.fsdp
  )
  advance = make_step(model_loss(model), optimizer, schedule, mesh, shardings)
  scores = jax.jit(
    lambda params, batch: model.apply(
      {"params": params}, jax.tree.map(lambda x: x[0], batch)
    ).heads[1]
  )
  state, placed = (
    make_state(np.uint32(0)),
    {kind: to_device(batch, mesh) for kind, batch in batches.items()},
  )

  def training(kind):
    nonlocal state
    state, metrics = advance(state, placed[kind], np.uint32(0))
    return metrics["loss"]

  def evaluation(kind):
    return scores(state.params, placed[kind])

  for work in (training, evaluation):
    for kind in batches:
      jax.block_until_ready(work(kind))  # compiles
    rounds = [[seconds(functools.partial(work, kind)) for kind in batches] for _ in range(ROUNDS)]
    for kind, times in zip(batches, zip(*rounds, strict=True), strict=True):
      shape = " x ".join(map(str, batches[kind].rows.inputs.shape))
      yield (
        f"{task.name} {work.__name__}, {kind} to {shape}",
        EXAMPLES / statistics.median(times),
        "examples/s",
      )
    yield (
      f"{task.name} {work.__name__}, packed",
      statistics.median(b / a for a, b in rounds),
      "times as fast",
    )


def one_sequence_per_row(batch: Batch, length: int) -> Batch:
  """The same examples with each sequence in a row of its own, padded to `length`."""
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
  "data": data,
  "generation": generation,
  "start": start,
  "checkpoint": checkpoint,
}


class Product(NamedTuple):
  """A matrix product: an einsum, the shapes of its operands, and how often a step makes it on
  one device.
  """

  einsum: str
  left: tuple[int, ...]
  right: tuple[int, ...]
  count: float

  @property
  def flops(self) -> float:
    """2 x the product of all dimensions."""
    inputs = self.einsum.partition("->")[0].split(",")
    sizes = dict(zip("".join(inputs), (*self.left, *self.right), strict=True))
    return 2.0 * float(np.prod(list(sizes.values()), dtype=float))


def matrix_products(config: PretrainConfig, devices: int) -> list[Product]:
  """Those of a training step of the Transformer, forward and backward; attention whole, as in
  flops_per_token.
  """
  c = config.trunk
  if not isinstance(c, TransformerConfig):
    return []
  batch, length, d, k = (
    config.data.batch_size / devices,
    config.data.length,
    c.width,
    c.width // c.heads,
  )
  m = int(batch * length)
  products = []
  for inputs, outputs in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
    x, kernel, y = (m, inputs), (inputs, outputs), (m, outputs)
    products.append(Product("mi,io->mo", x, kernel, c.layers))
    products.append(Product("mo,io->mi", y, kernel, c.layers))
    products.append(Product("mi,mo->io", x, y, c.layers))
  some = min(m, CHUNK_ELEMENTS // c.vocab_size)
  hidden, table, scores = (some, d), (c.vocab_size, d), (some, c.vocab_size)
  products.append(Product("md,vd->mv", hidden, table, m / some))
  products.append(Product("mv,vd->md", scores, table, m / some))
  products.append(Product("mv,md->vd", scores, hidden, m / some))
  heads, square = (
    (max(1, int(batch * c.heads)), length, k),
    (max(1, int(batch * c.heads)), length, length),
  )
  products.append(Product("htk,hsk->hts", heads, heads, 2 * c.layers))
  products.append(Product("hts,hsk->htk", square, heads, 2 * c.layers))
  products.append(Product("hts,htk->hsk", square, heads, 2 * c.layers))
  return products


def seconds(run: Callable[[], Any], least: float = 0.1) -> float:
  """Mean time of a call, of as many as take `least` seconds together; a device's work is waited
  for.
  """

  def of(calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
      result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls

  # Calls return before their work is done, so their number must be known before: a first one tells.
  first = of(1)
  return first if first >= least else of(math.ceil(least / first))


def _product(dtype: str, product: Product) -> Callable[[], jax.Array]:
  left, right = (jnp.full(shape, 0.5, dtype) for shape in (product.left, product.right))
  multiply = jax.jit(lambda a, b: jnp.einsum(product.einsum, a, b))
  return lambda: multiply(left, right)


def _training(
  config: PretrainConfig,
) -> tuple[TrainState, Callable[[TrainState, Any], tuple[TrainState, Any]]]:
  """A fresh state on the config's mesh, and the step that advances it."""
  mesh = make_mesh(config.mesh)
  check_batch(config.data.batch_size, mesh, config.train.microbatches)
  model = language_model(config.trunk)
  optimizer, schedule = make_optimizer(config.optim, 10_000)
  example = causal_batch(np.zeros((1, config.data.length + 1), np.int32))
  make_state = init_state(lambda key: model.init(key, example)["params"], optimizer)
  make_state, shardings = compile_init(
    make_state, mesh, config.trunk.TENSOR_PARALLEL, config.mesh.fsdp
  )
  advance = make_step(
    model_loss(model),
    optimizer,
    schedule,
    mesh,
    shardings,
    microbatches=config.train.microbatches,
    backend=config.mesh.backend,
  )
  seed = np.uint32(config.train.seed)
  return make_state(seed), lambda state, batch: advance(state, batch, seed)


def _write_small_data(folder: str, length: int) -> None:
  os.makedirs(folder)
  tokenizer = SentencePieceTokenizer.train(["the benchmark reads this again and again"], 280)
  tokenizer.save(f"{folder}/tokenizer")
  for split in ("train", "valid"):
    writer = TokenWriter(folder, split, tokenizer.vocab_size)
    ids = np.random.default_rng(0).integers(2, tokenizer.vocab_size, size=20 * length)
    writer.add(ids, 4 * len(ids), len(ids))
    writer.close(tokenizer_hash=tokenizer.hash)
