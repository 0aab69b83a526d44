"""T5: an encoder reads the source, a decoder that attends to it writes the target.

Raffel et al. 2020, sections 2.1 and 3.1; where the paper is silent, mesh's transformer.py and t5x.
Version 1.1 (Shazeer 2020; t5's released_checkpoints.md) has gated units and an output of its own.

Letters: B rows, T positions, S positions of the source, D width, H heads, K width of a head, F
units of the feed-forward layer, R rows of the padded vocabulary.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder_layers import (
  BUCKETS,
  DecoderBlock,
  EncoderBlock,
  RelativeBias,
  RMSNorm,
  row_dropout,
)
from gpt_jax.models.trunk import States, TrunkConfig, given_source, rate_option, rematerialized
from gpt_jax.models.weight import weight
from gpt_jax.ops.attention import AttentionMask
from gpt_jax.ops.dropout import Key
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import activation_type
from gpt_jax.parallel.partition import constrain

TENSOR_PARALLEL = (
  (r"tokens$", P("model", None)),
  (r"output$", P("model", None)),
  (r"relative/table$", P(None, "model")),
  (r"(query|key|value)/kernel$", P(None, "model")),
  (r"attention/out/kernel$", P("model", None)),
  (r"mlp/(in|gate)/kernel$", P(None, "model")),
  (r"mlp/out/kernel$", P("model", None)),
)


@register("t5")
@dataclasses.dataclass(frozen=True)
class T5Config(TrunkConfig):
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

  TENSOR_PARALLEL = TENSOR_PARALLEL

  @property
  def reads_source(self) -> bool:
    return self.decoder

  @property
  def default_attention(self) -> str:
    return "causal" if self.decoder else "bidirectional"

  @property
  def gated(self) -> bool:
    """Whether the feed-forward layers have a gate."""
    return self.version == "1.1"

  @property
  def has_output(self) -> bool:
    """Whether the output has a table of its own."""
    return self.decoder and self.version == "1.1"

  def build(self, attention: str = "causal", remat: str = "none") -> nn.Module:
    if attention != self.default_attention:
      raise InputError(
        f"trunk.decoder={str(self.decoder).lower()}: has {self.default_attention} attention; "
        f"{attention} needs another trunk"
      )
    return EncoderDecoder(self, remat) if self.decoder else EncoderOnly(self, remat)

  def parameter_count(self) -> int:
    """Without padding rows: 60,506,624 for T5 1.0 small with 32,128 ids."""
    tables = (2 if self.has_output else 1) * self.vocab_size * self.width
    return tables + self._stack_parameters(1) + self.decoder * self._stack_parameters(2)

  def flops_per_token(self, length: int) -> float:
    """Per token of a training step: 6 for each parameter that it meets, 12 K H per pair of an
    attention.

    A token of a source goes through the encoder, one of a target through the decoder; this is their
    mean, for a source and a target of `length` each.
    """
    output = self.vocab_size * self.width
    attention = 12 * self.layers * length * self.heads * self.head_width
    encoder = 6 * self._stack_parameters(1) + attention
    if not self.decoder:
      return encoder + 6 * output
    return (encoder + 6 * (self._stack_parameters(2) + output) + 2 * attention) / 2

  def depth(self, path: str) -> int:
    """0 for embeddings and relative positions, i + 1 for block i; the decoder's follow the
    encoder's.

    The last norm of a stack, and an output table, belong to the block before them.
    """
    stack, _, rest = path.partition("/")
    if stack not in ("encoder", "decoder"):
      return 2 * self.layers if stack == "output" else 0
    before = self.layers if stack == "decoder" else 0
    part = rest.partition("/")[0]
    if part == "relative":
      return 0
    number = self.layers if part == "last_norm" else int(part.removeprefix("block_")) + 1
    return before + number

  def _stack_parameters(self, attentions: int) -> int:
    """Parameters of a stack whose blocks have `attentions` attention layers each."""
    d = self.width
    maps = 3 if self.gated else 2
    attention = 4 * d * self.heads * self.head_width + d
    block = attentions * attention + maps * d * self.units + d
    return self.layers * block + BUCKETS * self.heads + d


class Cache(NamedTuple):
  """The decoder's keys and values: of the tokens read so far, and of the source.

  Attributes:
    keys, values: one of each per block, [B H, slots, K]; the token at position p is in slot p.
    source_keys, source_values: as above for the source, [B H, S, K]; fixed after the prompt.
    source_valid: bool [B, S]; False where the source has padding.
  """

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]
  source_keys: tuple[jax.Array, ...]
  source_values: tuple[jax.Array, ...]
  source_valid: jax.Array


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
    self,
    rows: Rows,
    key: Key | None = None,
    source: Rows | None = None,
    layers: bool = False,
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
    """The cache before the source and the first token.

    Args:
      length: room for so many tokens; None: for the context.
      source_length: the same, of the source.
    """
    c = self.config

    def empty(slots):
      shape = (batch_size * c.heads, slots or c.context, c.head_width)
      return (jnp.zeros(shape, c.dtype),) * c.layers

    target, source = empty(length), empty(source_length)
    valid = jnp.zeros((batch_size, source_length or c.context), bool)
    return Cache(target, target, source, source, valid)

  def read_prompt(self, inputs, valid, source: Rows):
    """Reads the source and the first T tokens of each row; see trunk.Trunk."""
    encoded = self.encoder(self._embed(self.tokens, source), source, None)[-1]
    # Keys and values of the source stay the same for all tokens of the target.
    keys, values = self.decoder.memory(encoded)
    cache = self.start(len(inputs), inputs.shape[1], source.inputs.shape[1])
    inside = jnp.ones(source.inputs.shape, bool)
    if source.segments is not None:
      inside = source.segments > 0
    cache = cache._replace(
      # [B, H, S, K] -> [B H, S, K], the layout of the cache.
      source_keys=tuple(k.reshape(-1, *k.shape[2:]).astype(self.config.dtype) for k in keys),
      source_values=tuple(v.reshape(-1, *v.shape[2:]).astype(self.config.dtype) for v in values),
      source_valid=inside,
    )
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1])[None], inputs.shape)
    return self.extend(inputs, positions, valid, cache)

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens per row, evaluating; see trunk.Trunk.

    `valid` is ignored: an invalid position writes a cache slot that is overwritten before any later
    token attends to it.
    """
    del valid
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
