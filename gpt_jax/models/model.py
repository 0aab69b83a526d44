"""Models: a trunk alone, and a trunk with the paper's linear head W_y. Parameters {trunk} and
{trunk, head}.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from gpt_jax.batch import TaskBatch, TextBatch
from gpt_jax.config import option, register, validate
from gpt_jax.models.layers import SPECIAL_TOKENS
from gpt_jax.ops.dropout import Key, dropout


@register("classify")
@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """The linear head of a fine-tuned model (eq. 3-4)."""

  num_classes: int = option(2, "K, the outcomes told apart", low=2)
  pooling: str = option(
    "sum",
    "sum: add the C representations, one score an outcome; choose: one score a sequence",
    choices=("sum", "per_choice"),
  )
  dropout: float = option(0.1, "dropout on what the head reads", low=0.0, high=0.99)

  def __post_init__(self):
    validate(self)


@register("model")
@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """All that is needed to rebuild a model around its parameters; it travels with every
  checkpoint.
  """

  trunk: Any = option(None, "TransformerConfig or LSTMConfig")
  head: HeadConfig | None = option(None, "the head of a fine-tuned model")
  causal: bool = option(True, "whether a place sees only what stands before it")

  def build(self) -> "LanguageModel | TaskModel":
    if self.head is None:
      return LanguageModel(self.trunk, self.causal)
    return TaskModel(self.trunk, self.head, self.causal)


class LanguageModel(nn.Module):
  """A trunk with nothing on top: its tied table gives the logits."""

  trunk_config: Any
  causal: bool = True

  def setup(self):
    self.trunk = self.trunk_config.build(self.causal)

  def __call__(self, text: TextBatch, key: Key | None = None):
    """hidden [B, T, D], table [R, D]."""
    return self.trunk(text.inputs, text.positions, text.segments, key)

  @property
  def num_tokens(self) -> int:
    """Rows of the table that are tokens; the logits of all others are masked."""
    return self.trunk_config.vocab_size

  def start(self, batch_size: int):
    return self.trunk.start(batch_size)

  def extend(self, inputs, positions, valid, state):
    return self.trunk.extend(inputs, positions, valid, state)


class TaskModel(nn.Module):
  """A trunk whose hidden states at the extract tokens go through W_y (section 3.2-3.3)."""

  trunk_config: Any
  head_config: HeadConfig
  causal: bool = True

  def setup(self):
    self.trunk = self.trunk_config.build(self.causal)
    self.head = Head(self.head_config)

  def __call__(self, batch: TaskBatch, key: Key | None = None):
    """scores [N, K] before the softmax, hidden [B, T, D], table [R, D]."""
    text = batch.text
    hidden, table = self.trunk(text.inputs, text.positions, text.segments, key and key.fold(0))
    extracts = hidden.reshape(-1, hidden.shape[-1])[batch.anchors]  # [N, C, D]
    return self.head(extracts, key and key.fold(1)), hidden, table

  @property
  def num_tokens(self) -> int:
    """The special tokens are inputs and targets here, so their rows count (train.py:174-178)."""
    return self.trunk_config.vocab_size + SPECIAL_TOKENS


class Head(nn.Module):
  """W_y, with the bias of OpenAI's code (train.py:155-161)."""

  config: HeadConfig

  @nn.compact
  def __call__(self, extracts, key: Key | None):
    """[N, C, D] to scores [N, K]."""
    c = self.config
    x = extracts.astype(jnp.float32)
    if c.pooling == "sum":
      # Similarity reads both orders and adds them (section 3.3); everything else has one sequence.
      x = dropout(x.sum(1), c.dropout, key)
    else:
      # One mask for all candidates of an example, or the comparison would be between different
      # features (train.py:185).
      mask = dropout(jnp.ones_like(x[:, :1]), c.dropout, key)
      x = x * mask
    num_classes = c.num_classes if c.pooling == "sum" else 1
    kernel = self.param("kernel", nn.initializers.normal(0.02), (x.shape[-1], num_classes))
    bias = self.param("bias", nn.initializers.zeros, (num_classes,))
    scores = x @ kernel + bias.reshape((1,) * (x.ndim - 1) + (-1,))
    return scores if c.pooling == "sum" else scores[..., 0]
