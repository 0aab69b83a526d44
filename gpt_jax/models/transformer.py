"""The Transformer of GPT-1, GPT-2, BERT, RoBERTa and ALBERT, which are settings of its fields.

Radford et al. 2018, section 4.1; where the paper is silent, OpenAI's released train.py
(finetune-transformer-lm). Pre-norm: Radford et al. 2019, section 2.3. BERT: Devlin et al. 2018,
section 3; RoBERTa: Liu et al. 2019; ALBERT: Lan et al. 2019, section 3.1. All have one table for
input and output.

Letters: B rows, T positions, D width, H heads, K = D / H, F = 4 D, R rows of the padded vocabulary,
E width of an embedding.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gpt_jax.batch import Rows
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.layers import (
  ACTIVATIONS,
  EPSILON,
  INITS,
  LayerNorm,
  Projection,
  initializer,
  weight,
)
from gpt_jax.models.trunk import Pooler, States, Style, TrunkConfig, rate_option, rematerialized
from gpt_jax.ops.attention import AttentionMask, Dropout, attention, find_backend, write_cache
from gpt_jax.ops.dropout import Key, dropout, dropout_rows
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import activation_type, product
from gpt_jax.parallel.mesh import axis_size, constrain

# The values of GPT-1's and GPT-2's parts.
_GPT: dict[str, Any] = {
  "learned_positions": True,
  "attention_bias": None,
  "token_types": 0,
  "embedding_norm": False,
  "embedding_dropout_on": "table",
  "shared_layers": False,
  "pooler": False,
  "norm_epsilon": EPSILON,
}


@register("transformer")
@dataclasses.dataclass(frozen=True)
class TransformerConfig(TrunkConfig):
  """Sizes, rates and parts of the trunk; the defaults are GPT-1's."""

  layers: int = option(12, "blocks", low=1, high=1000)
  width: int = option(768, "size of a hidden state, D", low=1, high=10**6)
  heads: int = option(12, "attention heads, H", low=1, high=10**4)
  residual_dropout: float = rate_option(0.1, "dropout on what each sublayer adds")
  attention_dropout: float = rate_option(0.1, "dropout on attention probabilities")
  embedding_dropout: float = rate_option(0.1, "dropout on the embeddings")
  norm: str = option(
    "post",
    "post: normalize the sum after each sublayer, as GPT-1; pre: normalize the input of each "
    "sublayer, with a final norm, as GPT-2",
    choices=("post", "pre"),
  )
  learned_positions: bool = option(True, "add a learned embedding of each position")
  attention_bias: Any | None = option(
    None, "config of a bias added to the attention scores, e.g. ALiBi"
  )
  attention_backend: str = option(
    "auto",
    "plain, or a kernel for TPU or GPU: fused, mosaic (gpt_jax/ops/attention_<name>.py); "
    "auto: mosaic on Hopper GPUs in 16 bits, else plain",
    resumable=True,
    runtime=True,
  )
  token_types: int = option(
    0, "token types, each with an embedding (BERT: 2, its first and second text)", low=0, high=1000
  )
  embedding_norm: bool = option(False, "normalize the sum of the embeddings, as BERT")
  embedding_dropout_on: str = option(
    "table",
    "table: a token loses the same features wherever it occurs, and in the output, as GPT; sum: "
    "dropout on the sum of the embeddings, as BERT",
    choices=("table", "sum"),
  )
  embedding_width: int = option(
    0,
    "size of an embedding, E, with a dense layer from E to D (ALBERT: 128); 0: D, and no layer",
    low=0,
    high=10**6,
  )
  shared_layers: bool = option(False, "one block, applied `layers` times, as ALBERT")
  pooler: bool = option(
    False, "a dense layer with tanh on the first token, for heads that classify texts, as BERT"
  )
  activation: str = option(
    "gelu_tanh",
    "gelu_tanh: GELU's tanh form, as GPT and ALBERT; gelu: by erf, as BERT and RoBERTa; relu; silu",
    choices=tuple(ACTIVATIONS),
  )
  norm_epsilon: float = option(
    EPSILON, "added to the variance in a norm (BERT, ALBERT: 1e-12)", low=1e-20, high=0.1
  )
  init: str = option(
    "normal",
    "first kernels and tables: normal, of deviation 0.02; truncated: cut at twice that, as BERT",
    choices=INITS,
  )

  def __post_init__(self):
    super().__post_init__()
    if self.width % self.heads:
      raise InputError(f"trunk.heads={self.heads}: must divide trunk.width={self.width}")
    if self.attention_backend == "flash":  # of older checkpoints; all backends are equal in value
      object.__setattr__(self, "attention_backend", "auto")
    find_backend(self.attention_backend)  # raises at an unknown name

  # As in Megatron-LM: the first matrix of a sublayer is split by heads or hidden units, the second
  # one the same way along its input, so each sublayer needs one all-reduce (Shoeybi et al. 2019,
  # section 3).
  TENSOR_PARALLEL = (
    (r"tokens$", P("model", None)),
    (r"qkv/kernel$", P(None, None, "model", None)),
    (r"qkv/bias$", P(None, "model", None)),
    (r"attention/out/kernel$", P("model", None, None)),
    (r"mlp/in/kernel$", P(None, "model")),
    (r"mlp/in/bias$", P("model")),
    (r"mlp/out/kernel$", P("model", None)),
  )

  @property
  def gives(self) -> frozenset[str]:
    given = {"blocks": True, "pooler": self.pooler, "types": self.token_types > 0}
    return super().gives | {key for key, is_given in given.items() if is_given}

  @property
  def style(self) -> Style:
    return Style(self.dtype, self.init, self.activation, self.norm_epsilon)

  @property
  def table_width(self) -> int:
    return self.embedding_width or self.width

  @property
  def is_gpt(self) -> bool:  # type: ignore[override]
    # All parts are GPT's if setting them so changes nothing. Sizes, rates and the activation are
    # not in _GPT: who needs GELU asks for it.
    return dataclasses.replace(self, **_GPT) == self and self.table_width == self.width

  @property
  def residual_scale(self) -> float:
    """Factor on the initial std of projections into the residual stream (GPT-2, section 2.3)."""
    return (2 * self.layers) ** -0.5 if self.norm == "pre" else 1.0

  def build(self, attention: str = "causal", remat: str = "none") -> "Transformer":
    return Transformer(self, attention, remat)

  def parameter_count(self) -> int:
    """Parameters, padding rows excluded: 116,534,784 at the paper's sizes and 40,478 ids."""
    pooler = self.width**2 + self.width if self.pooler else 0
    return self._parameters(self.blocks) + pooler

  def flops_per_token(self, length: int) -> float:
    """6 N + 12 L T D per token of a training step, without discounting the causal mask.

    A shared block counts as often as it is applied, the pooler, which reads one token, not at all.
    """
    # A parameter in a product takes 2 operations a token forward and 4 backward. In each layer
    # scores and weighted sum of values take 2 T D each forward, and twice that backward.
    return 6 * self._parameters(self.layers) + 12 * self.layers * length * self.width

  def _parameters(self, blocks: int) -> int:
    """Parameters of the embeddings, of `blocks` blocks and of the last norm."""
    # A block's matrices: 4 D^2 in attention (q, k, v, out) and 8 D^2 in the MLP. Its vectors:
    # biases of (3 + 1 + 4 + 1) D, and 2 D in each of two norms.
    d, e = self.width, self.table_width
    rows = self.vocab_size + self.token_types + (self.context if self.learned_positions else 0)
    embeddings = rows * e + (2 * e if self.embedding_norm else 0) + (e * d + d if e != d else 0)
    last_norm = 2 * d if self.norm == "pre" else 0
    return embeddings + blocks * (12 * d**2 + 13 * d) + last_norm

  @property
  def blocks(self) -> int:
    """Blocks with parameters of their own."""
    return 1 if self.shared_layers else self.layers

  def depth(self, path: str) -> int:
    """0 for embeddings, i + 1 for block i; the final norm and the pooler are the last block's."""
    part = path.partition("/")[0]
    if part.startswith("block_"):
      return int(part.removeprefix("block_")) + 1
    return self.blocks if part in ("last_norm", "pooler") else 0


class Cache(NamedTuple):
  """Keys and values of the tokens read so far, one of each per layer: [B H, S, K].

  S, the slots, is at most the context; the token at position p of a row is in slot p.
  """

  keys: tuple[jax.Array, ...]
  values: tuple[jax.Array, ...]


class Transformer(nn.Module):
  """A stack of blocks over token and position embeddings; a Trunk."""

  config: TransformerConfig
  attention: str = "causal"
  remat: str = "none"

  def setup(self):
    c, e = self.config, self.config.table_width
    init = initializer(c.init)
    self.tokens = weight(self, "tokens", init, (c.rows, e))
    if c.learned_positions:
      self.positions = self.param("positions", init, (c.context, e))
    if c.token_types:
      self.types = self.param("types", init, (c.token_types, e))
    if c.embedding_norm:
      self.embedding_norm = LayerNorm(c.dtype, c.norm_epsilon)
    if e != c.width:
      self.embedding_map = Projection((e,), (c.width,), c.dtype, kernel_init=c.init)
    if c.attention_bias is not None:
      self.bias = c.attention_bias.build(c.heads)
    block = rematerialized(Block, self.remat)
    self.blocks = [block(c, name=f"block_{i}") for i in range(c.blocks)]
    # Pre-norm blocks add to a stream that nothing normalizes, hence the final norm (GPT-2, 2.3).
    self.last_norm = LayerNorm(c.dtype, c.norm_epsilon) if c.norm == "pre" else lambda x: x
    if c.pooler:
      self.pooler = PoolerParameters(c)

  def __call__(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """Hidden states [B, T, D] and the table [R, E].

    As in OpenAI's code dropout acts on the whole table, so a token loses the same features wherever
    it occurs, and in the output as well (openai/train.py:165,175); but for embedding_dropout_on.
    """
    kind = self.attention
    if kind == "prefix" and rows.prefix is None:
      kind = "bidirectional"  # texts without a continuation, to embed or to classify
    # Segments keep the texts of a packed row apart. OpenAI's code, with one text a row, has no mask
    # for padding: it is on the right, where causal attention does not look.
    mask = AttentionMask(kind, rows.segments, rows.prefix)
    bias = self._bias(rows.positions, rows.positions)  # of rows that may hold several texts
    x, table = self._embed(rows.inputs, rows.positions, key, rows.types)  # [B, T, D], [R, E]
    x = self.perturb("0_embedding", x, "hidden")  # its gradient is diagnosed
    # h_l = transformer_block(h_{l-1}) (eq. 2). Blocks fold 0 … L - 1 into the dropout key, the
    # embeddings L and L + 1.
    states = [x]
    for i, block in enumerate(self._stack()):
      x, _ = block(x, mask, bias, key and key.fold(i))  # [B, T, D] to [B, T, D]
      x = self.perturb(f"{i + 1}_block", x, "hidden")
      states.append(x)
    hidden = states[-1] = self._last(x)  # layers end with what the head reads
    pooler = self.pooler() if self.config.pooler else None
    return States(hidden, table, pooler, tuple(states) if layers else None)

  def start(self, batch_size: int, length: int | None = None) -> Cache:
    c = self.config
    shape = (batch_size * c.heads, length or c.context, c.width // c.heads)
    # One a layer, not one a block: a shared block has other keys in each layer.
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
    each = []
    for block in self._stack():
      x, kept = block(x, mask, bias)
      # [B, H, T, K] -> [B H, T, K], the layout of the cache.
      each.append([y.reshape(-1, *y.shape[2:]).astype(self.config.dtype) for y in kept])
    return self._last(x), table, Cache(*zip(*each, strict=True))

  def extend(self, inputs, positions, valid, cache: Cache):
    """Reads T more tokens per row, evaluating; see trunk.Trunk.

    `valid` is ignored: an invalid position writes a cache slot that is overwritten before any later
    token attends to it.
    """
    x, table = self._embed(inputs, positions, None)
    key_positions = jnp.arange(cache.keys[0].shape[1])[None]
    bias = self._bias(positions, jnp.broadcast_to(key_positions, (len(inputs), key_positions.size)))
    # The token at position p is in slot p, so this is the causal mask. It also hides what lies in
    # later slots, such as the padding of shorter prompts.
    allowed = positions[:, None, :, None] >= key_positions[:, None, None]
    each = []
    for block, *kept in zip(self._stack(), *cache, strict=True):
      x, kept = block(x, allowed, bias, None, (positions, *kept))
      each.append(kept)
    return self._last(x), table, Cache(*zip(*each, strict=True))

  def _last(self, x):
    """The last hidden states, in the compute type, for the product with the table."""
    return self.last_norm(x).astype(self.config.dtype)

  def _stack(self) -> list[Any]:
    """The L blocks in their order; a shared one occurs L times."""
    return self.blocks * self.config.layers if self.config.shared_layers else self.blocks

  def _bias(self, query_positions, key_positions):
    """float32 [B or 1, H, T, S] to add to the attention scores; None: nothing."""
    if self.config.attention_bias is None:
      return None
    return self.bias(query_positions, key_positions)

  @jax.named_scope("embedding")
  def _embed(self, inputs, positions, key, types=None):
    """[B, T, D] and the table [R, E]."""
    c = self.config
    # h_0 = U W_e + W_p (eq. 2). A table has one dropout mask for the whole batch: sharded=False.
    table = self.tokens
    key_of_tables = key if c.embedding_dropout_on == "table" else None
    if key_of_tables is not None:
      table = dropout(table, c.embedding_dropout, key.fold(c.layers), sharded=False)
    # Replicated along `data`: otherwise FSDP would gather the embedding gradients of every row.
    table = constrain(table, "model")
    # Not scaled by sqrt(D), unlike Vaswani et al. 2017.
    dtype = activation_type(c.dtype)
    if key_of_tables is None or axis_size("data") > 1:
      x = lookup(table, inputs, dtype)  # [B, T, E]
    else:
      # Rows take their mask by themselves, so where no head reads the table no other row takes one.
      # With several devices FSDP would gather both tables.
      x = lookup(self.tokens, inputs)
      x = dropout_rows(x, inputs, c.embedding_dropout, key.fold(c.layers)).astype(dtype)
    if c.learned_positions:
      # In OpenAI's code positions are rows of the token table, and among the softmax's outcomes
      # (openai/train.py:149-153,175). A table of their own keeps them out of the logits.
      position_table = self.positions
      if key_of_tables is not None:
        position_key = key.fold(c.layers + 1)
        position_table = dropout(position_table, c.embedding_dropout, position_key, sharded=False)
      x = x + lookup(constrain(position_table), positions, dtype)
    x = self.perturb("embedded", x)  # see loss.perturbed
    if c.token_types:
      types = jnp.zeros_like(inputs) if types is None else types  # a single text is the first
      x = x + lookup(constrain(self.types), types, dtype)
    # BERT's order: sum, norm, dropout. ALBERT does all three at width E and then maps E to D.
    if c.embedding_norm:
      x = self.embedding_norm(x)
    if c.embedding_dropout_on == "sum" and key is not None:
      x = dropout(x, c.embedding_dropout, key.fold(c.layers))
    if c.table_width != c.width:
      x = self.embedding_map(x)
    return constrain(x, "data"), table


class PoolerParameters(nn.Module):
  """The trunk's Pooler alone: heads apply it at the few positions that they read, not at all T."""

  config: TransformerConfig

  @nn.compact
  def __call__(self) -> Pooler:
    c = self.config
    kernel = self.param("kernel", initializer(c.init), (c.width, c.width))
    return Pooler(kernel, self.param("bias", nn.initializers.zeros, (c.width,)))


class Block(nn.Module):
  """GPT-1: n = LN(x + Attention(x)), LN(n + MLP(n)) (openai/train.py:143-147).

  GPT-2: x + Attention(LN(x)), then x + MLP(LN(x)).
  """

  config: TransformerConfig

  def setup(self):
    c = self.config
    self.attention = Attention(c)  # tokens read one another
    self.attention_norm = LayerNorm(c.dtype, c.norm_epsilon)
    self.mlp = MLP(c)  # each token by itself
    self.mlp_norm = LayerNorm(c.dtype, c.norm_epsilon)

  def __call__(self, x, mask, bias, key: Key | None = None, slots: tuple | None = None):
    """x [B, T, D] to the same shape, and the keys and values of Attention.

    Args:
      mask: AttentionMask, or with slots bool [B, 1, T, S].
      slots: in decoding the positions [B, T], and the keys and values [B H, S, K] of the tokens
        before, see Cache; None: x attends to itself.
    """
    rate, pre = self.config.residual_dropout, self.config.norm == "pre"
    # Three masks: of the attention probabilities, and of each sublayer's output. The MLP's hidden
    # units have none (openai/train.py:132-138). `key and …` passes None on, which evaluates.
    attention_key, first_key, second_key = (key and key.fold(i) for i in range(3))
    normed = self.attention_norm(x) if pre else x
    update, kept = self.attention(normed, mask, bias, attention_key, slots)
    # Residual dropout acts on what a sublayer adds, before the sum (section 4.1).
    x = x + dropout(update, rate, first_key)
    if pre:
      x = x + dropout(self.mlp(self.mlp_norm(x)), rate, second_key)
    else:  # post: norm of the sum
      x = self.attention_norm(x)
      x = self.mlp_norm(x + dropout(self.mlp(x), rate, second_key))
    return constrain(x, "data"), kept


class Attention(nn.Module):
  """Multi-head attention; one projection for queries, keys, values (openai/train.py:64-130)."""

  config: TransformerConfig

  def setup(self):
    c, d, h = self.config, self.config.width, self.config.heads
    # q, k and v in this order are one product, as in OpenAI's code. H is an axis of the kernel, so
    # that `model` can split it by heads.
    self.qkv = Projection((d,), (3, h, d // h), c.dtype, kernel_init=c.init, bias_in_product=True)
    self.out = Projection((h, d // h), (d,), c.dtype, c.residual_scale, c.init)

  def __call__(self, x, mask, bias, key: Key | None, slots: tuple | None):
    """As Block; the keys and values are [B, H, T, K], or with slots theirs and the new ones."""
    c, qkv = self.config, constrain(self.qkv(x), "data", None, None, "model")  # [B, T, 3, H, K]
    if slots is not None:
      return self._extend(qkv, mask, bias, *slots)
    observe = None
    if self.is_mutable_collection("intermediates") and not self.is_initializing():
      observe = functools.partial(self.sow, "intermediates", "probabilities")  # see attention_maps
    rates = Dropout(c.attention_dropout, key)  # the backend drops probabilities, as the paper does
    update = attention(qkv, mask, bias, rates, c.attention_backend, observe)  # [B, T, H, K]
    # For read_prompt; nothing else takes them.
    keys, values = (qkv[:, :, plane].swapaxes(1, 2) for plane in (1, 2))
    return self.out(update), (keys, values)

  def _extend(self, qkv, allowed, bias, positions, keys, values):
    # Not ops.attention, whose queries are at the positions of the keys: these are T queries for S
    # slots. First the cache, then the scores: a token attends to itself.
    keys = write_cache(keys, qkv[:, :, 1], positions)
    values = write_cache(values, qkv[:, :, 2], positions)
    batch, length, _, heads, width = qkv.shape
    q = qkv[:, :, 0].swapaxes(1, 2).reshape(-1, length, width).astype(keys.dtype)  # [B H, T, K]
    scores = product("ntk,nsk->nts", q, keys, jnp.float32)
    scores = scores.reshape(batch, heads, length, -1) * width**-0.5  # [B, H, T, S]
    if bias is not None:
      scores = scores + bias
    probabilities = jax.nn.softmax(jnp.where(allowed, scores, -1e9)).astype(q.dtype)
    update = product("nts,nsk->ntk", probabilities.reshape(-1, *scores.shape[2:]), values)
    # [B H, T, K] -> [B, T, H, K]
    update = update.reshape(batch, heads, length, width).swapaxes(1, 2)
    return self.out(update), (keys, values)


class MLP(nn.Module):
  """D -> 4 D, activation, -> D (openai/train.py:22,132-138)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c, d = self.config, self.config.width
    x = Projection((d,), (4 * d,), c.dtype, 1.0, c.init, c.activation, name="in")(x)
    return Projection((4 * d,), (d,), c.dtype, c.residual_scale, c.init, name="out")(x)
