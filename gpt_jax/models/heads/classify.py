"""The paper's linear head W_y: a class per example, or a choice among sequences (eq. 3-4)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Labels, Mean, given
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.head import Head
from gpt_jax.models.layers import LayerNorm, Projection, initializer
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key, dropout
from gpt_jax.ops.lookup import lookup


def transform_option() -> str:
  """The field of heads on one representation of a text."""
  return option(
    "none",
    "of the representation, before the linear map: none, as GPT; pooler: the trunk's, then "
    "dropout, as BERT; dense: dropout, a new map D to D, tanh, dropout, as RoBERTa",
    choices=("none", "pooler", "dense"),
  )


class AnchorHead(Head):
  """Base of the heads W_y: a loss per example, of what is read at its anchors."""

  num_classes: int
  dropout: float
  transform: str

  scope = "head"
  metric = "task_loss"
  labeled = True
  pooling: str = "sum"
  units = 0

  @property
  def reads(self) -> frozenset[str]:  # type: ignore[override]
    read = {"pooler": self.transform == "pooler", "text": self.pooling in ("mean", "concat")}
    return frozenset(key for key, is_read in read.items() if is_read)

  def build(self, trunk: TrunkConfig) -> nn.Module:
    return Classifier(self, trunk.style.init, trunk.reads_backward)

  def denominator(self, batch: Batch) -> jax.Array:
    return self.example_weights(given(batch.labels)).sum()

  def loss(self, outputs, states: States, batch: Batch, num_tokens: int) -> Mean:
    labels = given(batch.labels)
    losses = self.losses(outputs, labels.distributions)
    return Mean((losses * self.example_weights(labels)).sum(), self.denominator(batch))

  def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss of each example, [N], by outputs and labels [N, K]."""
    raise NotImplementedError

  def example_weights(self, labels: Labels) -> jax.Array:
    """The loss weight of each example, [N]; 0 for one that only fills the batch."""
    return labels.weights


@register("classify")
@dataclasses.dataclass(frozen=True)
class ClassifyHead(AnchorHead):
  """Softmax over the classes at the anchor of each sequence."""

  num_classes: int = option(2, "K, the number of classes", low=2)
  pooling: str = option(
    "sum",
    "sum: add the C representations, one score per class; per_choice: one score per sequence; "
    "mean: as sum, of the mean over each sequence's tokens in place of its anchor; concat: as sum, "
    "of the anchor beside the maximum and the mean over the tokens (ULMFiT)",
    choices=("sum", "per_choice", "mean", "concat"),
  )
  dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  weight: float = option(1.0, "loss weight", low=0.0)
  class_weights: tuple[float, ...] = option(
    (), "loss weight of the examples of each class; empty: 1 for all", low=0.0
  )
  label_smoothing: float = option(
    0.0, "share of each label that is spread over all classes in the loss", low=0.0, high=0.99
  )
  transform: str = transform_option()
  units: int = option(
    0,
    "of the representation, before the linear map: layer norm, dropout, so many ReLU units, layer "
    "norm, dropout of 0.1 (ULMFiT: 50, with batch norm, which is no sum over examples); 0: nothing",
    low=0,
  )

  def __post_init__(self):
    super().__post_init__()
    if self.class_weights and len(self.class_weights) != self.num_classes:
      raise InputError(
        f"ClassifyHead.class_weights: {len(self.class_weights)} weights for {self.num_classes} "
        "classes; give one for each, or none"
      )

  def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross-entropy with the labels' distributions.

    An example counts as much as its class, so the mean is the weighted one of scikit-learn and
    torch. Smoothing changes what is predicted, not that weight.
    """
    if self.label_smoothing:
      labels = (1 - self.label_smoothing) * labels + self.label_smoothing / self.num_classes
    # Labels are distributions: those of STS-B lie on two classes (Tai et al. 2015, section 4.2).
    return -(labels * jax.nn.log_softmax(outputs)).sum(-1)

  def example_weights(self, labels: Labels) -> jax.Array:
    if not self.class_weights:
      return labels.weights
    # A distribution picks the weight of its class: [N, K] @ [K].
    return labels.weights * (labels.distributions @ jnp.asarray(self.class_weights))

  def decode(self, outputs) -> jax.Array:
    """Probabilities [N, K]."""
    return jax.nn.softmax(outputs)  # the classes exclude one another


class Classifier(nn.Module):
  """W_y, with the bias of OpenAI's code (openai/train.py:155-161)."""

  config: AnchorHead
  kernel_init: str  # see layers.initializer
  reads_backward: bool  # whether the trunk does, so that a text's anchor is its first position

  @nn.compact
  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """Scores [N, K], float32."""
    c, chooses = self.config, self.config.pooling == "per_choice"
    if self.reads_backward:
      batch = at_first_positions(batch)
    x = represent(states.hidden, batch, c.pooling)  # [N, C, D]
    if c.transform == "pooler":
      x = given(states.pooler)(x)
    elif c.transform == "dense":
      width = (x.shape[-1],)
      # fairseq's RobertaClassificationHead: dropout, dense, tanh, dropout, W_y.
      x = self._drop(x, key and key.fold(0))
      dense = Projection(width, width, "float32", kernel_init=self.kernel_init, name="dense")
      x = jnp.tanh(dense(x))
    if not chooses:
      # Similarity adds both orders (section 3.3); every other task has one sequence.
      x = x.sum(1)  # [N, D]
    x = dropout(self._hidden(x, key), 0.1, key) if c.units else self._drop(x, key)
    # With one score a sequence [N, C, 1], the C choices are the classes of the softmax (eq. 3).
    scores_per_anchor = 1 if chooses else c.num_classes
    kernel = self.param("kernel", initializer(self.kernel_init), (x.shape[-1], scores_per_anchor))
    bias = self.param("bias", nn.initializers.zeros, (scores_per_anchor,))
    # The bias by its own axes: rank promotion is an error in the tests.
    scores = x @ kernel + bias.reshape((1,) * (x.ndim - 1) + (-1,))
    return scores[..., 0] if chooses else scores  # [N, C] or [N, K]

  def _hidden(self, x, key):
    """ULMFiT's hidden layer (fastai, PoolingLinearClassifier), [N, …, units]."""
    x = self._drop(LayerNorm("float32", name="norm_in")(x), key and key.fold(0))
    init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # torch's
    sizes = x.shape[-1:], (self.config.units,)
    x = Projection(*sizes, "float32", kernel_init=init, name="hidden")(x)
    return LayerNorm("float32", name="norm_hidden")(jax.nn.relu(x))

  def _drop(self, x, key):
    if self.config.pooling != "per_choice":
      return dropout(x, self.config.dropout, key)
    # One mask for all choices of an example: with several, the choices would be compared on
    # different features (openai/train.py:185).
    return x * dropout(jnp.ones_like(x[:, :1]), self.config.dropout, key)


def at_first_positions(batch: Batch) -> Batch:
  """The batch with each anchor moved to the first position of its text."""
  labels = given(batch.labels)
  before = batch.rows.positions.reshape(-1)[labels.anchors]
  return batch._replace(labels=labels._replace(anchors=labels.anchors - before))


def represent(hidden: jax.Array, batch: Batch, pooling: str) -> jax.Array:
  """The representation of each sequence by the hidden states [B, T, D]: float32 [N, C, D], of
  concat [N, C, 3 D].

  pooling: see ClassifyHead; mean and concat need the segments of the rows.
  """
  anchors = given(batch.labels).anchors
  # Several examples share a row, so anchors count the positions of the whole batch, B T.
  flat = hidden.reshape(-1, hidden.shape[-1]).astype(jnp.float32)
  if pooling not in ("mean", "concat"):
    return lookup(flat, anchors)
  segments = given(batch.rows.segments).reshape(-1)
  same_segment = segments[anchors][..., None] == segments[None, None]  # [N, C, B * T]
  inside = same_segment.astype(jnp.float32)
  mean = inside @ flat / inside.sum(-1, keepdims=True)
  if pooling == "mean":
    return mean
  # Howard & Ruder 2018, section 3.3: h_c = [h_T, maxpool(H), meanpool(H)].
  texts, inside = texts_of(hidden, batch)
  largest = jnp.where(inside[..., None], texts, -jnp.inf).max(2)
  return jnp.concatenate([lookup(flat, anchors), largest, mean], -1)


def texts_of(hidden: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
  """The row of each sequence, float32 [N, C, T, D], and which positions are the sequence's own,
  bool [N, C, T].
  """
  anchors, segments = given(batch.labels).anchors, given(batch.rows.segments)
  at = anchors // hidden.shape[1]  # a sequence lies in one row
  rows = lookup(hidden.reshape(len(hidden), -1).astype(jnp.float32), at)
  inside = segments[at] == segments.reshape(-1)[anchors][..., None]
  return rows.reshape(*at.shape, *hidden.shape[1:]), inside
