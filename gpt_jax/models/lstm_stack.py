"""Stacked LSTMs, one way or both: AWD-LSTM (Merity et al. 2018, of ULMFiT), ELMo's (Peters et al.
2018), and the encoders of CVT (Clark et al. 2018) and CoVe (McCann et al. 2017), which are settings
of its fields.

Letters: B rows, T positions, E width of an embedding, U units, P width of a layer's output in one
direction (U without a projection), D width of the hidden states (P, or 2 P of two directions), R
rows of the padded vocabulary.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.characters import CharacterConfig, Characters
from gpt_jax.models.layers import KEPT, Projection, uniform, weight
from gpt_jax.models.lstm import Kernel, State, check_remat, recur
from gpt_jax.models.trunk import States, TrunkConfig, rate_option
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup
from gpt_jax.parallel.mesh import constrain


@register("lstm_stack")
@dataclasses.dataclass(frozen=True)
class LSTMStackConfig(TrunkConfig):
  """Sizes, rates and parts of the stack; the defaults are AWD-LSTM's."""

  context: int = option(
    512, "longest sequence", unit="tokens", low=2, high=10**6, runtime=True
  )  # no parameter depends on it
  embedding_width: int = option(400, "size of an embedding, E", low=1, high=10**6)
  units: tuple[int, ...] = option((1150, 1150, 400), "units of each layer, U", low=1)
  directions: str = option(
    "forward",
    "forward or backward: one; separate: both, which share the embedding and the output only, as "
    "ELMo; joined: both, and each reads the outputs of both in the layer below, as CVT and CoVe",
    choices=("forward", "backward", "separate", "joined"),
  )
  projection: int = option(
    0, "size to which each output is projected inside the recurrence, P (ELMo: 512); 0: none", low=0
  )
  cell_clip: float = option(0.0, "largest magnitude of a memory cell (ELMo: 3); 0: any", low=0.0)
  projection_clip: float = option(
    0.0, "largest magnitude of a projected output (ELMo: 3); 0: any", low=0.0, needs="projection"
  )
  residual: bool = option(
    False, "add a layer's input to its output, but for the first layer's, as ELMo"
  )
  characters: CharacterConfig | None = option(
    None, "read tokens by their characters, as ELMo; none: an embedding for each token"
  )
  tied: bool = option(True, "the output's table is that of the embeddings, with a bias beside it")
  variational: bool = option(
    True,
    "dropout between layers has one mask for all positions of a row, as AWD-LSTM",
    runtime=True,
  )
  embedding_dropout: float = rate_option(0.1, "share of the vocabulary dropped from the input")
  input_dropout: float = rate_option(0.65, "dropout on the input of the first layer")
  hidden_dropout: float = rate_option(0.3, "dropout on the input of the other layers")
  output_dropout: float = rate_option(0.4, "dropout on the last layer's output")
  recurrent_dropout: float = rate_option(0.5, "DropConnect: dropout on the recurrent kernels")

  TENSOR_PARALLEL = (
    (r"(tokens|output)$", P("model", None)),
    (r"(read|recur)/kernel$", P(None, None, "model")),
    (r"read/bias$", P(None, "model")),
    (r"project/kernel$", P("model", None)),
  )

  def __post_init__(self):
    super().__post_init__()
    if not self.units:
      raise InputError("trunk.units: must have the units of at least one layer")
    if self.tied and self.embedding_width != self.table_width:
      raise InputError(
        f"trunk.tied: needs a last layer of trunk.embedding_width={self.embedding_width}, and it "
        f"gives {self.table_width}; set trunk.tied=false for a table of its own"
      )
    if self.tied and self.characters:
      raise InputError("trunk.tied: there is no table of embeddings beside trunk.characters")
    if self.residual and (self.directions == "joined" or len(set(self.outputs)) > 1):
      raise InputError(
        "trunk.residual: needs layers of one width, of one direction or separate ones"
      )

  def resized(self, units: int, width: int) -> "LSTMStackConfig":
    """As many layers of these units, on embeddings of this width, which a tied last layer has, too,
    and so have projections.
    """
    untied = len(self.units) - self.tied
    return dataclasses.replace(
      self,
      embedding_width=width,
      units=(units,) * untied + (width,) * self.tied,
      projection=width if self.projection else 0,
    )

  @property
  def layers(self) -> int:  # type: ignore[override]  # it follows from the fields
    return len(self.units)

  @property
  def outputs(self) -> list[int]:
    """P of each layer."""
    return [self.projection or units for units in self.units]

  @property
  def table_width(self) -> int:
    """P of the last layer: each direction predicts by itself."""
    return self.outputs[-1]

  @property
  def gives(self) -> frozenset[str]:
    further = {
      "forward": (),
      "backward": ("backward",),
      "separate": ("forward", "backward", "directions"),
      "joined": ("directions",),
    }
    return super().gives.union(further[self.directions])

  @property
  def reads_backward(self) -> bool:  # type: ignore[override]
    return self.directions == "backward"

  @property
  def default_attention(self) -> str:
    return "causal" if self.directions == "forward" else "bidirectional"

  @property
  def ways(self) -> tuple[bool, ...]:
    """Whether each direction reads backward."""
    return {"forward": (False,), "backward": (True,)}.get(self.directions, (False, True))

  @property
  def width(self) -> int:  # type: ignore[override]
    return self.table_width * len(self.ways)

  @property
  def layer_widths(self) -> list[int]:
    return [len(self.ways) * width for width in (self.embedding_width, *self.outputs)]

  @property
  def inputs(self) -> list[int]:
    """The width that a direction of each layer reads."""
    below = len(self.ways) if self.directions == "joined" else 1
    return [self.embedding_width, *(below * width for width in self.outputs[:-1])]

  def with_pieces(self, tokenizer: Tokenizer) -> "LSTMStackConfig":
    if self.characters is None:
      return self
    return dataclasses.replace(self, characters=self.characters.with_pieces(tokenizer))

  def build(self, attention: str = "causal", remat: str = "none") -> "LSTMStack":
    self.check_attention(attention, f"trunk.directions={self.directions}")
    check_remat(remat)
    return LSTMStack(self)

  def parameter_count(self) -> int:
    bias, inputs = self.vocab_size, self.vocab_size * self.embedding_width
    if self.characters:
      inputs = self.characters.parameter_count(self.embedding_width)
    table = 0 if self.tied else self.vocab_size * self.table_width
    return inputs + self._in_layers() + table + bias

  def flops_per_token(self, length: int) -> float:
    """6 per token of a training step for each product: with a parameter of the layers, and of the
    output's table for each direction that predicts by itself; of characters at each place.
    """
    inputs = self.characters.products(self.embedding_width) if self.characters else 0
    outputs = len(self.ways) if self.directions == "separate" else 1
    return 6 * (inputs + self._in_layers() + outputs * self.vocab_size * self.table_width)

  def _in_layers(self) -> int:
    sizes = zip(self.inputs, self.units, self.outputs, strict=True)
    project = 1 if self.projection else 0
    return len(self.ways) * sum(4 * u * (i + p + 1) + project * u * p for i, u, p in sizes)

  def depth(self, path: str) -> int:
    """0 for the embedding, i + 1 for block i; the output is the last block's."""
    part = path.partition("/")[0]
    if part.startswith("block_"):
      return int(part.removeprefix("block_")) + 1
    return self.layers if part == "output" else 0


class LSTMStack(nn.Module):
  """Embedding, layers, output. A row's state is cleared where a text of the row begins."""

  config: LSTMStackConfig

  def setup(self):
    c = self.config
    if c.characters:
      sizes = c.vocab_size, c.rows, c.embedding_width
      self.characters = Characters(c.characters, *sizes, c.dtype)
    else:  # AWD-LSTM's U(-0.1, 0.1)
      self.tokens = weight(self, "tokens", uniform(0.1), (c.rows, c.embedding_width))
    self.blocks = [Block(c, i, name=f"block_{i}") for i in range(c.layers)]
    # The last column is the bias of each row, see States.table; a tied table is not in it.
    if c.tied:
      self.output = self.param("output", init_output, (c.rows, 1))
    else:
      shape = c.rows, c.table_width + 1
      self.output = weight(self, "output", init_output, shape, has_bias=True)

  def __call__(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """hidden [B, T, D] and the table [R, P + 1]; of two directions, hidden is [forward; backward].

    Segments are read for padding, which is 0: a row that is read backward begins with it.
    """
    c = self.config
    x = self._embed(rows.inputs, key)
    valid = None if rows.segments is None else rows.segments > 0
    states = [jnp.concatenate([x] * len(c.ways), axis=-1)]
    each = [x] * len(c.ways)
    for i, block in enumerate(self.blocks):
      of_block = key and key.fold(i + 1)
      each = block(each, rows.positions, valid, None, of_block)[0]
      states.append(self.perturb(f"{i + 1}_block", jnp.concatenate(each, axis=-1), "hidden"))
      if c.directions == "joined":
        each = [states[-1]] * len(c.ways)
    hidden = _drop(states[-1], c.output_dropout, key and key.fold(c.layers + 1), c.variational)
    return States(hidden, self._table(), layers=tuple(states) if layers else None)

  def start(self, batch_size: int, length: int | None = None) -> tuple[State, ...]:
    return tuple(block.start(batch_size) for block in self.blocks)

  def read_prompt(self, inputs, valid):
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1])[None], inputs.shape)
    return self.extend(inputs, positions, valid, self.start(len(inputs)))

  def extend(self, inputs, positions, valid, state: tuple[State, ...]):
    """Reads T more tokens per row; positions that are not valid leave the state unchanged."""
    each, last = [self._embed(inputs, None)], []
    for block, before in zip(self.blocks, state, strict=True):
      each, after = block(each, positions, valid, before, None)
      last.append(after[0])
    return each[0], self._table(), tuple(last)

  def _embed(self, inputs, key):
    """The embedded tokens [B, T, E]."""
    c = self.config
    x = self.characters(inputs) if c.characters else lookup(self.tokens, inputs, c.dtype)
    if key is not None and c.embedding_dropout:
      # A dropped token is missing wherever it occurs, in all rows; the output's table has it.
      kept = dropout(jnp.ones((c.rows, 1)), c.embedding_dropout, key.fold(0), sharded=False)
      x = x * kept[inputs].astype(x.dtype)
    x = self.perturb("embedded", x)
    return self.perturb("0_embedding", x, "hidden")  # its gradient is diagnosed

  def _table(self):
    if not self.config.tied:
      return self.output
    kept: Any = self.get_variable(KEPT, "tokens")
    if kept is not None:
      return dataclasses.replace(kept, bias=self.output[:, 0])
    return jnp.concatenate([self.tokens, self.output], axis=-1)


class Block(nn.Module):
  """Layer `number`, from 0 on: an LSTM in each direction."""

  config: LSTMStackConfig
  number: int
  limit: float = 0.0  # initial weights are uniform in ±limit; 0: torch's 1 / sqrt(U)

  def setup(self):
    c = self.config
    names = ["backward" if backward else "forward" for backward in c.ways]
    sizes = c.inputs[self.number], c.units[self.number]
    self.ways = [Direction(c, *sizes, name == "backward", self.limit, name=name) for name in names]

  def __call__(self, each, positions, valid, state, key):
    """The outputs [B, T, P] and the last state of each direction.

    each: what each direction reads, [B, T, …]. valid: bool [B, T]; None: all are. state: before the
    first position; None: zeros.
    """
    c = self.config
    begins = positions == 0
    # Read backward, a text begins before the next one of its row, or where the row ends.
    ends = jnp.concatenate([begins[:, 1:], jnp.ones_like(begins[:, :1])], axis=1)
    valid = jnp.ones(positions.shape, bool) if valid is None else valid
    state = self.start(len(positions)) if state is None else state
    rate, outputs, last = c.hidden_dropout if self.number else c.input_dropout, [], []
    for i, (way, x) in enumerate(zip(self.ways, each, strict=True)):
      own = key and key.fold(i)
      x = _drop(x, rate, own and own.fold(0), c.variational)
      output, after = way(x, ends if way.backward else begins, valid, state, own and own.fold(1))
      outputs.append(output + x if c.residual and self.number else output)
      last.append(after)
    return outputs, last

  def start(self, batch_size: int) -> State:
    c, units = self.config, self.config.units[self.number]
    output = jnp.zeros((batch_size, c.projection or units), c.dtype)
    return State(output, jnp.zeros((batch_size, units), jnp.float32))


class Direction(nn.Module):
  """One LSTM, torch.nn.LSTM's but for the forget gate, to whose bias 1 is added."""

  config: LSTMStackConfig
  inputs: int
  units: int
  backward: bool
  limit: float

  def setup(self):
    c, units, init = self.config, self.units, uniform(self.limit or self.units**-0.5)
    width = c.projection or units
    self.read = Projection((self.inputs,), (4, units), c.dtype, kernel_init=init)
    self.recur = Kernel((width, 4, units), init)
    if c.projection:
      self.project = Kernel((units, width), init)

  def __call__(self, x, first, valid, state: State, key: Key | None):
    """The outputs [B, T, P] and the last state; first, valid: bool [B, T], see lstm.recur."""
    c = self.config
    gates = constrain(self.read(x), "data", None, None, "model")
    # DropConnect has one mask for all positions and rows.
    kernel = dropout(self.recur(), c.recurrent_dropout, key, sharded=False)
    projection = self.project() if c.projection else None
    clips = {"cell_clip": c.cell_clip, "output_clip": c.projection_clip}
    # lax.scan loops over the first axis: [B, T, …] -> [T, B, …], and back after it.
    inputs = gates.swapaxes(0, 1), first.T, valid.T
    state, outputs = recur(
      kernel, *inputs, state, None, projection, backward=self.backward, **clips
    )
    return outputs.swapaxes(0, 1), state


def _drop(x: jax.Array, rate: float, key: Key | None, one_mask: bool) -> jax.Array:
  """Dropout on [B, T, D]; one_mask: the same features at all positions of a row."""
  if not one_mask:
    return dropout(x, rate, key)
  return x * dropout(jnp.ones_like(x[:, :1]), rate, key)


def init_output(key, shape, dtype=jnp.float32) -> Any:
  table = uniform(0.1)(key, shape, dtype)
  return table.at[:, -1].set(0)  # the bias
