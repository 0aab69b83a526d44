"""Tokens read as characters: a convolution over their bytes, then highways (ELMo, Peters et al.
2018, section 3.4; allenai/bilm-tf, data.py and training.py).

Letters: B rows, T positions, L places of a piece, C width of a character, W largest filter width,
F filters of all widths together, E width of the result, R rows of the vocabulary's tables.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.config import Config, option, register
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.models.layers import Projection, uniform
from gpt_jax.ops.lookup import lookup
from gpt_jax.ops.product import project

# 0 to 255 are bytes. bilm-tf's marks are the ends of a sentence, here those of a special token's
# name, and the ends of a word, here of a piece.
BEGIN_SPECIAL, END_SPECIAL, BEGIN, END, PAD = range(256, 261)
CHARACTERS = 261


@register("characters")
@dataclasses.dataclass(frozen=True)
class CharacterConfig(Config):
  """Sizes of the convolution; the defaults are ELMo's."""

  width: int = option(16, "size of a character's embedding, C", low=1, high=10**4)
  filters: tuple[int, ...] = option(
    (32, 32, 64, 128, 256, 512, 1024), "filters of 1, 2, 3, … characters", low=0
  )
  places: int = option(50, "characters of a piece with its two marks; it is cut there", low=3)
  highways: int = option(2, "highway layers", low=0, high=100)
  pieces: tuple[str, ...] = option(
    (), "spelling of each id, set from the data; empty: not yet", listed=False
  )

  def __post_init__(self):
    super().__post_init__()
    if not any(self.filters):
      raise InputError("characters.filters: there is none; give at least one width a filter")

  def with_pieces(self, tokenizer: Tokenizer) -> "CharacterConfig":
    """The config with the pieces of a vocabulary and the names of its special tokens."""
    ids = range(tokenizer.vocab_size + tokenizer.special.count)
    return dataclasses.replace(self, pieces=tuple(map(tokenizer.spelling, ids)))

  def parameter_count(self, outputs: int) -> int:
    """Parameters, with a projection to so many features."""
    return CHARACTERS * self.width + self._per_place() + self._after(outputs)

  def products(self, outputs: int) -> int:
    """Multiplications per token."""
    return self.places * self._per_place() + self._after(outputs)

  def _per_place(self) -> int:
    return sum(n * (w * self.width + 1) for w, n in enumerate(self.filters, start=1))

  def _after(self, outputs: int) -> int:
    features = sum(self.filters)
    return 2 * self.highways * features * (features + 1) + features * outputs + outputs


@functools.lru_cache(8)
def character_table(config: CharacterConfig, vocab_size: int, rows: int) -> np.ndarray:
  """The characters of each id, uint16 [R, L]; PAD alone for rows without a piece.

  Without pieces, as in plans of runs whose text is not there yet, every row is PAD.
  """
  table = np.full((rows, config.places), PAD, np.uint16)
  for i, piece in enumerate(config.pieces):
    marks = (BEGIN, END) if i < vocab_size else (BEGIN_SPECIAL, END_SPECIAL)
    # A lone surrogate, which UTF-8 cannot encode, becomes "?".
    characters = piece.encode(errors="replace")[: config.places - 2]
    table[i, : len(characters) + 2] = [marks[0], *characters, marks[1]]
  return table


class Characters(nn.Module):
  """The embedding of each token by the characters of its piece."""

  config: CharacterConfig
  vocab_size: int  # of the trunk; ids from here on are special tokens
  rows: int  # of the trunk's tables
  outputs: int  # E
  dtype: str

  @nn.compact
  def __call__(self, ids: jax.Array) -> jax.Array:
    """ids int [B, T] to embeddings [B, T, E]."""
    c, widest, features = self.config, len(self.config.filters), sum(self.config.filters)
    embedding = self.param("embedding", uniform(1.0), (CHARACTERS, c.width))
    table = jnp.asarray(character_table(c, self.vocab_size, self.rows))
    x = lookup(embedding, table[ids].astype(jnp.int32), self.dtype)  # [B, T, L, C]
    # The W characters from each place on; those past the end meet no filter that counts.
    padded = jnp.pad(x, [(0, 0), (0, 0), (0, widest - 1), (0, 0)])
    windows = [padded[:, :, shift : shift + c.places] for shift in range(widest)]
    # All widths as one product: a narrow filter is 0 on the characters after its own.
    kernels, biases = [], []
    for width, count in enumerate(c.filters, start=1):
      if not count:
        continue
      kernel, bias = Filters((width, c.width, count), name=f"width_{width}")()
      kernels.append(jnp.pad(kernel, [(0, widest - width), (0, 0), (0, 0)]))
      biases.append(bias)
    kernel = jnp.concatenate(kernels, -1).reshape(-1, features).astype(self.dtype)
    y = project(jnp.concatenate(windows, -1), kernel, 1)
    y = nn.relu(y + jnp.concatenate(biases).reshape(1, 1, 1, -1).astype(y.dtype))
    # A filter has no place where it would reach past the end; after ReLU, 0 does not change a
    # maximum.
    widths = np.repeat(np.arange(1, widest + 1), c.filters)
    inside = np.arange(c.places)[:, None] + widths <= c.places  # [L, F]
    y = jnp.where(jnp.asarray(inside)[None, None], y, 0).max(2)  # [B, T, F]
    init = nn.initializers.normal(features**-0.5)
    for number in range(c.highways):
      y = Highway(features, self.dtype, name=f"highway_{number}")(y)
    return Projection((features,), (self.outputs,), self.dtype, kernel_init=init, name="project")(y)


class Filters(nn.Module):
  """The parameters of the filters of one width, [width, C, count] and [count]."""

  shape: tuple[int, int, int]

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    kernel = self.param("kernel", uniform(0.05), self.shape)
    return kernel, self.param("bias", nn.initializers.zeros, self.shape[2:])


class Highway(nn.Module):
  """g relu(W x + b) + (1 - g) x, with g = sigmoid(V x + c - 2): it starts by carrying x on.

  bilm-tf has -2 as the initial c.
  """

  width: int
  dtype: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    size, init = (self.width,), nn.initializers.normal(self.width**-0.5)
    made = nn.relu(Projection(size, size, self.dtype, kernel_init=init, name="make")(x))
    gate = nn.sigmoid(Projection(size, size, self.dtype, kernel_init=init, name="gate")(x) - 2)
    return gate * made + (1 - gate) * x
