"""What a pre-training objective is: windows of token ids to a batch with predictions."""

import dataclasses
from typing import Protocol

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.data.draws import Draw
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import WindowsConfig


class Bound(Protocol):
  """An objective bound to a tokenizer and a length."""

  def __call__(self, rows: np.ndarray, draw: Draw) -> Batch:
    """Token ids int32 [B, T + 1], -1 past a text's end, to a batch on the host.

    An objective with a `text_length` gets as many columns as that says.

    `draw` is the only source of noise, so the batch is a pure function of its arguments.
    """
    ...


class Objective(Protocol):
  """A frozen config dataclass, registered by name."""

  @property
  def attention(self) -> str:
    """ "causal", "bidirectional" or "prefix": what a position may attend to."""
    ...

  @property
  def special(self) -> tuple[str, ...]:
    """Names of the special tokens it needs besides those of the tokenizer, such as "mask"."""
    ...

  @property
  def heads(self) -> tuple[dict, ...]:
    """The heads that learn from its batches, as JSON configs, e.g. ({"type": "language"},).

    Names and not classes, since heads are models and this subpackage knows only numpy.
    """
    ...

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    """Raises InputError where the tokenizer or the length does not suit."""
    ...


def text_windows(objective: Objective, windows: WindowsConfig) -> WindowsConfig:
  """The windows of text that make rows of windows.length tokens.

  An objective that changes the length of a text says by `text_length(length)` how many tokens a
  window needs; all others read length + 1.
  """
  text_length = getattr(objective, "text_length", None)
  if text_length is None:
    return windows
  return dataclasses.replace(windows, length=text_length(windows.length) - 1)
