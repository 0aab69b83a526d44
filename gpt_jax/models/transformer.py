"""The GPT decoder: a Transformer with learned positions and a tied output table, post-norm (GPT-1)
or pre-norm (GPT-2).

Radford et al. 2018, section 4.1; where the paper is silent, OpenAI's released train.py
(finetune-transformer-lm).
Pre-norm: Radford et al. 2019, section 2.3.

Letters: B rows, T positions, D width, H heads, K = D / H, F = 4 D, R rows of the padded vocabulary.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from gpt_jax.config import option, register, validate
from gpt_jax.errors import InputError
from gpt_jax.models.layers import _INIT, LayerNorm, Projection, padded_rows
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.parallel.partition import constrain

# Matched against the paths of parameters and optimizer moments (see sharding.partition).
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
  context: int = option(512, "longest sequence", unit="tokens", low=2)
  layers: int = option(12, "blocks", low=1)
  width: int = option(768, "size of a hidden state, D", low=1)
  heads: int = option(12, "attention heads, H", low=1)
  residual_dropout: float = option(0.1, "dropout on what each sublayer adds", low=0.0, high=0.99)
  attention_dropout: float = option(0.1, "dropout on attention probabilities", low=0.0, high=0.99)
  embedding_dropout: float = option(0.1, "dropout on the embedding tables", low=0.0, high=0.99)
  norm: str = option(
    "post",
    "post: a block normalizes its sums, as GPT-1; pre: what its sublayers read, as GPT-2, with a last norm at the end",
    choices=("post", "pre"),
  )
  dtype: str = option(
    "float32", "of activations and matrix products", choices=("float32", "bfloat16")
  )

  def __post_init__(self):
    validate(self)
    if self.width % self.heads:
      raise InputError(f"trunk.heads={self.heads}: must divide trunk.width={self.width}")

  TENSOR_PARALLEL = TENSOR_PARALLEL

  @property
  def rows(self) -> int:
    """R, the rows of the embedding table."""
    return padded_rows(self.vocab_size)

  @property
  def residual_scale(self) -> float:
    """Of the first kernels that add to the residual stream: pre-norm, it grows with depth
    (GPT-2, section 2.3).
    """
    return (2 * self.layers) ** -0.5 if self.norm == "pre" else 1.0

  def build(self, causal: bool = True) -> "Transformer":
    return Transformer(self, causal)

  def parameter_count(self) -> int:
    """Parameters without the unused rows of the table: 116,534,784 at the paper's sizes and
    40,478 ids.
    """
    per_block = 12 * self.width**2 + 13 * self.width
    last_norm = 2 * self.width if self.norm == "pre" else 0
    return (self.vocab_size + self.context) * self.width + self.layers * per_block + last_norm

  def flops_per_token(self, length: int) -> float:
    """Floating-point operations of a training step for one token: 6 N + 12 L T D, attention
    counted whole.
    """
    return 6 * self.parameter_count() + 12 * self.layers * length * self.width


class Cache(NamedTuple):
  """Keys and values of the tokens read so far, of each block: [B, H, context, K]."""

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]


class Transformer(nn.Module):
  """A stack of blocks over token and position embeddings."""

  config: TransformerConfig
  causal: bool = True

  def setup(self):
    c = self.config
    self.tokens = self.param("tokens", _INIT, (c.rows, c.width))
    self.positions = self.param("positions", _INIT, (c.context, c.width))
    self.blocks = [Block(c, self.causal, name=f"block_{i}") for i in range(c.layers)]
    self.last_norm = LayerNorm(c.dtype) if c.norm == "pre" else lambda x: x

  def __call__(self, inputs, positions, segments=None, key: Key | None = None):
    """Hidden states and the table that turns them into logits.

    Args:
      inputs: int32 [B, T] token ids.
      positions: int32 [B, T].
      segments: int32 [B, T] or None; attention stays among equal segments.
      key: dropout key; None evaluates.

    Returns:
      hidden [B, T, D] and table [R, D], both in the compute dtype. As in OpenAI's code the whole
      table is dropped, so a token loses the same features wherever it occurs, and in the output as
      well (train.py:165,175).
    """
    x, table = self._embed(inputs, positions, key)
    for i, block in enumerate(self.blocks):
      x = block(x, segments, key and key.fold(i))
    return self.last_norm(x), table

  def start(self, batch_size: int) -> Cache:
    """The cache before the first token."""
    c = self.config
    empty = (jnp.zeros((batch_size, c.heads, c.context, c.width // c.heads), c.dtype),) * c.layers
    return Cache(empty, empty)

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens a row (a prompt, or the one just sampled), evaluating.

    Args:
      inputs, positions: int32 [B, T]; the positions of a row increase from where the row stands.
      valid: bool [B, T]; False behind the end of a shorter prompt. What such places leave in the
        cache lies at positions that later tokens overwrite before anything may look at them, so
        that it needs no care here.

    Returns:
      hidden [B, T, D], table [R, D], and the cache with the tokens in it.
    """
    del valid
    x, table = self._embed(inputs, positions, None)
    keys, values = [], []
    for i, block in enumerate(self.blocks):
      x, k, v = block.extend(x, positions, cache.keys[i], cache.values[i])
      keys.append(k)
      values.append(v)
    return self.last_norm(x), table, Cache(tuple(keys), tuple(values))

  def _embed(self, inputs, positions, key):
    c = self.config
    table, places = self.tokens, self.positions
    if key is not None:
      table = dropout(table, c.embedding_dropout, key.fold(c.layers), sharded=False)
      places = dropout(places, c.embedding_dropout, key.fold(c.layers + 1), sharded=False)
    # Whole along `data`, or the gradients of every row's embeddings would be gathered to sum them
    # up (FSDP).
    table, places = constrain(table.astype(c.dtype), "model"), constrain(places.astype(c.dtype))
    return constrain(table[inputs] + places[positions], "data"), table


class Block(nn.Module):
  """GPT-1: n = LN(x + Attention(x)), LN(n + MLP(n)) (train.py:143-147); GPT-2: x +
  Attention(LN(x)), then MLP.
  """

  config: TransformerConfig
  causal: bool

  def setup(self):
    self.attention = Attention(self.config, self.causal)
    self.attention_norm = LayerNorm(self.config.dtype)
    self.mlp = MLP(self.config)
    self.mlp_norm = LayerNorm(self.config.dtype)

  def __call__(self, x, segments, key):
    rate = self.config.residual_dropout
    keys = [key and key.fold(i) for i in range(3)]
    if self.config.norm == "pre":
      x = x + dropout(self.attention(self.attention_norm(x), segments, keys[0]), rate, keys[1])
      x = x + dropout(self.mlp(self.mlp_norm(x)), rate, keys[2])
    else:
      x = self.attention_norm(x + dropout(self.attention(x, segments, keys[0]), rate, keys[1]))
      x = self.mlp_norm(x + dropout(self.mlp(x), rate, keys[2]))
    return constrain(x, "data")

  def extend(self, x, positions, keys, values):
    if self.config.norm == "pre":
      update, keys, values = self.attention.extend(self.attention_norm(x), positions, keys, values)
      x = x + update
      return x + self.mlp(self.mlp_norm(x)), keys, values
    update, keys, values = self.attention.extend(x, positions, keys, values)
    x = self.attention_norm(x + update)
    return self.mlp_norm(x + self.mlp(x)), keys, values


class Attention(nn.Module):
  """Multi-head attention with one projection for queries, keys and values, in that order
  (train.py:64-130).
  """

  config: TransformerConfig
  causal: bool

  def setup(self):
    d, h = self.config.width, self.config.heads
    self.qkv = Projection((d,), (3, h, d // h), self.config.dtype)
    self.out = Projection((h, d // h), (d,), self.config.dtype, self.config.residual_scale)

  def __call__(self, x, segments, key):
    q, k, v = self._project(x)
    length = x.shape[1]
    # Causal attention by blocks of queries, each over its own prefix, skips most of the masked half
    # of the scores.
    blocks = 4 if self.causal and length % 4 == 0 and length >= 128 else 1
    outputs = []
    for i in range(blocks):
      here = slice(i * length // blocks, (i + 1) * length // blocks)
      seen = slice(0, here.stop)
      allowed = None
      if self.causal:
        allowed = np.arange(here.start, here.stop)[:, None] >= np.arange(seen.stop)[None, :]
        allowed = jnp.asarray(allowed)[None, None]  # [1, 1, t, s]
      if segments is not None:
        same = (segments[:, here, None] == segments[:, None, seen])[:, None]  # [B, 1, t, s]
        allowed = same if allowed is None else allowed & same
      outputs.append(
        self._attend(q[:, :, here], k[:, :, seen], v[:, :, seen], allowed, key and key.fold(i))
      )
    return self.out(jnp.concatenate(outputs, axis=2).swapaxes(1, 2))

  def extend(self, x, positions, keys, values):
    q, k, v = self._project(x)
    row = jnp.arange(x.shape[0])[:, None]
    keys = keys.at[row, :, positions].set(k.swapaxes(1, 2))
    values = values.at[row, :, positions].set(v.swapaxes(1, 2))
    allowed = (
      positions[:, None, :, None] >= jnp.arange(keys.shape[2])[None, None, None]
    )  # [B, 1, T, context]
    return self.out(self._attend(q, keys, values, allowed, None).swapaxes(1, 2)), keys, values

  def _project(self, x):
    qkv = self.qkv(x)  # [B, T, 3, H, K]
    qkv = constrain(qkv, "data", None, None, "model")
    return jnp.moveaxis(qkv, (2, 3), (0, 2))  # three of [B, H, T, K]

  def _attend(self, q, k, v, allowed, key):
    scores = (
      jnp.einsum("bhtk,bhsk->bhts", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    )
    if allowed is not None:
      scores = jnp.where(allowed, scores, -1e9)
    probabilities = jax.nn.softmax(scores)
    self.sow(
      "intermediates", "probabilities", probabilities
    )  # nothing, unless apply is told to: attention_maps
    probabilities = dropout(probabilities, self.config.attention_dropout, key)
    return jnp.einsum("bhts,bhsk->bhtk", probabilities.astype(q.dtype), v)


class MLP(nn.Module):
  """D -> 4 D -> GELU, in its tanh form -> D (train.py:22,132-138)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    d, dtype = self.config.width, self.config.dtype
    x = jax.nn.gelu(Projection((d,), (4 * d,), dtype, name="in")(x), approximate=True)
    return Projection((4 * d,), (d,), dtype, self.config.residual_scale, name="out")(x)
