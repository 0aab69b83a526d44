"""A head: hidden states to outputs, a loss, and predictions; and heads around a task's head."""

import dataclasses
import operator
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.config import Config, option, registered_name, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.method import Method
from gpt_jax.models.trunk import States, TrunkConfig

# Which trunks give a key that not all do.
_SOURCES = {
  "attended": "use LSTMs with attention (configs/translate.py:views)",
  "backward": "use LSTMStackConfig(directions=separate); backward_lm needs directions=backward",
  "directions": "use LSTMStackConfig with trunk.directions=joined (configs/cross_view.py), or a "
  "checkpoint of configs/elmo.py",
  "forward": "use two directions that do not see each other, LSTMStackConfig(directions=separate)",
  "pooler": "set trunk.pooler=True",
}


class Head(Config):
  """Base of the heads' configs, which are frozen dataclasses, registered by name.

  The flax module of a head is called with (states, batch, key) and returns the head's outputs, any
  pytree.
  """

  scope: str  # name of its parameters' subtree beside `trunk`
  weight: float  # of its loss in the model's loss
  labeled: bool = False  # trained on labeled examples, whose sequences contain special tokens
  per_token: bool = False  # whether it predicts each token, not each example
  needs_whole_batch: bool = False  # its loss compares examples: no microbatches, no pmap
  special_tokens: bool = False  # whether it predicts special tokens, too
  learns_unlabeled: bool = False  # parts of it learn from its own predictions, see ViewsHead
  # Keys of what it reads besides single states: those of TrunkConfig.gives; text, all states of a
  # text together; windows, texts that are several sequences.
  reads: frozenset[str] = frozenset()

  @property
  def metric(self) -> str:
    """Name under which its loss is reported."""
    return f"{self.scope}_loss"

  @property
  def measured(self) -> "Head | None":
    """The head whose loss is evaluated, where this one trains on more than that; None: none is."""
    return self

  def check_trunk(self, trunk: TrunkConfig) -> None:
    """Raises InputError where it cannot read this trunk's states."""
    for key in sorted(self.reads - trunk.gives - {"text", "windows"}):
      raise InputError(
        f"{registered_name(type(self))}: reads {key}, and the trunk {registered_name(type(trunk))} "
        f"gives {', '.join(sorted(trunk.gives))}; {_SOURCES[key]}"
      )

  def build(self, trunk: TrunkConfig) -> nn.Module:
    raise NotImplementedError

  def denominator(self, batch: Batch) -> jax.Array:
    """The divisor of a batch's loss: the summed weight of what is predicted, a scalar."""
    return given(batch.labels).weights.sum()

  def loss(self, outputs: Any, states: States, batch: Batch, num_tokens: int) -> Mean:
    """The summed loss in nats, and the denominator of this batch.

    num_tokens: rows of the table that are tokens; the logits of all others are masked.
    """
    raise NotImplementedError

  def accuracy(self, outputs: Any, batch: Batch) -> Mean | None:
    """The share of right guesses, reported as SCOPE_accuracy; None: it guesses no class."""
    return None

  def chance(self, size: int) -> float | None:
    """The loss in nats of `size` examples whose outputs are all alike; None: unknown."""
    return None

  def with_classes(self, params: Any, order: np.ndarray) -> Any:
    """Its parameters, with the output order[i] in place of output i."""
    return {**params, **{part: params[part][..., order] for part in ("kernel", "bias")}}

  def decode(self, outputs: Any) -> jax.Array:
    """Predictions: probabilities [N, K] per example, or [B, T, K] per token.

    Raises NotImplementedError where it is only scored by its loss, as a language model.
    """
    raise NotImplementedError(f"{self.scope}: this head is scored by its loss")


@dataclasses.dataclass(frozen=True)
class WrappedHead(Head):
  """Base of heads that give another one, the task's, more than the last layer's states to read."""

  head: Any | None = option(None, "the head, which the task names")

  labeled = True
  reads = frozenset({"layers"})

  # What others ask of a head is that of the one it wraps.
  scope = property(operator.attrgetter("inner.scope"))
  metric = property(operator.attrgetter("inner.metric"))
  weight = property(operator.attrgetter("inner.weight"))
  per_token = property(operator.attrgetter("inner.per_token"))
  pooling = property(operator.attrgetter("inner.pooling"))
  num_classes = property(operator.attrgetter("inner.num_classes"))

  @property
  def inner(self) -> Any:
    return given(self.head)

  def check_trunk(self, trunk: TrunkConfig) -> None:
    super().check_trunk(trunk)
    self.inner.check_trunk(trunk)

  def denominator(self, batch: Batch) -> jax.Array:
    return self.inner.denominator(batch)

  def loss(self, outputs: Any, states: States, batch: Batch, num_tokens: int) -> Mean:
    return self.inner.loss(self.of_inner(outputs), states, batch, num_tokens)

  def accuracy(self, outputs: Any, batch: Batch) -> Mean | None:
    return self.inner.accuracy(self.of_inner(outputs), batch)

  def decode(self, outputs: Any) -> jax.Array:
    return self.inner.decode(self.of_inner(outputs))

  def of_inner(self, outputs: Any) -> Any:
    """The outputs of the wrapped head among all."""
    return outputs


class Mix(Method):
  """Base of the heads that fine-tuning puts around a task's head for labels."""

  slot = "mix"

  def change_loaded(self, loaded: Any) -> Any:
    return loaded.encoder_alone()

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    return {**to_json(self), "head": head}

  def check(self, config: Any, task: Any, start: Any) -> None:
    if task.writes_text:
      raise InputError(
        "mix: is read by a head for labels, and a text-to-text model has none; leave it out"
      )
