"""What a pre-training objective is: windows of token ids to a batch with predictions."""

import dataclasses
from typing import Protocol

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.data.draws import Draw
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig


class Bound(Protocol):
  """An objective bound to a tokenizer and a length."""

  def __call__(self, rows: np.ndarray, draw: Draw) -> Batch:
    """The rows of make_windows, int32 [B, T + 1] with -1 past a text's end, to a batch on the host.

    `draw` is the only source of noise, so the batch is a pure function of its arguments. The
    anchors of labels count these rows; `placement.anchors_of_parts` counts those of their part.
    """
    ...


class Objective(Protocol):
  """A frozen config dataclass, registered by name.

  An objective whose batches have rows for an encoder, Batch.source, has `gives_source = True` and
  needs a trunk with `reads_source`: an encoder-decoder. All others may leave it out.
  """

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

  @property
  def format(self) -> dict:
    """What its models are fine-tuned on: a format of tasks/formats.py, as a JSON config.

    An objective whose rows are plain text, without a format's special tokens or with its [CLS] and
    [SEP] alone, has `keeps_format = True`: a run that starts from a checkpoint goes on with that
    one's format.
    """
    ...

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    """Raises InputError where the tokenizer or the length does not suit."""
    ...


def make_windows(
  objective: Objective, tokens: TokenFile, config: WindowsConfig, seed: int = 0
) -> Windows:
  """The rows of a text that an objective is bound to.

  An objective that needs rows of its own kind, such as pairs of sentences, has a method
  `windows(tokens, config, seed)`, which returns them. One whose batches are not as long as their
  text says by `text_length(length)` how many tokens a row has; all others have length + 1.

  Raises:
    InputError: the text or the config does not suit.
  """
  own = getattr(objective, "windows", None)
  if own:
    return own(tokens, config, seed)
  length = _columns(objective, config.length) - 1
  return Windows(tokens, dataclasses.replace(config, length=length), seed)


def example_batch(objective: Objective, bound: Bound, length: int, size: int) -> Batch:
  """A batch of `size` rows with the shapes of all others, before there is a text."""
  rows = np.zeros((size, _columns(objective, length)), np.int32)
  return bound(rows, Draw(0, 0, np.arange(size)))


def _columns(objective: Objective, length: int) -> int:
  text_length = getattr(objective, "text_length", None)
  return text_length(length) if text_length else length + 1
