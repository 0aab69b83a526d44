"""The speed of generation: reading the prompt, and each new token, beside transformers'."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.apps.benchmark.peers.generation import generator
from gpt_jax.apps.benchmark.training import benchmark_trainer
from gpt_jax.inference.decoding import MAX_STEPS
from gpt_jax.inference.stream import Sampling, Stream, Text
from gpt_jax.models.model import language_model
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured

_PROMPT = 32  # tokens
_NEW = 96  # tokens, or as many as fit into the context
_READ = 2**26  # floats that are read to measure the bandwidth of the memory

Generate = Callable[[int, int], Any]  # (batch, new tokens): greedy, from prompts of _PROMPT tokens


def generation(config: PretrainConfig, peers: bool = False) -> Measured:
  """Greedy generation with random parameters at batch 1 and 16, all systems in turns.

  Args:
    config: with a vocabulary size.
    peers: whether to measure transformers' GPT-2 of the same sizes, too.

  Raises:
    InputError: no transformers, or no Transformer.
  """
  trunk = config.trunk
  params = benchmark_trainer(config).init(config.train.seed).params
  prompt = min(_PROMPT, trunk.context // 2)
  new = min(_NEW, trunk.context - prompt)
  systems = {"": _ours(trunk, params, prompt)}
  if peers:
    systems["transformers, "] = generator(trunk, prompt)
  weights = sum(x.nbytes for x in jax.tree.leaves(params["trunk"]))
  for batch in (1, 16):
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    bandwidths = []
    for generate in systems.values():
      generate(batch, 1), generate(batch, new)  # compiles
    for _ in range(timing.ROUNDS):
      for name, generate in systems.items():
        first = _seconds(generate, batch, 1)
        rest = _seconds(generate, batch, new) - first
        times[name].append((first, max(rest, 1e-9)))
      bandwidths.append(_bandwidth())
    for name, pairs in times.items():
      first = statistics.median(first for first, _ in pairs)
      yield f"{name}batch {batch}, {prompt} tokens and the first new one", first, "s"
      rate = statistics.median(batch * (new - 1) / rest for _, rest in pairs)
      yield f"{name}batch {batch}, each further token", rate, "tokens/s"
    if peers:
      ours, theirs = times.values()
      ratio = statistics.median(b[1] / a[1] for a, b in zip(ours, theirs, strict=True))
      yield f"batch {batch}, each further token", ratio, "times transformers"
    # A step reads the parameters and the keys and values of all tokens before it.
    cache = 0
    if trunk.is_transformer:
      width = jnp.dtype(trunk.dtype).itemsize * trunk.width
      cache = 2 * trunk.layers * batch * (prompt + new // 2) * width
    rates = [(weights + cache) * (new - 1) / rest for _, rest in times[""]]
    share = statistics.median(a / b for a, b in zip(rates, bandwidths, strict=True))
    yield f"batch {batch}, share of the memory's bandwidth", 100 * share, "%"


def _ours(trunk: Any, params: Any, prompt: int) -> Generate:
  model = language_model(trunk)

  def generate(batch, new):
    stream = Stream(model, params)
    settings = Sampling(new, temperature=0.0)
    stream.add(*[Text(range(i, i + prompt), settings) for i in range(batch)])
    while stream.advance(MAX_STEPS):
      pass

  return generate


def _seconds(generate: Generate, batch: int, new: int) -> float:
  began = time.perf_counter()
  generate(batch, new)
  return time.perf_counter() - began


def _bandwidth() -> float:
  """Bytes per second that a product with one row reads."""
  side = int(_READ**0.5)
  matrix, vector = jnp.ones((side, side)), jnp.ones((1, side))
  product = jax.jit(lambda a, b: a @ b.T)
  jax.block_until_ready(product(matrix, vector))
  began = time.perf_counter()
  for _ in range(4):
    jax.block_until_ready(product(matrix, vector))
  return 4 * matrix.nbytes / (time.perf_counter() - began)
