"""The paper's recurrent baseline: one LSTM layer of 2048 units (section 5, table 5).

The paper gives only the number of units. The rest is our choice, so that tables and heads are those
of the Transformer: embeddings of 768, the state projected back to 768, output tied to the input.

Letters: B rows, T positions, D width, U units, R rows of the padded vocabulary.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.layers import INIT, Projection, multiply, weight
from gpt_jax.models.trunk import States, TrunkConfig, rate_option
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import product
from gpt_jax.parallel.mesh import constrain

# Orthogonal kernels keep the scale of the state over hundreds of steps.
_RECURRENT_INIT = nn.initializers.orthogonal(column_axis=-1)


@register("lstm")
@dataclasses.dataclass(frozen=True)
class LSTMConfig(TrunkConfig):
  """Sizes and rates of the recurrent trunk."""

  width: int = option(768, "size of an embedding and of a hidden state, D", low=1, high=10**6)
  units: int = option(2048, "size of the recurrent state, U", low=1, high=10**6)
  residual_dropout: float = rate_option(0.1, "dropout on the projected state")
  embedding_dropout: float = rate_option(0.1, "dropout on the embedding table")

  TENSOR_PARALLEL = (
    (r"tokens$", P("model", None)),
    (r"(read|recur)/kernel$", P(None, None, "model")),
    (r"read/bias$", P(None, "model")),
    (r"out/kernel$", P("model", None)),
  )

  def build(self, attention: str = "causal", remat: str = "none") -> "LSTM":
    if attention != "causal":
      raise InputError(f"trunk: an LSTM reads from left to right; {attention} needs a Transformer")
    check_remat(remat)
    return LSTM(self)

  def parameter_count(self) -> int:
    d, u = self.width, self.units
    return self.vocab_size * d + 4 * u * (d + u + 1) + u * d + d

  def flops_per_token(self, length: int) -> float:
    return 6 * self.parameter_count()

  def depth(self, path: str) -> int:
    """0 for the embedding, 1 for the layer and its projection."""
    return 0 if path == "tokens" else 1


def check_remat(remat: str) -> None:
  """Raises InputError unless it is "none"."""
  if remat != "none":
    raise InputError(f"train.remat={remat}: an LSTM has no blocks to compute anew; use none")


class State(NamedTuple):
  """Output and memory of the cell: [B, U] each."""

  output: jax.Array
  memory: jax.Array  # float32: it adds up over hundreds of positions


class LSTM(nn.Module):
  """Embedding, one LSTM layer, projection. A row's state is cleared wherever its position is 0."""

  config: LSTMConfig

  def setup(self):
    c = self.config
    self.tokens = weight(self, "tokens", INIT, (c.rows, c.width))
    self.read = Projection((c.width,), (4, c.units), c.dtype)
    self.recur = Kernel((c.units, 4, c.units), _init_recurrent)
    # From U back to D, so that the output can be the embedding table.
    self.out = Projection((c.units,), (c.width,), c.dtype)

  def __call__(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """hidden [B, T, D] and table [R, D]; segments are not read, since each begins at position 0."""
    c = self.config
    table = self.tokens
    if key is not None:
      table = dropout(table, c.embedding_dropout, key.fold(0), sharded=False)
    state = self.start(len(rows.inputs))
    valid = jnp.ones(rows.inputs.shape, bool)
    embedded, hidden, _ = self._run(rows.inputs, rows.positions, valid, state, table)
    hidden = dropout(hidden, c.residual_dropout, key and key.fold(1))
    return States(hidden, table, layers=(embedded, hidden) if layers else None)

  def start(self, batch_size: int, length: int | None = None) -> State:
    """The state before the first token; its size does not depend on the length of the text."""
    zeros = jnp.zeros((batch_size, self.config.units), self.config.dtype)
    return State(zeros, zeros.astype(jnp.float32))

  def read_prompt(self, inputs, valid):
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1])[None], inputs.shape)
    return self.extend(inputs, positions, valid, self.start(len(inputs)))

  def extend(self, inputs, positions, valid, state: State):
    """Reads T more tokens per row; positions that are not valid leave the state unchanged."""
    _, hidden, state = self._run(inputs, positions, valid, state, self.tokens)
    return hidden, self.tokens, state

  def _run(self, inputs, positions, valid, state, table):
    """The embedded tokens and the projected outputs, [B, T, D] each, and the last state."""
    with jax.named_scope("embedding"):
      x = self.perturb("embedded", lookup(table, inputs, self.config.dtype))
      x = self.perturb("0_embedding", x, "hidden")  # its gradient is diagnosed
    # The inputs' part of all gates, [B, T, 4, U], is one product over all positions. Only the part
    # of the output before has to wait for the loop.
    # `model` splits the units: a device has all four gates of its own.
    gates = constrain(self.read(x), "data", None, None, "model")
    added = self._added_to_states(inputs.shape, state)
    # lax.scan loops over the first axis: [B, T, …] -> [T, B, …], and back after it.
    state, outputs = recur(
      self.recur(), gates.swapaxes(0, 1), (positions == 0).T, valid.T, state, added
    )
    return x, self.out(outputs.swapaxes(0, 1)).astype(self.config.dtype), state

  def _added_to_states(self, shape: tuple[int, int], state: State) -> State | None:
    """Perturbations of the state at each position, [T, B, U]; None unless gradient_norms asks."""
    wanted = self.is_mutable_collection("hidden") or self.has_variable("hidden", "1_output")
    if not wanted or self.is_initializing():
      return None
    zeros = [jnp.zeros((*shape, x.shape[-1]), x.dtype) for x in state]
    names = "1_output", "2_memory"
    added = [self.perturb(name, x, "hidden") for name, x in zip(names, zeros, strict=True)]
    return State(*(x.swapaxes(0, 1) for x in added))


def recur(
  kernel,
  gates,
  first,
  valid,
  state: State,
  added: State | None = None,
  projection: jax.Array | None = None,
  *,
  backward: bool = False,
  cell_clip: float = 0.0,
  output_clip: float = 0.0,
) -> tuple[State, jax.Array]:
  """The last state and the outputs [T, B, P] of a layer.

  Args:
    kernel: [P, 4, U], from an output to the next gates.
    gates: [T, B, 4, U], the inputs' contribution to the gates.
    first: bool [T, B], where a text begins, in the order of reading: the state is cleared first.
    valid: bool [T, B]; elsewhere the state does not change.
    added: to the state at each position, [T, B, U]; None: nothing.
    projection: [U, P], of h to the output (Sak et al. 2014); None: h is the output, and P is U.
    cell_clip, output_clip: largest magnitude of the memory, of a projected output; 0: any.
  """

  def step(dot, old, x):
    # A text sees nothing of the one before it in its row.
    state = jax.tree.map(lambda y: jnp.where(x["first"][:, None], 0, y).astype(y.dtype), old)
    total = dot("gates", gates.shape[2:], state.output)
    h, memory = advance(total, state.memory, cell_clip, added and x["added"].memory)
    output = h.astype(old.output.dtype)
    if projection is not None:
      output = dot("projection", old.output.shape[1:], output).astype(output.dtype)
      output = _clip(output, output_clip)
    if added is not None:
      output = output + x["added"].output
    return where_valid(x["valid"], State(output, memory), old), output

  factors = {"gates": [kernel], "projection": [] if projection is None else [projection]}
  xs = {"gates": gates, "first": first, "valid": valid, "added": added}
  return scan(step, factors, state, xs, backward)


def scan(
  step: Callable[..., Any], factors: Mapping[str, Any], carry: Any, xs: Any, reverse: bool = False
):
  """As jax.lax.scan, but the gradient of each factor is one product over all positions.

  Differentiating the loop would add up one outer product per position, each as large as a kernel:
  on a CPU most of the time.

  Args:
    step: (dot, carry, x) to the next carry and an output. dot(name, shape, *values) is a sum,
      float32 [B, *shape]: of x[name], if there is one, and of each value [B, …] times its factor,
      by multiply or by an `equation` of value and factor.
    factors: lists by their names: of kernels [I, …], or of arrays [B, …] with an equation.
    xs: arrays [T, …] by their names.
  """
  loop = functools.partial(_loop, step, reverse)
  calls: dict[str, tuple[str, Any]] = {}  # equation and product of each name

  def forward(factors, carry, xs):
    jax.eval_shape(functools.partial(loop, calls=calls), factors, carry, xs)
    # Zeros, whose gradients are those of the sums to which they are added.
    length = len(jax.tree.leaves(xs)[0])
    new = {name: y for name, (_, y) in calls.items() if name not in xs}
    added = {name: jnp.zeros((length, *y.shape), y.dtype) for name, y in new.items()}
    # Factors are constants here; what they multiplied gives their gradients.
    run = functools.partial(loop, factors)
    results, pull_back, used = jax.vjp(run, carry, xs, added, has_aux=True)
    return results, (pull_back, used)

  def backward(saved, gradients):
    pull_back, used = saved
    d_carry, d_xs, d_added = pull_back(gradients)
    d_sums = {**d_xs, **d_added}
    d_factors: dict[str, list[jax.Array]] = {name: [] for name in factors}
    for name, (equation, _) in calls.items():
      value, factor, result = re.split(",|->", equation)
      d = d_sums[name].reshape(*d_sums[name].shape[:2], -1)
      for x, y in zip(used[name], factors[name], strict=True):
        outer = product(f"t{value},t{result}->{factor}", x, d.astype(x.dtype), jnp.float32)
        d_factors[name].append(outer.reshape(y.shape).astype(y.dtype))
    return d_factors, d_carry, d_xs

  run = jax.custom_vjp(lambda *arrays: loop(*arrays)[0])
  run.defvjp(forward, backward)
  return run(factors, carry, xs)


def _loop(step, reverse, factors, carry, xs, added=None, calls=None):
  """The results of `scan`, and by names the values [T, B, …] that met factors.

  added: to the sums, [T, B, …] by their names. calls: gets the equation and a product of each name.
  """

  def cell(carry, at):
    x, more = at
    used = {}

    def dot(name, shape, *values, equation=""):
      total, used[name] = x.get(name), values
      for value, factor in zip(values, factors[name], strict=True):
        if equation:
          y = product(equation, value, factor, jnp.float32)
        else:
          y = multiply(factor, value, 1, shape)
        if calls is not None:
          calls[name] = equation or "bi,io->bo", y
        y = y.astype(jnp.float32)
        total = y if total is None else total.astype(jnp.float32) + y
      return total if more is None or name not in more else total + more[name]

    carry, y = step(dot, carry, x)
    return carry, (y, used)

  carry, (ys, used) = jax.lax.scan(cell, carry, (xs, added), reverse=reverse)
  return (carry, ys), used


def advance(gates, memory, limit: float = 0.0, added: jax.Array | None = None):
  """One LSTM step of gates float32 [B, 4, U]: h and the new memory c, float32 [B, U] each.

  Both are float32 in any compute type: an error in c_t is carried on to all later positions.

  limit: largest magnitude of the new c; 0: any. added: to the new c.
  """
  # With forget gates (Gers et al. 2000): c_t = f c_{t-1} + i g and h_t = o tanh(c_t); i, f, g, o
  # in the order of torch.nn.LSTM.
  i, f, g, o = (gates[:, gate] for gate in range(4))
  # The forget gate starts open: with a bias of 0 a fresh cell forgets half of its memory at each
  # token.
  memory = jax.nn.sigmoid(f + 1) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
  memory = _clip(memory, limit)
  if added is not None:
    memory = memory + added
  return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


def where_valid(valid: jax.Array, new: Any, old: Any) -> Any:
  """A carry that padding leaves as the last token of the text made it; valid: bool [B]."""
  return jax.tree.map(lambda x, y: jnp.where(valid[:, None], x, y), new, old)


def _clip(x: jax.Array, limit: float) -> jax.Array:
  return jnp.clip(x, -limit, limit) if limit else x


class Kernel(nn.Module):
  """A kernel alone: of a step's output to the next step's gates, [P, 4, U], or a projection."""

  shape: tuple[int, ...]
  initial: nn.initializers.Initializer

  @nn.compact
  def __call__(self):
    return weight(self, "kernel", self.initial, self.shape, inputs=1)


def _init_recurrent(key, shape, dtype=jnp.float32):
  # One draw a gate, [U, U] each: of one draw [U, 4 U], each gate would have about half the scale.
  blocks = [
    _RECURRENT_INIT(k, (shape[0], shape[2]), dtype) for k in jax.random.split(key, shape[1])
  ]
  return jnp.stack(blocks, axis=1)
