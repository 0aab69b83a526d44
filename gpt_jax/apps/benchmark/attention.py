"""Attention forward and backward, alone: the time and memory of each backend."""

import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.errors import InputError
from gpt_jax.ops.attention import AttentionMask, Dropout, attention, backends
from gpt_jax.ops.dropout import step_key
from gpt_jax.parallel.processes import log
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training import timing
from gpt_jax.training.timing import Measured


def attention_backends(config: PretrainConfig) -> Measured:
  """One layer's causal attention at the config's shape, with its dropout and without, in turns.

  Raises:
    InputError: no Transformer, or one with an attention bias.
  """
  trunk = config.trunk
  if not trunk.is_transformer or trunk.attention_bias is not None:
    raise InputError("--only=attention: this trunk has no attention of queries and keys alone")
  shape = (config.data.batch_size, trunk.heads, config.data.length, trunk.width // trunk.heads)
  q, k, v, weights = (
    jax.random.normal(jax.random.key(i), shape, jnp.dtype(trunk.dtype)) for i in range(4)
  )
  programs: dict[str, Any] = {}
  for rate in dict.fromkeys((trunk.attention_dropout, 0.0)):
    for backend in sorted({*backends()} - {"auto"}):  # which is one of the others
      gradient = jax.jit(jax.grad(_weighted_sum(backend, rate), argnums=(0, 1, 2)))
      try:
        programs[f"{backend}, dropout {rate:g}"] = gradient.lower(q, k, v, weights).compile()
      except Exception as error:  # a compiler's own kinds; it must not hide the other backends
        log(f"{backend}, dropout {rate:g}: {str(error).splitlines()[0]}")
  calls = {name: functools.partial(program, q, k, v, weights) for name, program in programs.items()}
  times = timing.in_turns(calls)
  for name, program in programs.items():
    yield f"{name}, forward and backward", 1000 * statistics.median(times[name]), "ms"
    yield f"{name}, temporary", program.memory_analysis().temp_size_in_bytes / 1e6, "MB"


def _weighted_sum(backend: str, rate: float):
  """The sum of attention's outputs, weighted: a loss whose gradient needs all of them."""
  dropout = Dropout(rate, step_key(0, 0) if rate else None)

  def loss(q, k, v, weights):
    output = attention(q, k, v, AttentionMask("causal"), dropout=dropout, backend=backend)
    return jnp.vdot(output.astype(jnp.float32), weights.astype(jnp.float32))

  return loss
