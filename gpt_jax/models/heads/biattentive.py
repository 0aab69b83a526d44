"""CoVe's biattentive classification network (McCann et al. 2017, section 5) on a trunk that is
usually frozen: what it reads of a token is [embedding; context vector].

Its maxout layers normalize the features of each text (layer norm), where the paper's normalize each
feature over a batch: such moments are no sum over examples, so that microbatches, devices and the
rows that fill a batch would change them.

Letters: B rows, T positions, N examples, U units of an LSTM in one direction, K classes.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.batch import Batch, Rows, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import texts_of
from gpt_jax.models.heads.head import Mix, WrappedHead
from gpt_jax.models.layers import LayerNorm, Projection
from gpt_jax.models.lstm_encoder_decoder import EXCLUDED, apart
from gpt_jax.models.lstm_stack import Block, LSTMStackConfig
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key, dropout

CHANNELS = 4  # of a maxout layer
_LAST = "maxout_2"  # of three maxout layers
_INIT = nn.initializers.glorot_uniform()


@register("biattentive")
@dataclasses.dataclass(frozen=True)
class BiattentiveHead(WrappedHead, Mix):
  """A head for one label per text or pair; the head that it wraps has classes and loss.

  Each text of a pair attends to the other one; a text alone attends to itself.
  """

  units: int = option(300, "units of its dense layer, and of each direction of its LSTMs", low=1)
  reduction: int = option(4, "by which the first maxout layer divides its input's width", low=1)
  dropout: float = option(0.2, "dropout on what each layer reads", low=0.0, high=0.99)

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    if self.per_token or self.pooling == "per_choice":
      raise InputError("mix: BiattentiveHead gives one label per text, not per word or choice")
    if self.reduction > 8 * self.units:
      raise InputError(
        f"mix.reduction={self.reduction}: with mix.units={self.units}, at most {8 * self.units}"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return _Biattentive(self)

  def with_classes(self, params: Any, order: np.ndarray) -> Any:
    classes = {part: x[..., order, :] for part, x in params[_LAST].items()}  # [..., K, CHANNELS]
    return {**params, _LAST: classes}


class _Biattentive(nn.Module):
  config: BiattentiveHead

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """Scores [N, K], float32."""
    c, rows, layers = self.config, batch.rows, given(states.layers)
    x = jnp.concatenate([layers[0], layers[-1]], -1).astype(jnp.float32)
    x = jax.nn.relu(self._project(x, (c.units,), "dense", key and key.fold(0)))
    x = self._read(x, rows, "read", key and key.fold(1))  # [B, T, 2 U]
    scores = jnp.einsum("btd,bsd->bts", x, x)
    context = jax.nn.softmax(jnp.where(_attends(rows), scores, EXCLUDED)) @ x
    x = jnp.concatenate([x, x - context, x * context], -1)
    x = self._read(x, rows, "integrate", key and key.fold(2))
    scores = Projection(x.shape[-1:], (1,), "float32", kernel_init=_INIT, name="pool")(x)
    x = jnp.concatenate([x, scores], -1)
    x = jnp.concatenate([_pools(x, batch, side) for side in range(2)], -1)
    sizes = (x.shape[-1] // c.reduction, x.shape[-1] // c.reduction // 2, c.num_classes)
    for i, size in enumerate(sizes):
      x = LayerNorm("float32", name=f"norm_{i}")(x)
      x = self._project(x, (size, CHANNELS), f"maxout_{i}", key and key.fold(3 + i)).max(-1)
    return x

  def _project(self, x, outputs: tuple[int, ...], name: str, key: Key | None):
    x = dropout(x, self.config.dropout, key)
    return Projection(x.shape[-1:], outputs, "float32", kernel_init=_INIT, name=name)(x)

  def _read(self, x, rows: Rows, name: str, key: Key | None):
    """An LSTM in both directions, [B, T, I] to [B, T, 2 U]; each text begins with no state."""
    config = LSTMStackConfig(
      embedding_width=x.shape[-1], units=(self.config.units,), directions="joined", tied=False
    )
    x, valid = dropout(x, self.config.dropout, key), given(rows.segments) > 0
    outputs, _ = Block(config, 0, name=name)([x, x], apart(rows).positions, valid, None, None)
    return jnp.concatenate(outputs, -1)


def _sides(rows: Rows) -> jax.Array:
  """0 or 1 for the first or second text of a pair, int [B, T]."""
  return jnp.zeros_like(rows.inputs) if rows.types is None else rows.types


def _attends(rows: Rows) -> jax.Array:
  """Attended positions, bool [B, T, T]: the other text's, or its only text's."""
  segments, sides = given(rows.segments), _sides(rows)
  same = segments[:, :, None] == segments[:, None]
  is_pair = (same & (sides == 1)[:, None]).any(-1)
  return same & ((sides[:, :, None] != sides[:, None]) | ~is_pair[:, :, None])


def _pools(x: jax.Array, batch: Batch, side: int) -> jax.Array:
  """Maximum, mean, minimum and self-attentive mean of one text of each example: [N, 8 U].

  x: [B, T, 2 U + 1], the last feature being the score of the self-attention. side: 0 or 1; a text
  alone is both.
  """
  texts, inside = texts_of(x, batch)  # [N, C, T, 2 U + 1], [N, C, T]
  of_side = inside & (_sides(batch.rows)[given(batch.labels).anchors // x.shape[1]] == side)
  inside = jnp.where(of_side.any(-1, keepdims=True), of_side, inside)
  texts, scores = texts[..., :-1], texts[..., -1]
  shares = jax.nn.softmax(jnp.where(inside, scores, EXCLUDED))
  mean = inside / inside.sum(-1, keepdims=True)
  means = [jnp.einsum("nct,nctd->ncd", weights, texts) for weights in (mean, shares)]
  largest, least = (jnp.where(inside[..., None], texts, sign * jnp.inf) for sign in (-1, 1))
  return jnp.concatenate([largest.max(2), means[0], least.min(2), means[1]], -1).sum(1)
