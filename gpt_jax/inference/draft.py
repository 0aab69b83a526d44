"""Speculative decoding: the next tokens are guessed from the text itself, and checked in one pass.

A text that repeats itself, or its source, often goes on as it did where its last tokens occurred
before (prompt lookup, Saxena 2023). The model reads the newest token and the guesses together,
which costs little more than the newest token alone, and a token is chosen after each of them. While
a guess is the token that was chosen in its place, the next choice counts, too (Leviathan et al.
2023). A choice is a function of logits, seed and the token's number, so that texts are what they
are without a draft, sampled ones too.

Letters: B rows, S tokens of a text with room for more, K guesses.
"""

import jax
import jax.numpy as jnp

from gpt_jax.errors import InputError
from gpt_jax.models.model import Model

DRAFTS = ("none", "ngram")
GUESSES = 7  # K; a pass then reads 8 rows
LEAST, MOST = 2, 4  # tokens that an earlier place must share with the end of the text; that count


def check_draft(draft: str, model: Model | None = None) -> None:
  """Raises InputError unless it is one of DRAFTS, and one that the model can check."""
  if draft not in DRAFTS:
    raise InputError(f"draft={draft}: must be one of {', '.join(DRAFTS)}")
  if draft != "none" and model is not None and not model.config.trunk.heads:
    raise InputError(
      f"draft={draft}: needs a trunk with attention; an LSTM cannot take back a token that it read"
    )


def find(texts: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Where texts int32 [B, S], of lengths [B], may go on as they did before.

  Returns:
    int32 [B], the position after the earlier place that shares most tokens with the end of the
    text, at most MOST, and of those the last place. And int32 [B], how many tokens it shares.
  """
  size = texts.shape[1]
  positions = jnp.arange(size)[None]
  equal, shared = positions < lengths[:, None] - 1, jnp.zeros(texts.shape, jnp.int32)
  for back in range(MOST):
    # The tokens `back` before the end and before each position; before the first there is none.
    last = jnp.take_along_axis(texts, jnp.maximum(lengths - 1 - back, 0)[:, None], axis=1)
    before = jnp.pad(texts, ((0, 0), (back, 0)), constant_values=-1)[:, :size]
    equal = equal & (before == last)
    shared = shared + equal
  best = jnp.where(shared > 0, shared * size + positions, 0).max(axis=1)
  return best % size + 1, best // size


def guess(texts: jax.Array, lengths: jax.Array, begins: jax.Array) -> jax.Array:
  """The K tokens that follow position `begins` [B], int32 [B, K]; from the end of the text on they
  begin again.
  """
  steps = jnp.arange(GUESSES)[None] % jnp.maximum(lengths - begins, 1)[:, None]
  return jnp.take_along_axis(texts, begins[:, None] + steps, axis=1)


def count_right(guesses: jax.Array, chosen: jax.Array) -> jax.Array:
  """How many of the guesses [B, K] were chosen [B, K + 1] before the first that was not: [B]."""
  right = guesses == chosen[:, : guesses.shape[1]]
  return jnp.cumprod(right.astype(jnp.int32), axis=1).sum(axis=1)
