"""A pre-training objective: windows of token ids to a batch with predictions."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.config import Config
from gpt_jax.data.draws import Draw
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig

# (name of this use, shape of a row) -> uniform noise in [0, 1), [B, *shape]; see data.draws.Draw.
Noise = Callable[[str, tuple[int, ...]], np.ndarray]


class Bound(Protocol):
  """An objective bound to a tokenizer and a length."""

  def __call__(self, rows: np.ndarray, draw: Noise) -> Batch:
    """The rows of `windows`, int32 [B, T + 1] with -1 past a text's end, to a batch on the host.

    `draw` is the only source of noise, so the batch is a pure function of its arguments. The
    anchors of labels count these rows; `placement.anchors_of_parts` counts those of their part.
    """
    ...


class Objective(Config):
  """Base of the objectives' configs, which are frozen dataclasses, registered by name."""

  # Whether a run that starts from a checkpoint goes on with that one's format, since rows are plain
  # text, without a format's special tokens or with its [CLS] and [SEP] alone.
  keeps_format = False
  gives_source: bool = False  # whether its batches have rows for an encoder, Batch.source
  special: tuple[str, ...] = ()  # names of special tokens it needs, such as "mask"

  @property
  def attention(self) -> str:
    """Reach of a position's attention: "causal", "bidirectional" or "prefix"."""
    raise NotImplementedError

  @property
  def heads(self) -> tuple[dict, ...]:
    """The heads that learn from its batches, as JSON configs, e.g. ({"type": "language"},).

    Names and not classes, since heads are models and this subpackage knows only numpy.
    """
    raise NotImplementedError

  @property
  def format(self) -> dict:
    """The format of tasks/formats.py in which its models are fine-tuned, as a JSON config."""
    raise NotImplementedError

  def bind(self, tokenizer: Tokenizer, length: int) -> Bound:
    """Raises InputError where the tokenizer or the length does not suit."""
    raise NotImplementedError

  def text_length(self, length: int) -> int:
    """Tokens of text in a row whose batch has `length` positions."""
    return length + 1

  def word_share(self, length: int) -> float:
    """The share of the predicted tokens that are words of the text, the others being sentinels and
    ends: a model that knows word frequencies alone has this share of the unigram entropy as loss.
    """
    return 1.0

  def windows(self, tokens: TokenFile, config: WindowsConfig, seed: int = 0) -> Windows:
    """The rows of a text, [B, text_length]; an objective with rows of its own kind, such as pairs
    of sentences, returns those.
    """
    length = self.text_length(config.length) - 1  # a row of Windows has one token more
    return Windows(tokens, dataclasses.replace(config, length=length), seed)


def frame(rows: np.ndarray, first: int, last: int) -> np.ndarray:
  """[first] text [last], with padding after it; [B, t] to [B, t + 2]. Empty rows stay empty."""
  sizes = (rows >= 0).sum(axis=1)
  framed = np.full((len(rows), rows.shape[1] + 2), -1, np.int32)
  framed[:, 1:-1] = rows
  used = np.flatnonzero(sizes)  # rows that have a text
  framed[used, 0] = first
  framed[used, sizes[used] + 1] = last
  return framed


def example_batch(objective: Objective, bound: Bound, length: int, size: int) -> Batch:
  """A batch of `size` rows with the shapes of all others, before there is a text."""
  rows = np.zeros((size, objective.text_length(length)), np.int32)
  return bound(rows, Draw(0, 0, np.arange(size)))
