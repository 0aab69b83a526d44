"""LSTMs that translate: an encoder reads the source both ways, a decoder that attends to it writes
the target. CoVe's (McCann et al. 2017, section 3; salesforce/cove, OpenNMT-py/onmt/Models.py), with
global attention and input feeding (Luong et al. 2015, sections 3.1 and 3.3).

Letters: B rows, T positions of the target, S of the source, E width of an embedding, U units of the
encoder in one direction, D = 2 U width of a hidden state, R rows of the vocabulary's tables.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.models.layers import Projection, multiply, uniform, weight
from gpt_jax.models.lstm import Kernel, State, advance, check_remat, scan, where_valid
from gpt_jax.models.lstm_stack import Block, LSTMStackConfig, init_output
from gpt_jax.models.trunk import SourceTrunkConfig, States, given_source, rate_option
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import product

INIT = uniform(0.1)
EXCLUDED = -1e30  # a score; of -inf alone, as in a row without a source, softmax would be NaN


@register("lstm_encoder_decoder")
@dataclasses.dataclass(frozen=True)
class LSTMEncoderDecoderConfig(SourceTrunkConfig):
  """Sizes and rates; the defaults are CoVe's."""

  context: int = option(
    512, "longest source, and target", unit="tokens", low=2, high=10**6, runtime=True
  )  # no parameter depends on it
  embedding_width: int = option(300, "size of an embedding, E", low=1, high=10**6)
  layers: int = option(2, "LSTMs of the encoder, and of the decoder", low=1, high=1000)
  units: int = option(300, "units of the encoder in one direction, U", low=1, high=10**6)
  residual_dropout: float = rate_option(
    0.2, "dropout on embeddings, between layers and on the decoder's output"
  )
  decoder: bool = option(True, "without a decoder, the encoder is a bidirectional trunk")

  TENSOR_PARALLEL = (
    (r"(tokens|targets|output)$", P("model", None)),
    (r"(read|recur|feed)/kernel$", P(None, None, "model")),
    (r"bias$", P(None, "model")),
    (r"(key|mix)/kernel$", P(None, "model")),
  )

  @property
  def width(self) -> int:  # type: ignore[override]  # it follows from the fields
    return 2 * self.units

  @property
  def layer_widths(self) -> list[int]:
    return [self.embedding_width, *[self.width] * self.layers]

  @property
  def table_width(self) -> int:
    return self.width if self.decoder else self.embedding_width

  @property
  def gives(self) -> frozenset[str]:
    return super().gives | {"attended" if self.decoder else "directions"}

  @property
  def format(self) -> dict[str, str]:
    # Its token types tell the texts of a pair apart.
    return {"type": "text_to_text" if self.decoder else "bert_format"}

  @property
  def encoder(self) -> LSTMStackConfig:
    return LSTMStackConfig(
      embedding_width=self.embedding_width,
      units=(self.units,) * self.layers,
      directions="joined",
      tied=False,
      variational=False,
      input_dropout=self.residual_dropout,
      hidden_dropout=self.residual_dropout,
      recurrent_dropout=0.0,
      dtype=self.dtype,
    )

  def build(self, attention: str = "causal", remat: str = "none") -> nn.Module:
    self.check_attention(attention, f"trunk.decoder={str(self.decoder).lower()}")
    check_remat(remat)
    return LSTMEncoderDecoder(self) if self.decoder else EncoderOnly(self)

  def parameter_count(self) -> int:
    # The encoder's config has an empty vocabulary.
    own = self.encoder.parameter_count() + self.vocab_size * self.embedding_width
    if not self.decoder:
      return own
    tables = self.vocab_size * (self.embedding_width + self.width + 1)
    return own + tables + self.decoder_parameters()

  def decoder_parameters(self) -> int:
    """Parameters of its LSTMs and the attention."""
    d = self.width
    return 4 * d * (self.embedding_width + d + (2 * self.layers - 1) * d + self.layers) + 3 * d**2

  def flops_per_token(self, length: int) -> float:
    """6 per token of a training step for each parameter that it meets, and 12 D per pair of the
    attention; the mean of a token of a source and one of a target, both of that length.
    """
    encoder = 6 * self.encoder.parameter_count()
    if not self.decoder:
      return encoder
    products = self.decoder_parameters() + self.vocab_size * self.width
    return (encoder + 6 * products + 12 * self.width * length) / 2

  def depth(self, path: str) -> int:
    """0 for the tables that are read, i + 1 for block i; the decoder's follow the encoder's, and
    attention and output belong to the last one.
    """
    stack, _, rest = path.partition("/")
    if stack in ("tokens", "targets"):
      return 0
    before = 0 if stack == "encoder" else self.layers
    part = rest.partition("/")[0]
    number = int(part.removeprefix("block_")) + 1 if part.startswith("block_") else self.layers
    return before + number


class Carry(NamedTuple):
  """The decoder's state: of each layer, and the attentional vector [B, D] of the token before."""

  states: tuple[State, ...]
  fed: jax.Array


class Memory(NamedTuple):
  """The encoder's states, which the decoder attends to."""

  keys: jax.Array  # [B, S, D], W1 applied to each of the encoder's states
  values: jax.Array  # [B, S, D], those states
  valid: jax.Array  # bool [B, S]; False where the source has padding


class Cache(NamedTuple):
  """The state of generation."""

  carry: Carry
  memory: Memory


class LSTMEncoderDecoder(nn.Module):
  """Encoder, decoder, and a table of each side; a Trunk that reads a source.

  A row is one text and its source, as batch.encoder_decoder_batch makes them.
  """

  config: LSTMEncoderDecoderConfig

  def setup(self):
    c = self.config
    self.tokens = weight(self, "tokens", INIT, (c.rows, c.embedding_width))
    self.targets = weight(self, "targets", INIT, (c.rows, c.embedding_width))
    # The last column is the bias of each row, see States.table.
    self.output = weight(self, "output", init_output, (c.rows, c.width + 1), has_bias=True)
    self.encoder = Encoder(c)
    self.decoder = Decoder(c)

  def __call__(
    self, rows: Rows, key: Key | None = None, source: Rows | None = None, layers: bool = False
  ) -> States:
    """The attentional vectors [B, T, D] and the output table [R, D + 1]."""
    encoder_key, decoder_key = (key and key.fold(i) for i in range(2))
    cache = self._read(given_source(source), encoder_key)
    valid = jnp.asarray(rows.is_token)
    # A table of its own: word vectors that stay as they are may stand in the source's.
    x = lookup(self.targets, rows.inputs, self.config.dtype)
    each, _ = self.decoder(x, valid, cache, decoder_key)
    *below, top, hidden = each
    if not layers:
      return States(hidden, self.output)
    return States(hidden, self.output, None, (x, *below, hidden), (top, cache.memory))

  def start(
    self, batch_size: int, length: int | None = None, source_length: int | None = None
  ) -> Cache:
    c, slots = self.config, source_length or self.config.context
    zeros = jnp.zeros((batch_size, c.width), c.dtype)
    states = (State(zeros, zeros.astype(jnp.float32)),) * c.layers
    memory = jnp.zeros((batch_size, slots, c.width), c.dtype)
    return Cache(Carry(states, zeros), Memory(memory, memory, jnp.zeros((batch_size, slots), bool)))

  def read_prompt(self, inputs, valid, source: Rows):
    return self.extend(inputs, None, valid, self._read(source, None))

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens per row; positions that are not valid leave the state unchanged."""
    x = lookup(self.targets, inputs, self.config.dtype)
    each, carry = self.decoder(x, valid, cache, None)
    return each[-1], self.output, cache._replace(carry=carry)

  def _read(self, source: Rows, key: Key | None) -> Cache:
    """The state before the first token of the target."""
    x = lookup(self.tokens, source.inputs, self.config.dtype)
    each, last = self.encoder(x, source, key)
    # The last states of both directions, side by side, are the decoder's first.
    states = tuple(
      State(*(jnp.concatenate(parts, -1) for parts in zip(*ways, strict=True))) for ways in last
    )
    keys, valid = self.decoder.attention.keys(each[-1]), jnp.asarray(source.is_token)
    return Cache(Carry(states, jnp.zeros_like(keys[:, 0])), Memory(keys, each[-1], valid))


class EncoderOnly(nn.Module):
  """The encoder by itself; a Trunk whose positions see all of their text."""

  config: LSTMEncoderDecoderConfig

  def setup(self):
    c = self.config
    self.tokens = weight(self, "tokens", INIT, (c.rows, c.embedding_width))
    self.encoder = Encoder(c)

  def __call__(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """hidden [B, T, D], forward and backward, and the table [R, E]; layers[0] is [B, T, E].

    Each text of a pair is read by itself.
    """
    x = lookup(self.tokens, rows.inputs, self.config.dtype)
    each, _ = self.encoder(x, apart(rows), key)
    return States(each[-1], self.tokens, layers=(x, *each) if layers else None)


def apart(rows: Rows) -> Rows:
  """The rows with positions that begin again with the second text of a pair."""
  if rows.types is None:
    return rows
  begins = jnp.pad(rows.types[:, 1:] != rows.types[:, :-1], ((0, 0), (1, 0)))
  return rows._replace(positions=jnp.where(begins, 0, rows.positions))


class Encoder(nn.Module):
  """LSTMs in both directions, each of which reads both of the layer below."""

  config: LSTMEncoderDecoderConfig

  def setup(self):
    c = self.config.encoder
    self.blocks = [Block(c, i, limit=0.1, name=f"block_{i}") for i in range(c.layers)]

  def __call__(self, x, rows: Rows, key: Key | None):
    """Embedded rows [B, S, E] to the states [B, S, D] and the last states of each layer."""
    # Padding leaves a state as it is, so the last one is that of the text's end.
    each, last = [], []
    for i, block in enumerate(self.blocks):
      outputs, states = block([x, x], rows.positions, rows.is_token, None, key and key.fold(i))
      x = jnp.concatenate(outputs, -1)
      each.append(x)
      last.append(states)
    return each, last


class Decoder(nn.Module):
  """LSTMs of which the first reads [embedding; attentional vector of the token before]."""

  config: LSTMEncoderDecoderConfig

  def setup(self):
    c = self.config
    self.attention = Attention(c)
    self.blocks = [DecoderBlock(c, i, name=f"block_{i}") for i in range(c.layers)]

  def __call__(self, x, valid, cache: Cache, key: Key | None):
    """Embedded tokens [B, T, E] to the outputs [B, T, D] of each layer and the attentional vectors,
    and the last Carry. valid: bool [B, T]; elsewhere the state does not change.
    """
    c, shape = self.config, (*x.shape[:2], self.config.width)
    x = dropout(x, c.residual_dropout, key and key.fold(c.layers))
    gates, kernels = zip(*(block(x) for block in self.blocks), strict=True)
    masks = None
    if key is not None:  # between the layers, and on the attentional vector, also as it is fed
      masks = [dropout(jnp.ones(shape), c.residual_dropout, key.fold(i)) for i in range(c.layers)]
    # lax.scan loops over the first axis: [B, T, …] -> [T, B, …], and back after it.
    swapped = jax.tree.map(lambda y: y.swapaxes(0, 1), (gates, masks, valid))
    carry, each = decode(kernels, self.attention.mix(), cache.memory, cache.carry, *swapped)
    return [y.swapaxes(0, 1) for y in each], carry


class Attention(nn.Module):
  """softmax(H (W1 s)) over the encoder's states H, and tanh(W2 [context; s]), as the code: the
  paper has biases.
  """

  config: LSTMEncoderDecoderConfig

  def setup(self):
    d = self.config.width
    self.key = Kernel((d, d), INIT)
    self.mix = Kernel((2 * d, d), INIT)

  def keys(self, states):
    """H W1, so that the loop has one product less: [B, S, D] to the same shape."""
    return multiply(self.key(), states, 1, states.shape[-1:]).astype(states.dtype)


class Reader(nn.Module):
  """Attention and output table of a view that reads a decoder's states; it feeds nothing back."""

  rows: int
  attention_dropout: float  # share of its attention weights that are 0 in training

  @nn.compact
  def __call__(self, top, memory: Memory, key: Key | None):
    """States [B, T, D] to attentional vectors of that shape, and the output table [R, D + 1]."""
    d = top.shape[-1]
    key_kernel = Kernel((d, d), INIT, name="key")()
    keys = multiply(key_kernel, memory.values, 1, (d,)).astype(top.dtype)
    scores = product("btd,bsd->bts", top, keys, jnp.float32)
    shares = jax.nn.softmax(jnp.where(memory.valid[:, None], scores, EXCLUDED))
    # The trunk's dropout has the folds 0 and 1.
    shares = dropout(shares, self.attention_dropout, key and key.fold(2)).astype(top.dtype)
    both = jnp.concatenate([product("bts,bsd->btd", shares, memory.values), top], -1)
    mixed = multiply(Kernel((2 * d, d), INIT, name="mix")(), both, 1, (d,))
    table = weight(self, "output", init_output, (self.rows, d + 1), has_bias=True)
    return jnp.tanh(mixed).astype(top.dtype), table


class DecoderBlock(nn.Module):
  """The kernels of layer `number`, and the part of its gates before the recurrence."""

  config: LSTMEncoderDecoderConfig
  number: int

  @nn.compact
  def __call__(self, x):
    """Embedded tokens [B, T, E] to gates [B, T, 4, D], and the kernels of what the loop reads and
    of the state.
    """
    c, d = self.config, self.config.width
    recur = Kernel((d, 4, d), INIT, name="recur")()
    if not self.number:
      # Those of the embeddings are one product over all positions.
      gates = Projection((c.embedding_width,), (4, d), c.dtype, kernel_init=INIT, name="read")(x)
      return gates, (Kernel((d, 4, d), INIT, name="feed")(), recur)
    bias = self.param("bias", nn.initializers.zeros, (4, d))
    gates = jnp.broadcast_to(bias.reshape(1, 1, 4, d), (*x.shape[:2], 4, d))
    return gates, (Kernel((d, 4, d), INIT, name="read")(), recur)


def decode(
  kernels, mix, memory: Memory, carry: Carry, gates, masks, valid
) -> tuple[Carry, list[jax.Array]]:
  """Runs the decoder over all positions: the last Carry, and the outputs [T, B, D] of each layer
  and of the attention.

  Args:
    kernels: of each layer those of its input and of its state, [D, 4, D].
    mix: W2, [2 D, D].
    gates: [T, B, 4, D] of each layer, the part that does not depend on the recurrence.
    masks: [T, B, D] of each layer, by which its output is multiplied; None: none.
    valid: bool [T, B]; elsewhere the state does not change.
  """
  names = [f"gates_{i}" for i in range(len(kernels))]

  def step(dot, carry, at):
    x, masks, states = carry.fed, at["masks"], []
    for i, (name, state) in enumerate(zip(names, carry.states, strict=True)):
      total = dot(name, gates[i].shape[2:], x, state.output)
      output, cell = advance(total, state.memory)
      states.append(State(output.astype(x.dtype), cell))
      x = states[-1].output
      if masks is not None and i + 1 < len(masks):
        x = x * masks[i].astype(x.dtype)
    # Keys and values stay the same for all tokens of the target. Shares are float32 at first, in
    # any compute type.
    scores = dot("keys", memory.keys.shape[1:2], x, equation="bd,bsd->bs")
    shares = jax.nn.softmax(jnp.where(memory.valid, scores, EXCLUDED)).astype(x.dtype)
    context = dot("values", x.shape[1:], shares, equation="bs,bsd->bd").astype(x.dtype)
    mixed = dot("mix", x.shape[1:], jnp.concatenate([context, x], -1))
    fed = jnp.tanh(mixed).astype(x.dtype)
    if masks is not None:
      fed = fed * masks[-1].astype(x.dtype)
    new = Carry(tuple(states), fed)
    return where_valid(at["valid"], new, carry), [*(state.output for state in states), fed]

  factors = dict(zip(names, map(list, kernels), strict=True))
  factors |= {"keys": [memory.keys], "values": [memory.values], "mix": [mix]}
  xs = {**dict(zip(names, gates, strict=True)), "masks": masks, "valid": valid}
  return scan(step, factors, carry, xs)
