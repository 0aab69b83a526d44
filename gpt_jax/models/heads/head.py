"""What a head is: hidden states to outputs, a loss, and predictions."""

from typing import Any, Protocol

import flax.linen as nn
import jax

from gpt_jax.batch import Batch, Mean
from gpt_jax.models.trunk import States, TrunkConfig


class Head(Protocol):
  """A head's config: a frozen dataclass, registered by name.

  Its flax module is called with (states, batch, key) and returns the head's outputs, any pytree.
  A head whose loss is no sum over examples has `needs_whole_batch = True`: it then trains without
  microbatches and pmap. One that guesses a class has a method `accuracy(outputs, batch) -> Mean`,
  which is reported as `<scope>_accuracy`. One that trains on more than the loss that it is
  evaluated by has `measured`, the head without the rest.
  """

  @property
  def scope(self) -> str:
    """The name of its parameters' subtree beside `trunk`."""
    ...

  @property
  def metric(self) -> str:
    """The name under which its loss is reported."""
    ...

  @property
  def weight(self) -> float:
    """Of its loss in the model's loss."""
    ...

  @property
  def labeled(self) -> bool:
    """Trained on labeled examples, whose sequences contain special tokens."""
    ...

  @property
  def per_token(self) -> bool:
    """Predicts each token, not each example."""
    ...

  def build(self, trunk: TrunkConfig) -> nn.Module: ...

  def denominator(self, batch: Batch) -> jax.Array:
    """What the loss of a batch is divided by: the summed weight of what it predicts, a scalar."""
    ...

  def loss(self, outputs: Any, states: States, batch: Batch, num_tokens: int) -> Mean:
    """The summed loss in nats, and the denominator of this batch.

    Args:
      num_tokens: rows of the table that are tokens; the logits of all others are masked.
    """
    ...

  def decode(self, outputs: Any) -> jax.Array:
    """Predictions: probabilities [N, K] per example, or [B, T, K] per token."""
    ...
