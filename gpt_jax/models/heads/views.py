"""Cross-view training (Clark et al. 2018, sections 3 and 4): beside the head that reads all of a
text, heads that see a part of it, which learn from that head on text without labels: of the trunk's
layer 1, as in the released code (tensorflow/models, research/cvt_text), since layer 2 has read
everything. Of a translator (section 3.4), decoders that learn from a teacher's translations.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import represent
from gpt_jax.models.heads.head import Head, Mix, WrappedHead
from gpt_jax.models.layers import Projection
from gpt_jax.models.lstm_encoder_decoder import Reader
from gpt_jax.models.method import Method
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.cross_entropy import cross_entropy
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup, select

VIEWS = ("full", "forward", "backward", "future", "past")
_INIT = nn.initializers.glorot_uniform()  # TensorFlow's


@register("views")
@dataclasses.dataclass(frozen=True)
class ViewsHead(WrappedHead, Mix):
  """A task's head whose scores have a hidden layer, and the five views' heads beside it.

  The primary head and `full` read layer 1 and the last one; forward and backward one direction of
  layer 1. Of tags, future is the forward state before a word, and past the backward state after it.
  Of one label for a text, forward and backward are the states at its ends, future has read its
  first half, and past its second half.
  """

  units: int = option(512, "units of the hidden layer of each head", low=1)
  dropout: float = option(0.5, "dropout on what each head reads, with labels", low=0.0, high=0.99)
  unlabeled_dropout: float = option(
    0.2, "dropout of heads and trunk on text without labels", low=0.0, high=0.99
  )

  name: str = option("", "name of its parameters, the task's among several; empty: the head's")

  learns_unlabeled = True
  reads = frozenset({"layers", "directions"})
  takes_turns = True

  @property
  def scope(self) -> str:  # type: ignore[override]
    return self.name or super().scope

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    if not self.per_token and self.pooling == "per_choice":
      raise InputError("mix: views are for one label per text or per word, not for choices")

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Views(self)

  def of_inner(self, outputs) -> jax.Array:
    """The scores of the primary head, beside those of each view."""
    return outputs["primary"]

  def with_classes(self, params: Any, order: np.ndarray) -> Any:
    # The views only train the trunk.
    return {**params, "primary_output": super().with_classes(params["primary_output"], order)}

  def view_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Where each view predicts: weights [B, T] of tags, [N] of texts; 0 where it reads nothing."""
    counted: Any = given(batch.tags) if self.per_token else given(batch.labels)
    weights: dict[str, jax.Array] = dict.fromkeys(VIEWS, counted.weights)
    if self.per_token:
      weights["future"] = counted.weights * (batch.rows.positions > 0)
      weights["past"] = counted.weights * _next_word(batch)[1]
    return weights


class _Views(nn.Module):
  config: ViewsHead

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """Scores of the primary head and of each view, float32 [B, T, K] or [N, K]."""
    c = self.config
    read = _of_tokens if c.per_token else _of_texts
    inputs = read(states, batch)  # one array for each head, by its name
    scores = {}
    for i, name in enumerate(("primary", *VIEWS)):
      x = dropout(inputs[name].astype(jnp.float32), c.dropout, key and key.fold(i))
      x = _projection(x, c.units, f"{name}_hidden")
      # The code has no activation in `full`, so that it is a linear map of what the primary reads.
      x = x if name == "full" else jax.nn.relu(x)
      scores[name] = _projection(x, c.num_classes, f"{name}_output")
    return scores


def _projection(x: jax.Array, outputs: int, name: str) -> jax.Array:
  return Projection((x.shape[-1],), (outputs,), "float32", kernel_init=_INIT, name=name)(x)


def _directions(states: States) -> tuple[jax.Array, jax.Array, jax.Array]:
  """[layer 1; last layer], and the forward and the backward half of layer 1."""
  layers = given(states.layers)
  forward, backward = jnp.split(layers[1], 2, axis=-1)
  return jnp.concatenate([layers[1], layers[-1]], -1), forward, backward


def _of_tokens(states: States, batch: Batch) -> dict[str, jax.Array]:
  """The input of each head at a word's first token, [B, T, …]."""
  everything, forward, backward = _directions(states)
  # Of pieces of words: before a word is the last piece of the one before it, or <start>; after it
  # is the first piece of the next one, since the rest of a word's own pieces would tell its ending.
  before = jnp.pad(forward[:, :-1], ((0, 0), (1, 0), (0, 0)))
  return {
    "primary": everything,
    "full": everything,
    "forward": forward,
    "backward": backward,
    "future": before,
    "past": select(backward, _next_word(batch)[0]),
  }


def _next_word(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """The next position that has a tag, int [B, T], and whether the same text has one, bool."""
  segments, weights = given(batch.rows.segments), given(batch.tags).weights
  length = weights.shape[1]
  here = jnp.where(weights > 0, jnp.arange(length).reshape(1, -1), length)
  # The least of all positions from each one on; those after it begin one further on.
  least = jax.lax.cummin(here, axis=1, reverse=True)
  following = jnp.pad(least[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  at = jnp.minimum(following, length - 1)
  same = jnp.take_along_axis(segments, at, axis=1) == segments
  return at, same & (following < length)


def _of_texts(states: States, batch: Batch) -> dict[str, jax.Array]:
  """The input of each head for a text, [N, …]; of several sequences the sum."""
  everything, forward, backward = _directions(states)
  segments = given(batch.rows.segments).reshape(-1)
  of_texts = segments[given(batch.labels).anchors]  # [N, C]
  inside = of_texts[..., None] == segments.reshape(1, 1, -1)  # [N, C, B T]
  # argmax of booleans is the first True; the positions of a text lie side by side.
  first, count = jnp.argmax(inside, -1), inside.sum(-1)
  middle, last = first + (count - 1) // 2, first + count - 1

  def at(hidden: jax.Array, places: jax.Array) -> jax.Array:
    flat = hidden.reshape(-1, hidden.shape[-1]).astype(jnp.float32)
    return lookup(flat, places).sum(1)  # [N, C, P] -> [N, P]

  whole = represent(everything, batch, "concat").sum(1)  # the end, the maximum and the mean
  return {
    "primary": whole,
    "full": whole,
    "forward": at(forward, last),
    "backward": at(backward, first),
    "future": at(forward, middle),
    "past": at(backward, jnp.minimum(middle + 1, last)),
  }


@register("translation_views")
@dataclasses.dataclass(frozen=True)
class TranslationViews(Head, Method):
  """Two decoders with the trunk's LSTMs, and attention and softmax of their own.

  `dropped` loses some of its attention weights; `future` predicts the token after the next one.
  The attentional vector that is fed to the LSTMs stays the translator's.
  """

  attention_dropout: float = option(
    0.5, "share of its attention weights that `dropped` loses", low=0.0, high=0.99
  )

  slot = "mix"
  scope = "translation_views"
  metric = "views_loss"
  weight = 1.0
  per_token = True
  reads = frozenset({"layers", "attended"})
  learns_unlabeled = True
  takes_turns = True

  def check(self, config: Any, task: Any, start: Any) -> None:
    if not task.writes_text:
      raise InputError(
        f"mix: is read by a translator, and {task.name} is a task of {task.kind}; leave it out"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _TranslationViews(self)

  def denominator(self, batch: Batch) -> jax.Array:
    return given(batch.predictions).weights.sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    """Sum of both cross-entropies with the tokens of the translations, for each of which one."""
    predictions = given(batch.predictions)
    targets, weights = predictions.targets, predictions.weights
    hidden, table = outputs["dropped"]
    total = cross_entropy(hidden, table, targets, weights, num_tokens)
    # The state before token t predicts token t + 1.
    targets, weights = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (targets, weights))
    hidden, table = outputs["future"]
    total = total + cross_entropy(hidden, table, targets, weights, num_tokens)
    return Mean(total, self.denominator(batch))


class _TranslationViews(nn.Module):
  config: TranslationViews

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Any = None):
    """The attentional vectors [B, T, D] and the output table [R, D + 1] of each view."""
    top, memory = given(states.attended)
    rows, rates = states.table.shape[0], {"dropped": self.config.attention_dropout, "future": 0.0}
    return {view: Reader(rows, rate, name=view)(top, memory, key) for view, rate in rates.items()}
