"""A trunk: rows of token ids to hidden states and the table that turns them into logits.

Letters: B rows, T positions, D width, R rows of the embedding table, E their width.
"""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from gpt_jax.batch import Rows
from gpt_jax.config import Config, option
from gpt_jax.data.tokenizers.base import DEFAULT_SPECIAL, Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.ops.dropout import Key
from gpt_jax.ops.product import PROJECTED, without_bfloat16

EPSILON = 1e-5  # of the norms of GPT
TABLES = ("tokens", "targets", "output")  # parameters that have a row for each id
BASE = "base"  # name of the subtree of frozen parameters
# Of activations and matrix products; auto: float32 or bfloat16, whichever a run finds to be faster.
DTYPES = ("float32", "bfloat16", "float16", "auto")
# What rematerialization keeps besides a block's inputs. none: all that the backward pass reads;
# dots: the results of matrix products with parameters; full: nothing, one more forward pass.
_KEPT = {
  "dots": jax.checkpoint_policies.save_only_these_names(PROJECTED),
  "full": jax.checkpoint_policies.nothing_saveable,
}
POLICIES = ("none", *_KEPT)  # from most memory to least
_ROW_MULTIPLE = 128  # lets a table of any vocabulary be sharded, and fills a matrix unit's tiles


def rate_option(default: float, help: str) -> Any:
  """A field for a rate of dropout."""
  return option(default, help, low=0.0, high=0.99, runtime=True)


class Pooler(NamedTuple):
  """BERT's map of the first token's hidden state, which heads that read a whole text apply.

  It is part of the trunk, so that fine-tuning begins with what pre-training made of it.
  """

  kernel: jax.Array  # float32 [D, D]
  bias: jax.Array  # float32 [D]

  def __call__(self, hidden: jax.Array) -> jax.Array:
    """tanh of the map, float32, of hidden states float32 [..., D]."""
    return jnp.tanh(hidden @ self.kernel + self.bias.reshape((1,) * (hidden.ndim - 1) + (-1,)))


class Style(NamedTuple):
  """Settings that all layers of a model share, besides their sizes."""

  dtype: str  # type of activations and matrix products
  init: str = "normal"  # initializer of the kernels, one of layers.INITS
  activation: str = "gelu"  # one of layers.ACTIVATIONS
  epsilon: float = EPSILON  # added to the variance in a norm


class States(NamedTuple):
  """The outputs of a trunk."""

  hidden: jax.Array  # [B, T, D], in the compute dtype
  # float32 [R, E], the output embedding, multiplied in the compute dtype. E is D but for factorized
  # embeddings (ALBERT) and for two directions. [R, E + 1]: the last column is a bias.
  table: jax.Array
  pooler: Pooler | None = None  # of a trunk that has one
  # On request, the states of every layer, [B, T, D] each: the embedded tokens, then the output of
  # each block, of which the last is `hidden`, before a dropout that only that one has
  layers: tuple[jax.Array, ...] | None = None
  attended: Any = None  # top states [B, T, D] and Memory of an LSTM decoder, with `layers`


def given_source(source: Rows | None) -> Rows:
  """The source, without which an encoder-decoder writes nothing."""
  if source is None:
    raise InputError(
      "trunk: an encoder-decoder reads a source and writes a target; these inputs have no source"
    )
  return source


class Trunk(Protocol):
  """A trunk's flax module. Its parameters are the subtree `trunk` of every model."""

  def __call__(self, rows: Rows, key: Key | None = None, layers: bool = False) -> States:
    """`key`: dropout key; None evaluates. `layers`: whether States.layers is wanted.

    An encoder-decoder has another argument, `source`: the encoder's Rows, from Batch.source. Its
    layers are the decoder's; for the encoder's see LoadedModel.encoder_alone.
    """

  def start(self, batch_size: int, length: int | None = None) -> Any:
    """The state of generation before the first token; only trunks that generate have it.

    A pytree of arrays [B n, ...], n of them a row, with room for `length` tokens; None: for the
    context. An encoder-decoder has a third argument, `source_length`: the same for its source.
    """

  def read_prompt(self, inputs: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    """Reads the first T tokens of each row in one pass, evaluating.

    Args and results are those of `extend`. The state has room for T tokens; written to the
    beginning of the arrays of a state with more room it is that one. An encoder-decoder has a third
    argument, `source`: Rows whose segment 0 is padding.
    """

  def extend(
    self, inputs: jax.Array, positions: jax.Array, valid: jax.Array, state: Any
  ) -> tuple[jax.Array, jax.Array, Any]:
    """Reads T more tokens per row, evaluating.

    Args:
      inputs, positions: int32 [B, T]; the positions of a row continue from where it is.
      valid: bool [B, T]; False past the end of a shorter prompt.

    Returns:
      hidden [B, T, D], table [R, D], and the state with the tokens in it.
    """


@dataclasses.dataclass(frozen=True)
class _Fields(Config):
  """The fields that all trunks have."""

  vocab_size: int = option(
    0, "vocabulary without special tokens; 0: set from the data", unit="tokens", low=0
  )
  context: int = option(512, "longest sequence", unit="tokens", low=2, high=10**6)
  _: dataclasses.KW_ONLY
  dtype: str = option(
    "float32", "type of activations and matrix products", choices=DTYPES, runtime=True
  )
  special_tokens: int = option(
    len(DEFAULT_SPECIAL), "special tokens after the vocabulary, as the tokenizer has", low=0
  )


class TrunkConfig(_Fields):
  """Base of the trunks' configs: frozen dataclasses, registered by name, from which a trunk is
  rebuilt.
  """

  width: int  # D
  layers: int = 1  # number of blocks
  heads: int = 0  # attention heads, H; 0: it has no attention
  TENSOR_PARALLEL: Sequence[tuple[str, PartitionSpec]] = ()  # path rules, see parallel.mesh
  is_gpt: bool = False  # it has the parts of GPT-1 or GPT-2, of any sizes, rates and activation
  reads_source: bool = False  # it reads Batch.source: an encoder-decoder
  reads_backward: bool = False  # a text's first state is the one that has read it all

  @property
  def gives(self) -> frozenset[str]:
    """Keys of what others can read of it; a head that reads another key refuses it.

    hidden, layers: see States. pooler: a Pooler. attended: see States. blocks: those of a
    TransformerConfig. types: it tells the texts of a pair apart by Rows.types. directions: the
    states of each layer are [forward; backward]. forward, backward: hidden has states that have
    read one side of their text only, so that they can predict. sources: its encoder reads texts
    that end with the special token sep.
    """
    return frozenset({"hidden", "layers"})

  @property
  def style(self) -> Style:
    """Settings of layers that continue it: BERT's where it has none of its own."""
    return Style(self.dtype)

  @property
  def default_attention(self) -> str:
    """What a position attends to where no checkpoint says it, see ModelConfig."""
    return "causal"

  @property
  def rows(self) -> int:
    """R, the rows of the tables: vocabulary, special tokens, padding to a multiple."""
    return -(-(self.vocab_size + self.special_tokens) // _ROW_MULTIPLE) * _ROW_MULTIPLE

  @property
  def writing_attention(self) -> str:
    """The attention for writing a text for another: a prefix sees itself both ways (T5, 3.2.1)."""
    return self.default_attention if self.reads_source else "prefix"

  @property
  def format(self) -> dict[str, str]:
    """The Format of labeled examples, as a JSON config, where no checkpoint names one."""
    return {"type": "text_to_text" if self.reads_source else "gpt_format"}

  @property
  def layer_widths(self) -> list[int]:
    """The widths of States.layers, the embeddings' first."""
    return [self.width] * (self.layers + 1)

  @property
  def table_width(self) -> int:
    """E, the width of the embedding table."""
    return self.width

  def with_pieces(self, tokenizer: Tokenizer) -> Any:
    """The config with what else it knows of a vocabulary besides its size."""
    return self

  def build(self, attention: str = "causal", remat: str = "none") -> Any:
    """The Trunk. Raises InputError where it has no such attention or rematerialization."""
    raise NotImplementedError

  def parameter_count(self) -> int:
    """Parameters without the padding rows of the table."""
    raise NotImplementedError

  def flops_per_token(self, length: int) -> float:
    """Floating-point operations of a training step per token, in sequences of that length."""
    raise NotImplementedError

  def depth(self, path: str) -> int:
    """The layer of a parameter of the trunk: 0 for embeddings, i + 1 for block i.

    What is transferred to a fine-tuned model, and layer-wise learning rates, go by it.
    """
    raise NotImplementedError

  def check_attention(self, attention: str, setting: str) -> None:
    """Raises InputError for an attention other than that of a trunk which has one kind only."""
    if attention != self.default_attention:
      raise InputError(
        f"{setting}: has {self.default_attention} attention; {attention} needs another trunk"
      )

  def with_vocabulary(self, tokenizer: Tokenizer) -> Any:
    """This config with the tokenizer's vocabulary; a vocab_size of its own must be the same."""
    vocab_size, special_tokens = tokenizer.vocab_size, tokenizer.special.count
    if self.vocab_size not in (0, vocab_size):
      raise InputError(
        f"trunk.vocab_size={self.vocab_size}: the tokenizer has {vocab_size}; leave the field at 0"
      )
    sized = dataclasses.replace(self, vocab_size=vocab_size, special_tokens=special_tokens)
    return sized.with_pieces(tokenizer)


class SourceTrunkConfig(TrunkConfig):
  """Base of encoder-decoders; without a decoder, the encoder is a bidirectional trunk."""

  decoder: bool

  @property
  def reads_source(self) -> bool:  # type: ignore[override]
    return self.decoder

  @property
  def default_attention(self) -> str:
    return "causal" if self.decoder else "bidirectional"


def for_devices(trunk: Any) -> Any:
  """The trunk's config, with float32 in place of bfloat16 where a GPU lacks it, and a warning.

  Parameters and checkpoints are the same. float16 is left to the user: it needs a loss scale, which
  is part of a run's state.
  """
  if trunk.dtype != "bfloat16":
    return trunk
  if gpu := without_bfloat16():
    _warn_of_dtype(gpu)
    return dataclasses.replace(trunk, dtype="float32")
  return trunk


@functools.cache  # once, since every program of a run asks
def _warn_of_dtype(gpu: str) -> None:
  warnings.warn(
    f"trunk.dtype=bfloat16: {gpu}; computing in float32. trunk.dtype=float16 is faster there",
    stacklevel=2,
  )


def rematerialized(block: type[nn.Module], remat: str) -> type[nn.Module]:
  """The module with the policy `remat`, one of POLICIES; values and gradients stay the same.

  Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost.
  """
  if remat == "none":
    return block
  return nn.remat(block, policy=_KEPT[remat])
