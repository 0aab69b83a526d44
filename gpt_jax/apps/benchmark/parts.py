"""Parts of a training step alone: a ladder from one product to the whole step; attention."""

import functools
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.apps import timing
from gpt_jax.apps.benchmark.training import benchmark_trainer, our_step, random_batch
from gpt_jax.apps.timing import Measured
from gpt_jax.errors import InputError
from gpt_jax.models.layers import Projection
from gpt_jax.models.transformer import Block
from gpt_jax.ops.attention import AttentionMask, Dropout, attention, backends
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.dropout import step_key
from gpt_jax.ops.product import activation_type, product
from gpt_jax.parallel.processes import log
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.optimizer import make_optimizer

_UPDATES = 1000  # of the schedule, which costs the same at any length


class Part(NamedTuple):
  """A part of a training step."""

  run: Callable[[], Any]
  flops: float = 0.0  # of its matrix products; attention is counted whole, as in flops_per_token


def ladder(config: PretrainConfig) -> Measured:
  """Milliseconds of each part of a Transformer's step on one device, and the products' share.

  In turns. A part above another one contains it; trunk, vocabulary and update add up to the step.
  """
  if "blocks" not in config.trunk.gives:
    raise InputError(f"parts: needs a Transformer, not {type(config.trunk).__name__}")
  parts = _parts(config)
  times = timing.in_turns({name: part.run for name, part in parts.items()})
  for name, part in parts.items():
    yield name, 1e3 * statistics.median(times[name]), "ms"
    if part.flops:
      rates = [part.flops / seconds for seconds in times[name]]
      peaks = [parts["product"].flops / seconds for seconds in times["product"]]
      yield f"{name}, rate", statistics.median(rates) / 1e9, "GFLOP/s"
      yield f"{name}, share of the product's", 100 * timing.ratio(rates, peaks), "%"
  terms = [times[name] for name in ("trunk, both ways", "vocabulary, both ways", "update")]
  sums = [sum(turn) for turn in zip(*terms, strict=True)]
  yield "trunk, vocabulary and update", 1e3 * statistics.median(sums), "ms"
  yield "their sum, beside the step", timing.ratio(sums, times["step"]), "times"


def _parts(config: PretrainConfig) -> dict[str, Part]:
  """The parts by their names, from the smallest to the step."""
  c, rows, length = config.trunk, config.data.batch_size, config.data.length
  tokens, d, key = rows * length, c.width, step_key(0, 0)
  dtype = activation_type(c.dtype)
  x = _random((rows, length, d), dtype)
  wide = 2.0 * tokens * d * 4 * d
  kernel = _random((d, 4 * d), c.dtype)
  multiply = jax.jit(lambda x, kernel: product("ni,io->no", x, kernel, jnp.float32))
  flat = x.reshape(tokens, d).astype(c.dtype)
  parts = {"product": Part(lambda: multiply(flat, kernel), wide)}

  projection = Projection((d,), (4 * d,), c.dtype)
  params = jax.jit(projection.init)(jax.random.key(0), x)
  parts |= _both_ways("projection", projection.apply, (params, x), wide)

  qkv = _random((rows, length, 3, c.heads, d // c.heads), dtype)
  mask, rates = AttentionMask("causal"), Dropout(c.attention_dropout, key)

  def attend(qkv):
    return attention(qkv, mask, None, rates, c.attention_backend)

  scores = 4.0 * rows * length**2 * d
  parts |= _both_ways("attention", attend, (qkv,), scores)

  block = Block(c)
  params = jax.jit(lambda x: block.init(jax.random.key(0), x, mask, None))(x)
  of_block = 24.0 * tokens * d**2 + scores
  parts |= _both_ways(
    "block", lambda params, x: block.apply(params, x, mask, None, key)[0], (params, x), of_block
  )

  trainer, batch = benchmark_trainer(config), random_batch(config)
  trunk, state = c.build("causal"), trainer.init(0)
  of_trunk = state.params["trunk"]

  def read(params):
    return trunk.apply({"params": params}, batch.rows, key)

  parts |= _both_ways("trunk", lambda params: read(params).hidden, (of_trunk,), c.layers * of_block)
  table, used = jax.jit(read)(of_trunk).table, c.vocab_size + c.special_tokens
  predictions = batch.predictions
  assert predictions is not None

  def loss(hidden, table):
    return cross_entropy(hidden, table, predictions.targets, predictions.weights, used)

  parts |= _both_ways("vocabulary", loss, (x.astype(c.dtype), table), 2.0 * tokens * d * used)

  parts["update"] = Part(_update(config, state))
  whole = c.flops_per_token(length) * tokens
  return parts | {"step": Part(our_step(trainer, batch), whole)}


def _both_ways(name: str, forward: Callable, inputs: tuple, flops: float) -> dict[str, Part]:
  """A part forward, and with the gradients of all inputs, which takes three times as much."""

  def backward(*inputs):
    result, gradients = jax.vjp(forward, *inputs)
    return result, gradients(jnp.ones_like(result))

  once, both = jax.jit(forward), jax.jit(backward)
  return {
    f"{name}, forward": Part(lambda: once(*inputs), flops),
    f"{name}, both ways": Part(lambda: both(*inputs), 3 * flops),
  }


def _update(config: PretrainConfig, state: Any) -> Callable[[], Any]:
  """An update of all parameters, into the memory of the old ones."""
  optimizer = make_optimizer(config.optim, _UPDATES).transformation

  @functools.partial(jax.jit, donate_argnums=0)
  def update(old, gradients):
    params, moments = old
    norm = jnp.float32(1)
    changes, moments = optimizer.update(gradients, moments, params, norm=norm)
    return jax.tree.map(jnp.add, params, changes), moments

  gradients = jax.tree.map(jnp.ones_like, state.params)
  old = jax.tree.map(jnp.copy, (state.params, state.opt_state))

  def run():
    nonlocal old
    old = update(old, gradients)
    return old[1]

  return run


def _random(shape: tuple[int, ...], dtype: str) -> jax.Array:
  return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def attention_backends(config: PretrainConfig) -> Measured:
  """One layer's causal attention at the config's shape, with its dropout and without, in turns."""
  trunk = config.trunk
  if "blocks" not in trunk.gives or trunk.attention_bias is not None:
    raise InputError("--only=attention: this trunk has no attention of queries and keys alone")
  heads = (trunk.heads, trunk.width // trunk.heads)
  shape = (config.data.batch_size, config.data.length)
  qkv, weights = (
    jax.random.normal(jax.random.key(i), (*shape, *planes, *heads), jnp.dtype(trunk.dtype))
    for i, planes in enumerate([(3,), ()])
  )
  programs: dict[str, Any] = {}
  for rate in dict.fromkeys((trunk.attention_dropout, 0.0)):
    for backend in sorted({*backends()} - {"auto"}):  # which is one of the others
      gradient = jax.jit(jax.grad(_weighted_sum(backend, rate)))
      try:
        programs[f"{backend}, dropout {rate:g}"] = gradient.lower(qkv, weights).compile()
      except Exception as error:  # a compiler's own kinds; it must not hide the other backends
        log(f"{backend}, dropout {rate:g}: {str(error).splitlines()[0]}")
  calls = {name: functools.partial(program, qkv, weights) for name, program in programs.items()}
  times = timing.in_turns(calls)
  for name, program in programs.items():
    yield f"{name}, forward and backward", 1000 * statistics.median(times[name]), "ms"
    yield f"{name}, temporary", program.memory_analysis().temp_size_in_bytes / 1e6, "MB"


def _weighted_sum(backend: str, rate: float):
  """The sum of attention's outputs, weighted: a loss whose gradient needs all of them."""
  dropout = Dropout(rate, step_key(0, 0) if rate else None)

  def loss(qkv, weights):
    output = attention(qkv, AttentionMask("causal"), dropout=dropout, backend=backend)
    return jnp.vdot(output.astype(jnp.float32), weights.astype(jnp.float32))

  return loss
