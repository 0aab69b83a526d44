"""The speed of training: a step, its matrix products alone, and the steps of peers."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.apps import timing
from gpt_jax.apps.benchmark.peers import training_steps
from gpt_jax.apps.timing import Measured
from gpt_jax.batch import Batch
from gpt_jax.objectives.causal import Causal, causal_batch
from gpt_jax.ops.cross_entropy import chunk_elements
from gpt_jax.ops.product import product as times
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.programs.pretrain import PretrainConfig, step_recipe
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.reporter import mfu
from gpt_jax.training.trainer import Trainer


def training(config: PretrainConfig, peers: bool = False) -> Measured:
  """A training step, and its matrix products alone, whose times add up to a lower bound; with
  `peers` the same step of PyTorch and transformers, too.
  """
  trainer, rows, length = benchmark_trainer(config), config.data.batch_size, config.data.length
  products = matrix_products(config, trainer.mesh.size)
  dtypes = tuple(dict.fromkeys(("float32", config.trunk.dtype)))
  calls: dict[str, Callable[[], Any]] = {"ours": our_step(trainer, random_batch(config))}
  for dtype, (number, product) in itertools.product(dtypes, enumerate(products)):
    calls[f"{dtype} {number}"] = _multiplication(dtype, product)
  theirs = dict(training_steps(config.trunk, rows, length)) if peers else {}
  times = timing.in_turns(calls | theirs)

  duration, tokens = statistics.median(times["ours"]), rows * length
  flops_per_token = config.trunk.flops_per_token(length)
  yield "time of a step", duration, "s"
  yield "tokens", tokens / duration, "tokens/s"
  yield "work, attention counted whole", tokens * flops_per_token / duration / 1e9, "GFLOP/s"
  utilization = mfu(tokens / duration, flops_per_token)
  if utilization is not None:
    yield "MFU", 100 * utilization, "%"
  for dtype in dtypes if products else ():
    # Seconds that the work of a step would take at the speed of its matrix products.
    work = sum(product.times * product.flops for product in products) * trainer.mesh.size
    alone = [
      sum(product.times * times[f"{dtype} {n}"][turn] for n, product in enumerate(products))
      for turn in range(timing.ROUNDS)
    ]
    yield f"matrix products alone, {dtype}", work / statistics.median(alone) / 1e9, "GFLOP/s"
    # The ratio is the median over the turns, not that of two medians: noise is shared in a turn.
    share = tokens * flops_per_token / work * timing.ratio(alone, times["ours"])
    yield f"share of that peak, {dtype}", 100 * share, "%"
  for name in theirs:
    yield f"{name}, time of a step", statistics.median(times[name]), "s"
    yield f"time of a step, beside {name}", timing.ratio(times["ours"], times[name]), "times"


def random_batch(config: PretrainConfig) -> Batch:
  shape = (config.data.batch_size, config.data.length + 1)
  ids = np.random.default_rng(0).integers(config.trunk.vocab_size, size=shape, dtype=np.int32)
  return causal_batch(ids)


def our_step(trainer: Trainer, batch: Batch) -> Callable[[], jax.Array]:
  """A training step on a batch, always the same one."""
  state, on_device = trainer.init(0), trainer.to_device(batch)

  def step():
    nonlocal state
    state, metrics = trainer.step(state, on_device, 0)
    return metrics["loss"]

  return step


class Product(NamedTuple):
  """A matrix product."""

  einsum: str
  left: tuple[int, ...]  # shapes of the operands
  right: tuple[int, ...]
  times: float  # that a step computes it on one device

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
  if "blocks" not in c.gives:
    return []
  batch, length = config.data.batch_size / devices, config.data.length
  d, k = c.width, c.width // c.heads
  m = int(batch * length)
  products = []
  # Projections to queries, keys and values together, from the heads, and the two of the MLP.
  for inputs, outputs in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
    x, kernel, y = (m, inputs), (inputs, outputs), (m, outputs)
    # Forward, then the gradients of the input and of the kernel; so below.
    products.append(Product("mi,io->mo", x, kernel, c.layers))
    products.append(Product("mo,io->mi", y, kernel, c.layers))
    products.append(Product("mi,mo->io", x, y, c.layers))
  chunk = min(m, chunk_elements() // c.vocab_size)  # positions whose logits are computed at once
  hidden, table, logits = (chunk, d), (c.vocab_size, d), (chunk, c.vocab_size)
  products.append(Product("md,vd->mv", hidden, table, m / chunk))
  products.append(Product("mv,vd->md", logits, table, m / chunk))
  products.append(Product("md,mv->dv", hidden, logits, m / chunk))
  attention_heads = max(1, int(batch * c.heads))
  heads, square = (attention_heads, length, k), (attention_heads, length, length)
  # Each einsum occurs twice: the first gives the scores, and the gradient of their weights.
  products.append(Product("htk,hsk->hts", heads, heads, 2 * c.layers))
  products.append(Product("hts,hsk->htk", square, heads, 2 * c.layers))
  products.append(Product("hts,htk->hsk", square, heads, 2 * c.layers))
  return products


def _multiplication(dtype: str, product: Product) -> Callable[[], jax.Array]:
  left, right = (jnp.full(shape, 0.5, dtype) for shape in (product.left, product.right))
  multiply = jax.jit(lambda a, b: times(product.einsum, a, b, jnp.float32))
  return lambda: multiply(left, right)


def benchmark_trainer(config: PretrainConfig) -> Trainer:
  """The trainer of the config's trunk as a language model, on the config's mesh."""
  causal = dataclasses.replace(config, objective=Causal())
  return make_trainer(step_recipe(causal, causal_batch, make_mesh(config.mesh)))
