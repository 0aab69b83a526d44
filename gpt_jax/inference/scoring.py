"""How likely a text is: the log-probability of each token, and padded lengths that compile once."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.errors import InputError
from gpt_jax.models.layers import text_vectors
from gpt_jax.models.model import Model
from gpt_jax.models.trunk import States
from gpt_jax.ops.cross_entropy import logits, token_log_probs

_MIN_LENGTH = 16


def bucket(length: int, limit: int) -> int:
  """The padded length for texts of at most `length` tokens: a power of two from 16, up to limit.

  So few shapes need compiling.
  """
  return min(limit, max(_MIN_LENGTH, 1 << max(0, length - 1).bit_length()))


def padded(texts: Sequence[Any], shape: tuple[int, int], fill: int = 0) -> np.ndarray:
  """Ids int32 [B, T] with a text at the beginning of each row, and blank rows at the end."""
  # Padding is id 0, as in OpenAI's code: a causal model does not look ahead at it.
  ids = np.full(shape, fill, np.int32)
  for row, text in zip(ids, texts, strict=False):
    row[: len(text)] = text
  return ids


def check_length(ids: Any, name: str, room: int, context: int) -> None:
  """Raises InputError for a text without a token, or with more than there is room for."""
  if not len(ids):
    raise InputError(f"{name}: empty; give at least one word")
  if len(ids) > room:
    raise InputError(
      f"{name}: {len(ids)} tokens, and the model's context is {context}; give a part of it"
    )


def text_states(
  model: Model, params: Any, ids: jax.Array, segments: jax.Array | None = None
) -> States:
  """The states of whole texts, ids int32 [B, T].

  Padding at the end changes nothing before it in a causal model; any other needs segments [B, T].
  """
  # [B, T]
  positions = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
  states = model.apply({"params": params}, Rows(ids, positions, segments), method="states")
  return cast(States, states)


def text_log_probs(model: Model, params: Any, ids: Any) -> jax.Array:
  """log P of every token but the first given those before it: [B, T] -> float32 [B, T - 1]."""
  return token_scores(model, params, ids, ids[:, 1:])[0]


@functools.partial(jax.jit, static_argnames="model")
def token_scores(
  model: Model, params: Any, ids: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """log P of the token after each position, float32 [B, M], and whether it is the likeliest, bool
  [B, M]: of ids int32 [B, T], and targets int32 [B, M] after the first M positions.
  """
  hidden, table, *_ = text_states(model, params, ids)

  def of_row(row):  # so that the logits of one text at a time are in memory
    hidden, targets = row
    scores = logits(hidden[: len(targets)], table, model.num_tokens)
    return token_log_probs(scores, targets), scores.argmax(-1) == targets

  return jax.lax.map(of_row, (hidden, targets))


class Scorer:
  """log P of the tokens of texts, each given those before it; MaskedLM has the same `score`."""

  def __init__(self, loaded: LoadedModel, rows: int):
    """rows: texts at a time."""
    self.model, self._rows = loaded.language_model(), rows
    self.params = {"trunk": jax.device_put(loaded.params["trunk"])}
    self._context: int = loaded.spec.trunk.context
    self.room = self._context + 1  # most tokens of a text; the last one is not read

  def score(
    self, texts: Sequence[np.ndarray], *, first: Sequence[int]
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """log P of each token, in nats, and whether it is the likeliest: float32 and bool [t - first].

    texts: ids [t] of at most `rows`. first: of each the first token that is scored, at least 1.
    """
    # A smaller batch is padded, so that few shapes need compiling.
    shape = self._rows, bucket(max(map(len, texts)) - 1, self._context)
    ids = padded([text[:-1] for text in texts], shape)
    targets = padded([text[1:] for text in texts], shape)
    log_probs, best = jax.device_get(token_scores(self.model, self.params, ids, targets))
    scored = []
    for row, (text, begin) in enumerate(zip(texts, first, strict=True)):
      inside = slice(begin - 1, len(text) - 1)
      scored.append((log_probs[row, inside], best[row, inside]))
    return scored


@functools.partial(jax.jit, static_argnames=("model", "pooling"))
def embeddings(
  model: Model, params: Any, ids: jax.Array, lengths: jax.Array, pooling: str = "mean"
) -> jax.Array:
  """A vector of each text: [B, T] and lengths [B] -> float32 [B, D].

  pooling: see text_vectors; or max, of each feature.
  """
  inside = jnp.arange(ids.shape[1])[None] < lengths[:, None]
  states = text_states(model, params, ids, inside.astype(jnp.int32))
  if pooling == "max":
    hidden = states.hidden.astype(jnp.float32)
    return jnp.where(inside[..., None], hidden, -jnp.inf).max(axis=1)
  return text_vectors(states.hidden, inside, pooling)
