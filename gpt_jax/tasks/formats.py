"""How the fields of an example become one token sequence, and where that sequence is read.

A format is a frozen config dataclass, registered by name. A fine-tuned checkpoint names its format,
so that a later fine-tuning cannot mix two.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpt_jax.config import register
from gpt_jax.data.tokenizers.base import SpecialTokens


class Format(Protocol):
  """Fields of ids to a sequence of ids."""

  @property
  def special(self) -> tuple[str, ...]:
    """Names of the special tokens that it puts in."""
    ...

  def overhead(self, fields: int) -> int:
    """How many special tokens a sequence of that many fields gets."""
    ...

  def join(self, fields: Sequence[np.ndarray], special: SpecialTokens) -> np.ndarray:
    """The ids of a sequence, int32 [t]."""
    ...

  def spread(self, fields: Sequence[np.ndarray], fill: int) -> np.ndarray:
    """Values [t] of a sequence from those of its fields' ids; special tokens get `fill`."""
    ...

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    """Token types [t] of fields of these lengths; None: the format has none."""
    ...

  def anchor(self, length: int) -> int:
    """The index at which a sequence of that length is read."""
    ...


@register("gpt_format")
@dataclasses.dataclass(frozen=True)
class GPTFormat:
  """<start> field … [<delimiter> last field] <extract>, read at <extract> (section 3.3)."""

  special = ("start", "delimiter", "extract")

  def overhead(self, fields: int) -> int:
    ends = 2
    return ends + (1 if fields > 1 else 0)

  def join(self, fields: Sequence[np.ndarray], special: SpecialTokens) -> np.ndarray:
    return self._join(fields, special.start, special.delimiter, special.extract)

  def spread(self, fields: Sequence[np.ndarray], fill: int) -> np.ndarray:
    return self._join(fields, fill, fill, fill)

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    del lengths
    return None

  def anchor(self, length: int) -> int:
    return length - 1

  def _join(self, fields: Sequence[np.ndarray], start, delimiter, extract) -> np.ndarray:
    parts = list(fields)
    if len(parts) > 1:
      parts.insert(-1, np.array([delimiter]))
    return np.concatenate([[start], *parts, [extract]]).astype(np.int32)


def each_half(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates each field of a pair to half the context, a single field to all of it.

  As OpenAI's code does (openai/train.py:377); the head of a field is kept.

  Args:
    lengths: int [S, F], tokens of each field of S sequences.
    context: the longest sequence, with its special tokens.
    overhead: the special tokens of a sequence.

  Returns:
    int [S, F], how many tokens of each field remain.
  """
  single = lengths.shape[1] == 1
  return np.minimum(lengths, context - overhead if single else context // 2 - 2)


def first_field(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates the first field (an article) and keeps the others (question, option) whole.

  Neither the paper nor its code says how it truncated RACE. The other fields are truncated, to
  equal parts, only if they fill the context. The arguments are those of each_half.
  """
  room = context - overhead
  others = lengths[:, 1:]
  too_long = others.sum(axis=1, keepdims=True) > room
  others = np.where(too_long, np.minimum(others, room // others.shape[1]), others)
  first = np.minimum(lengths[:, :1], room - others.sum(axis=1, keepdims=True))
  return np.concatenate([first, others], axis=1)
