"""A head on a text that is longer than the context: what it reads of each window, pooled."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, given
from gpt_jax.config import from_json, option, register, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import at_first_positions, represent
from gpt_jax.models.heads.head import WrappedHead
from gpt_jax.models.method import Method
from gpt_jax.models.trunk import States, TrunkConfig
from gpt_jax.ops.dropout import Key

POOLINGS = ("mean", "max", "attention")


@register("windows_method")
@dataclasses.dataclass(frozen=True)
class Windows(Method):
  """Texts longer than the context are read in windows, not cut."""

  over: str = option(
    "mean",
    "mean or max of what a head reads of each window, or attention, a mean with trained weights",
    choices=POOLINGS,
  )
  stride: int = option(
    0, "tokens from one window's beginning to the next one's; 0: windows do not overlap", low=0
  )

  slot = "windows"

  def change_format(self, format: Any) -> Any:
    if format.writes_answers:
      raise InputError(
        f"windows={self.over}: a text-to-text model writes its labels, and reads no windows; "
        "leave windows out"
      )
    return from_json({"type": "windowed_format", "format": to_json(format), "stride": self.stride})

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    return {"type": "windowed", "over": self.over, "head": head}

  def check(self, config: Any, task: Any, start: Any) -> None:
    one_answer = not task.writes_text and not from_json(task.head).per_token
    if not one_answer or any(method.slot == "mix" for method in config.methods):
      raise InputError(
        f"windows={self.over}: for tasks with one answer for each row, not for {task.name} "
        f"({task.kind}), and without mix; leave it out"
      )


@register("windowed")
@dataclasses.dataclass(frozen=True)
class WindowsHead(WrappedHead):
  """A task's head, whose representation of a text is pooled over those of its windows.

  The windows are the sequences of each example, see tasks.windows.WindowedFormat: those of its one
  text, or of each option in turn; one that an example does not have has the anchor -1.
  """

  over: str = option(
    "mean",
    "mean or max of the representations x, or attention: their mean with weights "
    "softmax(q x / sqrt(D)), q being trained from 0",
    choices=POOLINGS,
  )

  reads = frozenset({"windows"})

  def build(self, trunk: TrunkConfig) -> nn.Module:
    inner, pooling = self.inner, self.pooling
    # What is pooled here is all that the head reads of an example.
    one = dataclasses.replace(inner, pooling="sum") if pooling in ("mean", "concat") else inner
    options = inner.num_classes if pooling == "per_choice" else 1
    width = trunk.width * (3 if pooling == "concat" else 1)
    return _Windows(self.over, pooling, options, width, one.build(trunk), trunk.reads_backward)


class _Windows(nn.Module):
  over: str
  pooling: str
  options: int
  width: int
  head: nn.Module
  reads_backward: bool

  def setup(self):
    # The head's parameters are where they are without windows.
    nn.share_scope(self, self.head)
    if self.over == "attention":
      # Zeros: training begins with the mean. A matrix, so that it decays as other kernels do.
      self.query = self.param("window_kernel", nn.initializers.zeros, (self.width, 1))

  def __call__(self, states: States, batch: Batch, key: Key | None = None):
    """The outputs of the head, of one representation [D] for each of K options, or for K = 1 of
    each of the N examples.
    """
    # The arrays of an example batch are NumPy's, which traced anchors cannot index.
    batch = jax.tree.map(jnp.asarray, batch)
    labels = given(batch.labels)
    # Absent windows are computed but get weight 0.
    anchored = batch._replace(labels=labels._replace(anchors=jnp.maximum(labels.anchors, 0)))
    if self.reads_backward:
      anchored = at_first_positions(anchored)
    x = represent(states.hidden, anchored, self.pooling)  # [N, K W, D]
    N, C, D = x.shape
    # An example batch has one sequence of each example, whatever the task.
    K = self.options if C % self.options == 0 else 1
    x = x.reshape(N * K, -1, D)  # [N K, W, D]
    is_window = (labels.anchors >= 0).reshape(x.shape[:2])
    if self.over == "max":
      x = jnp.where(is_window[..., None], x, -jnp.inf).max(1)
    else:
      scores = jnp.zeros(is_window.shape)
      if self.over == "attention":
        scores = (x @ self.query)[..., 0] / self.width**0.5
      shares = jax.nn.softmax(jnp.where(is_window, scores, -jnp.inf), axis=1)
      x = (shares[..., None] * x).sum(1)
    # One row of one position for each representation [D].
    own = labels._replace(anchors=jnp.arange(len(x)).reshape(N, -1))
    rows = batch.rows._replace(positions=jnp.zeros((len(x), 1), jnp.int32))
    each = batch._replace(rows=rows, labels=own)
    return self.head(states._replace(hidden=x[:, None]), each, key)
