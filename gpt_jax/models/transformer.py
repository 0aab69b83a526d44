"""The Transformer: tied input and output embeddings, post-norm (GPT-1) or pre-norm (GPT-2).

Radford et al. 2018, section 4.1; where the paper is silent, OpenAI's released train.py
(finetune-transformer-lm). Pre-norm: Radford et al. 2019, section 2.3.

Letters: B rows, T positions, D width, H heads, K = D / H, F = 4 D, R rows of the padded vocabulary.
"""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.models.layers import (
  DTYPES,
  INIT,
  NUM_SPECIAL,
  LayerNorm,
  Projection,
  gelu,
  padded_rows,
)
from gpt_jax.models.remat import rematerialized
from gpt_jax.models.trunk import States
from gpt_jax.ops.attention import AttentionMask, Dropout, attention, find_backend
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup
from gpt_jax.parallel.partition import constrain

# Matched against the paths of parameters and optimizer moments (see parallel.partition).
TENSOR_PARALLEL = (
  (r"tokens$", P("model", None)),
  (r"qkv/kernel$", P(None, None, "model", None)),
  (r"qkv/bias$", P(None, "model", None)),
  (r"attention/out/kernel$", P("model", None, None)),
  (r"mlp/in/kernel$", P(None, "model")),
  (r"mlp/in/bias$", P("model")),
  (r"mlp/out/kernel$", P("model", None)),
)


@register("transformer")
@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Sizes and rates of the decoder; the defaults are the paper's."""

  vocab_size: int = option(
    0, "vocabulary without special tokens; 0: that of the data", unit="tokens", low=0
  )
  context: int = option(512, "longest sequence", unit="tokens", low=2, high=10**6)
  layers: int = option(12, "blocks", low=1, high=1000)
  width: int = option(768, "size of a hidden state, D", low=1, high=10**6)
  heads: int = option(12, "attention heads, H", low=1, high=10**4)
  residual_dropout: float = option(0.1, "dropout on what each sublayer adds", low=0.0, high=0.99)
  attention_dropout: float = option(0.1, "dropout on attention probabilities", low=0.0, high=0.99)
  embedding_dropout: float = option(0.1, "dropout on the embedding tables", low=0.0, high=0.99)
  norm: str = option(
    "post",
    "post: normalize the sum after each sublayer, as GPT-1; pre: normalize the input of each "
    "sublayer, with a final norm, as GPT-2",
    choices=("post", "pre"),
  )
  dtype: str = option("float32", "of activations and matrix products", choices=DTYPES)
  special_tokens: int = option(
    NUM_SPECIAL, "special tokens behind the vocabulary, as the tokenizer has", low=0
  )
  learned_positions: bool = option(True, "add a learned embedding of each position")
  attention_bias: Any = option(None, "config of a bias added to the attention scores, e.g. ALiBi")
  attention_backend: str = option(
    "plain", "plain, or fused: kernels for TPU and GPU (file gpt_jax/ops/attention_<name>.py)"
  )

  def __post_init__(self):
    validate(self)
    if self.width % self.heads:
      raise InputError(f"trunk.heads={self.heads}: must divide trunk.width={self.width}")
    find_backend(self.attention_backend)

  TENSOR_PARALLEL = TENSOR_PARALLEL

  @property
  def rows(self) -> int:
    """R, the rows of the embedding table."""
    return padded_rows(self.vocab_size, self.special_tokens)

  @property
  def residual_scale(self) -> float:
    """Factor on the initial std of the projections into the residual stream.

    (2 L)^-1/2 for pre-norm (GPT-2, section 2.3), else 1.
    """
    return (2 * self.layers) ** -0.5 if self.norm == "pre" else 1.0

  def build(self, attention: str = "causal", remat: str = "none") -> "Transformer":
    return Transformer(self, attention, remat)

  def parameter_count(self) -> int:
    """Without padding rows: 116,534,784 at the paper's sizes and 40,478 ids."""
    per_block = 12 * self.width**2 + 13 * self.width
    last_norm = 2 * self.width if self.norm == "pre" else 0
    embeddings = self.vocab_size + (self.context if self.learned_positions else 0)
    return embeddings * self.width + self.layers * per_block + last_norm

  def flops_per_token(self, length: int) -> float:
    """6 N + 12 L T D per token of a training step, without discounting the causal mask."""
    return 6 * self.parameter_count() + 12 * self.layers * length * self.width

  def depth(self, path: str) -> int:
    """0 for embeddings, i + 1 for block i; the final norm belongs to the last block."""
    part = path.partition("/")[0]
    if part.startswith("block_"):
      return int(part.removeprefix("block_")) + 1
    return self.layers if part == "last_norm" else 0


class Cache(NamedTuple):
  """Keys and values of the tokens read so far, one of each per block: [B H, S, K].

  S, the slots, is at most the context; the token at position p of a row is in slot p. With B and H
  as one axis, which the products want, a CPU writes new tokens in place.
  """

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]


class Transformer(nn.Module):
  """A stack of blocks over token and position embeddings; a Trunk."""

  config: TransformerConfig
  attention: str = "causal"
  remat: str = "none"

  def setup(self):
    c = self.config
    self.tokens = self.param("tokens", INIT, (c.rows, c.width))
    if c.learned_positions:
      self.positions = self.param("positions", INIT, (c.context, c.width))
    if c.attention_bias is not None:
      self.bias = c.attention_bias.build(c.heads)
    block = rematerialized(Block, self.remat)
    self.blocks = [block(c, name=f"block_{i}") for i in range(c.layers)]
    self.last_norm = LayerNorm(c.dtype) if c.norm == "pre" else lambda x: x

  def __call__(self, rows: Rows, key: Key | None = None) -> States:
    """Hidden states [B, T, D] and the table [R, D].

    As in OpenAI's code dropout acts on the whole table, so a token loses the same features wherever
    it occurs, and in the output as well (openai/train.py:165,175).
    """
    kind = self.attention
    if kind == "prefix" and rows.prefix is None:
      kind = "bidirectional"  # texts without a continuation, to embed or to classify
    mask = AttentionMask(kind, rows.segments, rows.prefix)
    bias = self._bias(rows.positions, rows.positions)
    x, table = self._embed(rows.inputs, rows.positions, key)
    for i, block in enumerate(self.blocks):
      x = block(x, mask, bias, key and key.fold(i))
    return States(self.last_norm(x), table)

  def start(self, batch_size: int, length: int | None = None) -> Cache:
    """The cache before the first token, with room for `length` tokens; None: for the context."""
    c = self.config
    shape = (batch_size * c.heads, length or c.context, c.width // c.heads)
    empty = (jnp.zeros(shape, c.dtype),) * c.layers
    return Cache(empty, empty)

  def read_prompt(self, inputs, valid):
    """Reads the first T tokens of each row; see trunk.Trunk. The cache has T slots.

    Under prefix attention the prompt is the prefix. Causal attention hides what follows a shorter
    prompt, so `valid` is ignored; the slots are overwritten before any later token attends to them.
    """
    positions = jnp.broadcast_to(jnp.arange(inputs.shape[1])[None], inputs.shape)
    x, table = self._embed(inputs, positions, None)
    mask, bias = AttentionMask("causal"), self._bias(positions, positions)
    if self.attention == "prefix":
      mask = AttentionMask("prefix", prefix=valid)
    keys, values = [], []
    for block in self.blocks:
      x, k, v = block.read(x, mask, bias)
      keys.append(k.reshape(-1, *k.shape[2:]))
      values.append(v.reshape(-1, *v.shape[2:]))
    return self.last_norm(x), table, Cache(tuple(keys), tuple(values))

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens per row, evaluating; see trunk.Trunk.

    `valid` is ignored: an invalid position writes a cache slot that is overwritten before any later
    token attends to it.
    """
    del valid
    x, table = self._embed(inputs, positions, None)
    key_positions = jnp.arange(cache.keys[0].shape[1])[None]
    bias = self._bias(positions, jnp.broadcast_to(key_positions, (len(inputs), key_positions.size)))
    keys, values = [], []
    for i, block in enumerate(self.blocks):
      x, k, v = block.extend(x, positions, bias, cache.keys[i], cache.values[i])
      keys.append(k)
      values.append(v)
    return self.last_norm(x), table, Cache(tuple(keys), tuple(values))

  def _bias(self, query_positions, key_positions):
    """float32 [B or 1, H, T, S] to add to the attention scores; None: nothing."""
    if self.config.attention_bias is None:
      return None
    return self.bias(query_positions, key_positions)

  @jax.named_scope("embedding")
  def _embed(self, inputs, positions, key):
    """[B, T, D] and the table [R, D]."""
    c = self.config
    table = self.tokens
    if key is not None:
      table = dropout(table, c.embedding_dropout, key.fold(c.layers), sharded=False)
    # Replicated along `data`: otherwise FSDP would gather the embedding gradients of every row.
    table = constrain(table, "model")
    x = lookup(table, inputs, c.dtype)
    if c.learned_positions:
      position_table = self.positions
      if key is not None:
        position_key = key.fold(c.layers + 1)
        position_table = dropout(position_table, c.embedding_dropout, position_key, sharded=False)
      x = x + lookup(constrain(position_table), positions, c.dtype)
    return constrain(x, "data"), table


class Block(nn.Module):
  """GPT-1: n = LN(x + Attention(x)), LN(n + MLP(n)) (openai/train.py:143-147).

  GPT-2: x + Attention(LN(x)), then x + MLP(LN(x)).
  """

  config: TransformerConfig

  def setup(self):
    self.attention = Attention(self.config)
    self.attention_norm = LayerNorm(self.config.dtype)
    self.mlp = MLP(self.config)
    self.mlp_norm = LayerNorm(self.config.dtype)

  def __call__(self, x, mask: AttentionMask, bias, key: Key | None):
    """x [B, T, D] to the same shape; bias as in ops.attention."""
    rate = self.config.residual_dropout
    attention_key, first_key, second_key = (key and key.fold(i) for i in range(3))
    if self.config.norm == "pre":
      update = self.attention(self.attention_norm(x), mask, bias, attention_key)
      x = x + dropout(update, rate, first_key)
      x = x + dropout(self.mlp(self.mlp_norm(x)), rate, second_key)
    else:
      update = self.attention(x, mask, bias, attention_key)
      x = self.attention_norm(x + dropout(update, rate, first_key))
      x = self.mlp_norm(x + dropout(self.mlp(x), rate, second_key))
    return constrain(x, "data")

  def read(self, x, mask: AttentionMask, bias):
    """As __call__, evaluating; also the keys and values [B, H, T, K]."""
    update, keys, values = self.attention.read(self._attention_input(x), mask, bias)
    return self._add(x, update), keys, values

  def extend(self, x, positions, bias, keys, values):
    """As __call__ for T more tokens; keys and values [B H, S, K] are the block's cache."""
    normed = self._attention_input(x)
    update, keys, values = self.attention.extend(normed, positions, bias, keys, values)
    return self._add(x, update), keys, values

  def _attention_input(self, x):
    return self.attention_norm(x) if self.config.norm == "pre" else x

  def _add(self, x, update):
    """The block's output from its input and what attention adds to it."""
    if self.config.norm == "pre":
      x = x + update
      return x + self.mlp(self.mlp_norm(x))
    x = self.attention_norm(x + update)
    return self.mlp_norm(x + self.mlp(x))


class Attention(nn.Module):
  """Multi-head attention; one projection for queries, keys, values (openai/train.py:64-130)."""

  config: TransformerConfig

  def setup(self):
    d, h = self.config.width, self.config.heads
    self.qkv = Projection((d,), (3, h, d // h), self.config.dtype)
    self.out = Projection((h, d // h), (d,), self.config.dtype, self.config.residual_scale)

  def __call__(self, x, mask: AttentionMask, bias, key: Key | None):
    c = self.config
    q, k, v = self._project(x)
    observe = None
    if self.is_mutable_collection("intermediates") and not self.is_initializing():
      observe = self._keep  # see inference.attention_maps
    rates = Dropout(c.attention_dropout, key)
    update = attention(q, k, v, mask, bias, rates, c.attention_backend, observe)
    return self.out(update.swapaxes(1, 2))

  def read(self, x, mask: AttentionMask, bias):
    q, k, v = self._project(x)
    update = attention(q, k, v, mask, bias, backend=self.config.attention_backend)
    return self.out(update.swapaxes(1, 2)), k, v

  def extend(self, x, positions, bias, keys, values):
    qkv = constrain(self.qkv(x), "data", None, None, "model")  # [B, T, 3, H, K]
    keys, values = _write(keys, qkv[:, :, 1], positions), _write(values, qkv[:, :, 2], positions)
    batch, length, _, heads, width = qkv.shape
    q = qkv[:, :, 0].swapaxes(1, 2).reshape(-1, length, width)
    scores = jnp.einsum("ntk,nsk->nts", q, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, heads, length, -1) * width**-0.5
    if bias is not None:
      scores = scores + bias
    slots = jnp.arange(keys.shape[1])[None, None, None]
    scores = jnp.where(positions[:, None, :, None] >= slots, scores, -1e9)
    probabilities = jax.nn.softmax(scores).astype(q.dtype).reshape(-1, length, keys.shape[1])
    update = jnp.einsum("nts,nsk->ntk", probabilities, values)
    update = update.reshape(batch, heads, length, width).swapaxes(1, 2)
    return self.out(update), keys, values

  def _project(self, x):
    qkv = self.qkv(x)  # [B, T, 3, H, K]
    qkv = constrain(qkv, "data", None, None, "model")
    qkv = jnp.moveaxis(qkv, (2, 3), (0, 2))
    # Not unpacked, which jax2onnx cannot export under jax 0.11.
    return qkv[0], qkv[1], qkv[2]  # [B, H, T, K] each

  def _keep(self, probabilities):
    self.sow("intermediates", "probabilities", probabilities)


def _write(cache, new, positions):
  """The cache [B H, S, K] with `new` [B, T, H, K] at slots [B, T]."""
  batch, length, heads, width = new.shape

  def scatter(cache, new, positions):
    row = jnp.arange(batch)[:, None]
    split = cache.reshape(batch, heads, *cache.shape[1:])
    return split.at[row, :, positions].set(new).reshape(cache.shape)

  def slice_by_slice(cache, new, positions):
    for row in range(batch):
      update = new[row, 0][:, None]
      cache = jax.lax.dynamic_update_slice(cache, update, (row * heads, positions[row, 0], 0))
    return cache

  if length > 1:
    return scatter(cache, new, positions)
  # On a CPU a scatter is a loop; slices are written in place.
  return jax.lax.platform_dependent(cache, new, positions, cpu=slice_by_slice, default=scatter)


class MLP(nn.Module):
  """D -> 4 D, GELU in its tanh form, -> D (openai/train.py:22,132-138)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    d, dtype = self.config.width, self.config.dtype
    x = gelu(Projection((d,), (4 * d,), dtype, name="in")(x), approximate=True)
    return Projection((4 * d,), (d,), dtype, self.config.residual_scale, name="out")(x)
