"""T5: an encoder reads the source, a decoder that attends to it writes the target.

Raffel et al. 2020, sections 2.1 and 3.1; where the paper is silent, mesh's transformer.py,
transformer_layers.py and attention.py, and t5x. Blocks have no biases and are normalized at the
input of each sublayer. What dropout drops it drops at all positions of a row (mesh's `noise_shape`
without the length).
Version 1.1 (Shazeer 2020; t5's released_checkpoints.md) has gated units and an output of its own.

Letters: B rows, T positions, S positions of the source, D width, H heads, K width of a head, F
units of the feed-forward layer, R rows of the padded vocabulary.
"""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.models.layers import activate, multiply, weight
from gpt_jax.models.trunk import (
  SourceTrunkConfig,
  States,
  given_source,
  rate_option,
  rematerialized,
)
from gpt_jax.ops.attention import AttentionMask, write_cache
from gpt_jax.ops.attention_plain import attend_allowed, attend_heads
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import activation_type
from gpt_jax.parallel.mesh import constrain


@register("t5")
@dataclasses.dataclass(frozen=True)
class T5Config(SourceTrunkConfig):
  """Sizes and rates of the encoder-decoder; the defaults are those of T5 1.0 small."""

  context: int = option(512, "longest source, and longest target", unit="tokens", low=2, high=10**6)
  layers: int = option(6, "blocks of the encoder, and of the decoder", low=1, high=1000)
  width: int = option(512, "size of a hidden state, D", low=1, high=10**6)
  heads: int = option(8, "attention heads, H", low=1, high=10**4)
  head_width: int = option(64, "size of a head, K; H K need not be D", low=1, high=10**4)
  units: int = option(2048, "units of a feed-forward layer, F", low=1, high=10**6)
  version: str = option(
    "1.0",
    "1.0: ReLU, the output is the embedding table; 1.1: gated GELU, an output of its own",
    choices=("1.0", "1.1"),
  )
  residual_dropout: float = rate_option(
    0.1,
    "dropout on what each sublayer adds, on embeddings, on units and on attention probabilities; "
    "the same at all positions of a row",
  )
  decoder: bool = option(True, "without a decoder, the encoder is a bidirectional trunk")

  TENSOR_PARALLEL = (
    (r"tokens$", P("model", None)),
    (r"output$", P("model", None)),
    (r"relative/table$", P(None, "model")),
    (r"(query|key|value)/kernel$", P(None, "model")),
    (r"attention/out/kernel$", P("model", None)),
    (r"mlp/(in|gate)/kernel$", P(None, "model")),
    (r"mlp/out/kernel$", P("model", None)),
  )

  @property
  def gives(self) -> frozenset[str]:
    return super().gives | {"sources"}

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a gate."""
    return self.version == "1.1"

  @property
  def has_output(self) -> bool:
    """Whether the output has a table of its own."""
    return self.decoder and self.version == "1.1"

  def build(self, attention: str = "causal", remat: str = "none") -> nn.Module:
    self.check_attention(attention, f"trunk.decoder={str(self.decoder).lower()}")
    return EncoderDecoder(self, remat) if self.decoder else EncoderOnly(self, remat)

  def parameter_count(self) -> int:
    """Without padding rows: 60,506,624 for T5 1.0 small with 32,128 ids."""
    tables = (2 if self.has_output else 1) * self.vocab_size * self.width
    return tables + self._stack_parameters(1) + self.decoder * self._stack_parameters(2)

  def flops_per_token(self, length: int) -> float:
    """Per token of a training step: 6 for each parameter that it meets, 12 K H per pair of an
    attention; the mean of a token of a source, which the encoder reads, and one of a target, both
    of `length`.
    """
    output = self.vocab_size * self.width
    attention = 12 * self.layers * length * self.heads * self.head_width
    encoder = 6 * self._stack_parameters(1) + attention
    if not self.decoder:
      return encoder + 6 * output
    return (encoder + 6 * (self._stack_parameters(2) + output) + 2 * attention) / 2

  def depth(self, path: str) -> int:
    """0 for embeddings and relative positions, i + 1 for block i, first the encoder's; a stack's
    last norm, and an output table, belong to the block before them.
    """
    stack, part, *_ = f"{path}/".split("/")
    if stack == "output":
      return 2 * self.layers
    if stack == "tokens" or part == "relative":
      return 0
    number = self.layers if part == "last_norm" else int(part.removeprefix("block_")) + 1
    return number + (self.layers if stack == "decoder" else 0)

  def _stack_parameters(self, attentions: int) -> int:
    """Parameters of a stack whose blocks have `attentions` attention layers each."""
    d = self.width
    maps = 3 if self.gated else 2
    attention = 4 * d * self.heads * self.head_width + d
    block = attentions * attention + maps * d * self.units + d
    return self.layers * block + BUCKETS * self.heads + d


class Linear(nn.Module):
  """A linear map of the last axis."""

  outputs: int
  std: float
  dtype: str

  @nn.compact
  def __call__(self, x):
    shape = (x.shape[-1], self.outputs)
    kernel = weight(self, "kernel", nn.initializers.normal(self.std), shape, inputs=1)
    return multiply(kernel, x.astype(self.dtype), 1, (self.outputs,))


class RMSNorm(nn.Module):
  """x / sqrt(mean(x^2) + 1e-6) * scale, in float32."""

  dtype: str

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
    x = x.astype(jnp.float32)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    x = x * scale.reshape((1,) * (x.ndim - 1) + scale.shape)
    return x.astype(activation_type(self.dtype))


def row_dropout(x: jax.Array, rate: float, key: Key | None) -> jax.Array:
  """Dropout of x [B, T, D] with one mask for all positions of a row."""
  return _drop(x, (len(x), 1, x.shape[-1]), rate, key)


def _drop(x, shape, rate, key):
  """x times a mask of `shape`, which broadcasts to that of x."""
  if key is None or rate == 0:
    return x
  # In float32: bfloat16 would round 1 / (1 - rate), which is the same for all elements.
  mask = dropout(jnp.ones(shape, jnp.float32), rate, key)
  return (x.astype(jnp.float32) * mask).astype(x.dtype)


class Attention(nn.Module):
  """Multi-head attention whose scores are not divided by sqrt(K): that is in the queries' init.

  The kernels are matrices, [D, H K] and [H K, D], as optimizers that look at whole tensors want.
  """

  config: T5Config

  def setup(self):
    c = self.config
    inner = c.heads * c.head_width
    # Mesh's deviations: 1 / sqrt of a product's inputs; the queries' has 1 / sqrt(K) besides, in
    # place of a division of the scores.
    self.query = Linear(inner, (c.width * c.head_width) ** -0.5, c.dtype)
    self.key = Linear(inner, c.width**-0.5, c.dtype)
    self.value = Linear(inner, c.width**-0.5, c.dtype)
    self.out = Linear(c.width, inner**-0.5, c.dtype)

  def __call__(self, x, mask, bias, key: Key | None = None, slots: tuple | None = None):
    """x [B, T, D] attends to itself, or to slots; see transformer.Block, also for the results."""
    q = self._queries(x)
    if slots is None:
      k, v = kept = self.memory(x)
      return self._join(attend_heads(q, k, self._drop_keys(v, key), mask, bias)), kept
    positions, *caches = slots
    new = self._split(self.key(x)), self._split(self.value(x))
    kept = [write_cache(y, z, positions) for y, z in zip(caches, new, strict=True)]
    k, v = (y.reshape(len(x), -1, *y.shape[1:]) for y in kept)
    return self._join(attend_allowed(q.astype(k.dtype), k, v, mask, bias)), kept

  def cross(self, x, memory, allowed, key: Key | None):
    """x [B, T, D] attends to a memory where allowed, bool [B, 1, T or 1, S], or None."""
    k, v = memory
    # Without a bias: target and source have no relative positions.
    q = self._queries(x).astype(k.dtype)
    return self._join(attend_allowed(q, k, self._drop_keys(v, key), allowed))

  def memory(self, x):
    """Keys and values of x [B, S, D]: [B, H, S, K] each."""
    return self._split(self.key(x)).swapaxes(1, 2), self._split(self.value(x)).swapaxes(1, 2)

  def _queries(self, x):
    """[B, H, T, K], times the sqrt(K) by which our attention divides the scores."""
    q = self.query(x) * self.config.head_width**0.5
    return self._split(q).swapaxes(1, 2)

  def _split(self, x):
    x = constrain(x, "data", None, "model")
    # [B, T, H K] -> [B, T, H, K]
    return x.reshape(*x.shape[:2], self.config.heads, self.config.head_width)

  def _join(self, update):
    """[B, H, T, K] to [B, T, D]."""
    update = update.swapaxes(1, 2)  # [B, T, H, K]
    return self.out(update.reshape(*update.shape[:2], -1))

  def _drop_keys(self, v, key):
    """Attention dropout with one mask for all queries, so a dropped key is a dropped value."""
    return _drop(v, (*v.shape[:3], 1), self.config.residual_dropout, key)


class FeedForward(nn.Module):
  """1.0: ReLU. 1.1: a tanh-GELU of one map times another (GEGLU, Shazeer 2020)."""

  config: T5Config

  @nn.compact
  def __call__(self, x, key: Key | None):
    c = self.config
    hidden = Linear(c.units, c.width**-0.5, c.dtype, name="in")(x)
    if c.gated:
      # `gate` is wi_0 of t5's code and `in` is wi_1: only the gate is activated.
      gate = Linear(c.units, c.width**-0.5, c.dtype, name="gate")(x)
      hidden = activate(gate, "gelu_tanh") * hidden
    else:
      hidden = jax.nn.relu(hidden)
    # T5 drops hidden units, too, unlike GPT.
    hidden = row_dropout(hidden, c.residual_dropout, key)
    return Linear(c.width, c.units**-0.5, c.dtype, name="out")(hidden)


class EncoderBlock(nn.Module):
  """x + Attention(RMS(x)), then x + FeedForward(RMS(x))."""

  config: T5Config

  def setup(self):
    self.attention = Attention(self.config)
    self.attention_norm = RMSNorm(self.config.dtype)
    self.mlp = FeedForward(self.config)
    self.mlp_norm = RMSNorm(self.config.dtype)

  def __call__(self, x, mask: AttentionMask, bias, key: Key | None):
    """x [B, T, D] to the same shape, and the keys and values of its attention to itself."""
    rate = self.config.residual_dropout
    # Of the attention, what it adds, the hidden units, and what they add.
    keys = [key and key.fold(i) for i in range(4)]
    update, kept = self.attention(self.attention_norm(x), mask, bias, keys[0])
    x = x + row_dropout(update, rate, keys[1])
    x = x + row_dropout(self.mlp(self.mlp_norm(x), keys[2]), rate, keys[3])
    return constrain(x, "data"), kept


class DecoderBlock(EncoderBlock):
  """As EncoderBlock, with attention to the source between the two."""

  def setup(self):
    super().setup()
    self.cross_attention = Attention(self.config)
    self.cross_attention_norm = RMSNorm(self.config.dtype)

  def __call__(  # type: ignore[override]
    self, x, source, mask, allowed, bias, key: Key | None = None, slots: tuple | None = None
  ):
    """As EncoderBlock; mask, bias, slots: as in transformer.Block.

    source: the encoder's states [B, S, D], or with slots what memory makes of them. allowed: where
    it is seen, bool [B, 1, T or 1, S], or None.
    """
    rate = self.config.residual_dropout
    keys = [key and key.fold(i) for i in range(6)]
    update, kept = self.attention(self.attention_norm(x), mask, bias, keys[0], slots)
    x = x + row_dropout(update, rate, keys[1])
    memory = self.memory(source) if slots is None else source
    update = self.cross_attention.cross(self.cross_attention_norm(x), memory, allowed, keys[2])
    x = x + row_dropout(update, rate, keys[3])
    x = x + row_dropout(self.mlp(self.mlp_norm(x), keys[4]), rate, keys[5])
    return constrain(x, "data"), kept

  def memory(self, source):
    """Keys and values of the source: [B, H, S, K] each."""
    return self.cross_attention.memory(source)


BUCKETS = 32  # U
MAX_DISTANCE = 128  # this distance and all above share the last bucket


@functools.cache
def _bucket_of_distance(buckets: int) -> np.ndarray:
  """The bucket of the distances 0 … MAX_DISTANCE, int32 [MAX_DISTANCE + 1].

  The first half of the buckets has a distance each. The others, n of them, begin at
  exact * (MAX_DISTANCE / exact)^(k / n), rounded up: in whole numbers, so that no edge depends on
  how a logarithm is rounded.
  """
  exact = buckets // 2
  n = buckets - exact
  edges = list(range(1, exact))
  for k in range(n):
    least = exact**n * (MAX_DISTANCE // exact) ** k
    edges.append(next(d for d in range(exact, MAX_DISTANCE) if d**n >= least))
  return np.searchsorted(edges, np.arange(MAX_DISTANCE + 1), side="right").astype(np.int32)


def bucket(offset: jax.Array, bidirectional: bool) -> jax.Array:
  """The bucket of key position - query position, int32 of any shape.

  In both directions the first half of the buckets is for keys at or before the query, the second
  for those after it. A causal query has all buckets for the keys before it.
  """
  if bidirectional:
    table = jnp.asarray(_bucket_of_distance(BUCKETS // 2))
    after = jnp.where(offset > 0, BUCKETS // 2, 0)
    return table[jnp.minimum(jnp.abs(offset), MAX_DISTANCE)] + after
  table = jnp.asarray(_bucket_of_distance(BUCKETS))
  return table[jnp.clip(-offset, 0, MAX_DISTANCE)]


class RelativeBias(nn.Module):
  """A table [U, H] that all layers of a stack share."""

  heads: int
  bidirectional: bool

  def setup(self):
    init = nn.initializers.glorot_uniform()
    self.table = self.param("table", init, (BUCKETS, self.heads))

  def square(self, length: int) -> jax.Array:
    """float32 [1, H, T, T]: for a row of T positions that attends to itself.

    By columns. The positions of a sequence are consecutive, so within a sequence of a packed row
    the difference of two columns is that of the positions; between sequences nothing attends. One
    bias serves all rows, and its gradient is a sum of shifted rows, without a scatter.
    """
    offsets = jnp.arange(1 - length, length)  # [2 T - 1]
    one_hot = jax.nn.one_hot(bucket(offsets, self.bidirectional), BUCKETS)  # [2 T - 1, U]
    # A GPU would round float32 to 10 bits.
    values = jnp.dot(one_hot, self.table, precision=jax.lax.Precision.HIGHEST).T  # [H, 2 T - 1]
    # Row t of a tiling with one more column, read without it, is the vector shifted by t.
    width = 2 * length - 1
    tiled = jnp.tile(jnp.pad(values, ((0, 0), (0, 1))), (1, length))[:, : length * width]
    return tiled.reshape(1, self.heads, length, width)[..., length - 1 :]

  def __call__(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
    """[B, T] and [1, S] to float32 [B, H, T, S]."""
    offsets = key_positions[:, None, :] - query_positions[:, :, None]  # [B, T, S]
    return jnp.moveaxis(self.table[bucket(offsets, self.bidirectional)], -1, 1)


class Cache(NamedTuple):
  """The decoder's keys and values: of the tokens read so far, and of the source; one per block."""

  keys: tuple[jax.Array, ...]  # [B H, slots, K]; the token at position p is in slot p
  values: tuple[jax.Array, ...]
  source_keys: tuple[jax.Array, ...]  # [B H, S, K]; fixed after the prompt
  source_values: tuple[jax.Array, ...]
  source_valid: jax.Array  # bool [B, S]; False where the source has padding


class EncoderDecoder(nn.Module):
  """Two stacks of blocks that share their embedding; a Trunk that reads a source."""

  config: T5Config
  remat: str = "none"

  def setup(self):
    c = self.config
    # Of deviation 1: the output divides by sqrt(D) instead, see _states.
    self.tokens = weight(self, "tokens", nn.initializers.normal(1.0), (c.rows, c.width))
    if c.has_output:
      init = nn.initializers.normal(c.width**-0.5)
      self.output = weight(self, "output", init, (c.rows, c.width))
    self.encoder = Encoder(c, self.remat)
    self.decoder = Decoder(c, self.remat)

  def __call__(
    self, rows: Rows, key: Key | None = None, source: Rows | None = None, layers: bool = False
  ) -> States:
    """The decoder's hidden states [B, T, D], and the output table [R, D].

    A position attends to the positions before it and to those of the source that have its segment.
    Without segments every row is of segment 1, and segment 0 of the other side is padding.
    """
    source = given_source(source)
    encoder_key, decoder_key = (key and key.fold(i) for i in range(2))
    table = constrain(self.tokens, "model")
    # One table embeds source and target.
    encoded = self.encoder(self._embed(table, source), source, encoder_key)[-1]
    allowed = _same_segment(rows, source)
    decoded = self.decoder(self._embed(table, rows), encoded, rows, allowed, decoder_key)
    states = self._states(decoded[-1])
    return states._replace(layers=(*decoded[:-1], states.hidden)) if layers else states

  def start(
    self, batch_size: int, length: int | None = None, source_length: int | None = None
  ) -> Cache:
    c = self.config

    def empty(slots):
      shape = (batch_size * c.heads, slots or c.context, c.head_width)
      return (jnp.zeros(shape, c.dtype),) * c.layers

    target, source = empty(length), empty(source_length)
    valid = jnp.zeros((batch_size, source_length or c.context), bool)
    return Cache(target, target, source, source, valid)

  def read_prompt(self, inputs, valid, source: Rows):
    encoded = self.encoder(self._embed(self.tokens, source), source, None)[-1]
    # Keys and values of the source stay the same for all tokens of the target.
    keys, values = self.decoder.memory(encoded)
    cache = self.start(len(inputs), inputs.shape[1], source.inputs.shape[1])
    cache = cache._replace(
      # [B, H, S, K] -> [B H, S, K], the layout of the cache.
      source_keys=tuple(k.reshape(-1, *k.shape[2:]).astype(self.config.dtype) for k in keys),
      source_values=tuple(v.reshape(-1, *v.shape[2:]).astype(self.config.dtype) for v in values),
      source_valid=jnp.asarray(source.is_token),
    )
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1])[None], inputs.shape)
    return self.extend(inputs, positions, valid, cache)

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens per row, evaluating; see trunk.Trunk.

    `valid` is ignored: an invalid position writes a cache slot that is overwritten before any later
    token attends to it.
    """
    x = lookup(self.tokens, inputs, activation_type(self.config.dtype))
    hidden, cache = self.decoder.extend(x, positions, cache)
    states = self._states(hidden)
    return states.hidden, states.table, cache

  @jax.named_scope("embedding")
  def _embed(self, table, rows: Rows):
    # Not scaled, unlike the output.
    return constrain(lookup(table, rows.inputs, activation_type(self.config.dtype)), "data")

  def _states(self, hidden) -> States:
    """1.0: hidden states times D^-1/2, since the table's rows have a norm of sqrt(D)."""
    hidden = hidden.astype(self.config.dtype)
    if self.config.has_output:
      return States(hidden, constrain(self.output, "model"))
    scaled = hidden * self.config.width**-0.5
    return States(scaled, constrain(self.tokens, "model"))


class EncoderOnly(EncoderDecoder):
  """The encoder by itself; a Trunk whose positions attend to their whole sequence."""

  def setup(self):
    c = self.config
    self.tokens = self.param("tokens", nn.initializers.normal(1.0), (c.rows, c.width))
    self.encoder = Encoder(c, self.remat)

  def __call__(  # type: ignore[override]
    self, rows: Rows, key: Key | None = None, layers: bool = False
  ) -> States:
    """Hidden states [B, T, D] and the embedding table [R, D]."""
    table = constrain(self.tokens, "model")
    states = self.encoder(self._embed(table, rows), rows, key)
    hidden = states[-1].astype(self.config.dtype)
    return States(hidden, table, layers=states if layers else None)


class _Stack(nn.Module):
  """Blocks that share one table of relative positions (section 2.1), and a norm after the last."""

  config: T5Config
  remat: str

  block: ClassVar[type[nn.Module]] = EncoderBlock
  bidirectional = True

  def setup(self):
    c = self.config
    block = rematerialized(self.block, self.remat)
    self.relative = RelativeBias(c.heads, bidirectional=self.bidirectional)
    self.blocks = [block(c, name=f"block_{i}") for i in range(c.layers)]
    self.last_norm = RMSNorm(c.dtype)

  def _states(self, x, key: Key | None, *arguments) -> tuple[jax.Array, ...]:
    """Embedded rows [B, T, D] to the states of every layer; arguments: of the blocks."""
    c = self.config
    # Dropout acts on the embeddings and on the last norm too; the blocks fold 0 … L - 1.
    states = [row_dropout(x, c.residual_dropout, key and key.fold(c.layers))]
    for i, block in enumerate(self.blocks):
      states.append(block(states[-1], *arguments, key and key.fold(i))[0])
    # Pre-norm blocks leave their sum unnormalized; the decoder attends to it normalized.
    states[-1] = self.last_norm(states[-1])
    states[-1] = row_dropout(states[-1], c.residual_dropout, key and key.fold(c.layers + 1))
    return tuple(states)


class Encoder(_Stack):
  """Blocks whose positions attend to their whole sequence."""

  def __call__(self, x, rows: Rows, key: Key | None) -> tuple[jax.Array, ...]:
    """Embedded rows [B, S, D] to the states of every layer, as States.layers."""
    mask, bias = AttentionMask("bidirectional", rows.segments), self.relative.square(x.shape[1])
    return self._states(x, key, mask, bias)


class Decoder(_Stack):
  """Blocks whose positions attend to those before them, and to the source."""

  block = DecoderBlock
  bidirectional = False

  def __call__(self, x, source, rows: Rows, allowed, key: Key | None) -> tuple[jax.Array, ...]:
    """Embedded rows [B, T, D] and the encoder's states [B, S, D] to the states of every layer."""
    mask, bias = AttentionMask("causal", rows.segments), self.relative.square(x.shape[1])
    return self._states(x, key, source, mask, allowed, bias)

  def memory(self, source):
    """Cross-attention keys, and values, of the encoder's states: [B, H, S, K] per block."""
    return zip(*(block.memory(source) for block in self.blocks), strict=True)

  def extend(self, x, positions, cache: Cache):
    """Hidden states of T more tokens [B, T, D], and the cache with them."""
    slots = jnp.arange(cache.keys[0].shape[1])[None]
    bias = self.relative(positions, slots)
    # The token at position p is in slot p, so this is the causal mask.
    allowed = positions[:, None, :, None] >= slots[:, None, None]
    allowed_source = cache.source_valid[:, None, None]
    each = []
    for block, *arrays in zip(self.blocks, *cache[:4], strict=True):
      # [B H, S, K] -> [B, H, S, K]
      memory = [y.reshape(len(x), -1, *y.shape[1:]) for y in arrays[2:]]
      own = (positions, *arrays[:2])
      x, kept = block(x, memory, allowed, allowed_source, bias, None, own)
      each.append(kept)
    keys, values = zip(*each, strict=True)
    return self.last_norm(x), cache._replace(keys=keys, values=values)


def _same_segment(rows: Rows, source: Rows) -> jax.Array | None:
  """bool [B, 1, T, S]: where a position has the segment of one of the source; None: everywhere."""
  if rows.segments is None and source.segments is None:
    return None
  targets, sources = (
    jnp.ones(x.inputs.shape, jnp.int32) if x.segments is None else x.segments
    for x in (rows, source)
  )
  # For packed rows: a target attends to its own source, not to those beside it.
  return targets[:, None, :, None] == sources[:, None, None, :]
