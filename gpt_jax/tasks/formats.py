"""How the fields of an example become one token sequence, and where that sequence is read.

A format is a frozen config dataclass, registered by name. A checkpoint names the one that it was
trained with or, if it is only pre-trained, that its objective is fine-tuned with; all programs take
it from there, so that two cannot be mixed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.config import Config, option, register
from gpt_jax.data.tokenizers.base import SpecialTokens

START = "pad"  # first token of a decoder that answers in text
END = "sep"  # ends the input and the answer of a text-to-text model
Ids = SpecialTokens | Mapping[str, int]  # of special tokens, by name


class Format(Config):
  """Base of the formats: fields of ids to a sequence of ids."""

  # Names of the special tokens that it puts in; (): it reads bare texts
  special: tuple[str, ...] = ()
  both_orders = False  # whether similarity reads a pair in both orders, or as it is given
  writes_answers = False  # whether the model answers in text, after what it has read
  # The transform of a new ClassifyHead on one token, where the trunk has no pooler
  head_transform = "none"

  @property
  def of_window(self) -> "Format":
    """The format without windows, see tasks.windows."""
    return self

  def windowed(self, encoded: Any) -> Any:
    """Examples in the format `of_window`, as this one reads those longer than the context."""
    return encoded

  def overhead(self, fields: int) -> int:
    """How many special tokens a sequence of that many fields gets."""
    raise NotImplementedError

  def truncate(self, lengths: np.ndarray, context: int) -> np.ndarray:
    """How many tokens of each field remain, where the task has no rule; see each_half."""
    return longer_first(lengths, context, self.overhead(lengths.shape[1]))

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    """The ids of a sequence, int32 [t]."""
    raise NotImplementedError

  def spread(self, fields: Sequence[np.ndarray], fill: int) -> np.ndarray:
    """Values [t] of a sequence from those of its fields' ids; special tokens get `fill`."""
    return self.join(fields, dict.fromkeys(self.special, fill))

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    """Token types [t] of fields of these lengths; None: the format has none."""
    return None

  def anchor(self, ids: np.ndarray) -> int:
    """The index at which a sequence [t] is read: its last token."""
    return len(ids) - 1


@register("gpt_format")
@dataclasses.dataclass(frozen=True)
class GPTFormat(Format):
  """<start> field … [<delimiter> last field] <extract>, read at <extract> (section 3.3)."""

  special = ("start", "delimiter", "extract")
  both_orders = True

  def overhead(self, fields: int) -> int:
    return 2 + (fields > 1)

  def truncate(self, lengths: np.ndarray, context: int) -> np.ndarray:
    return each_half(lengths, context, self.overhead(lengths.shape[1]))

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    parts = list(fields)
    if len(parts) > 1:
      parts.insert(-1, np.array([special["delimiter"]]))
    return np.concatenate([[special["start"]], *parts, [special["extract"]]]).astype(np.int32)


@register("plain_format")
@dataclasses.dataclass(frozen=True)
class PlainFormat(Format):
  """field field …, read at the last token that is not the padding, as transformers'
  GPT2ForSequenceClassification, whose tokenizer adds no special tokens.
  """

  padding: int = option(-1, "id of the padding token, which a text may hold, too; -1: none", low=-1)

  def overhead(self, fields: int) -> int:
    return 0

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    return np.concatenate(fields).astype(np.int32)

  def anchor(self, ids: np.ndarray) -> int:
    return int(np.flatnonzero(ids != self.padding).max(initial=0))


class _Framed(Format):
  """Base of <cls> a <sep>, or <cls> a <sep> … b <sep>, read at <cls>.

  Of more than two fields the first is a, the others b: of RACE, article, and question with option.
  """

  special = ("cls", "sep")
  between = 1  # how many <sep> are between a and b

  def overhead(self, fields: int) -> int:
    return 2 if fields == 1 else 2 + self.between

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    first, *others = fields
    middle = [[special["sep"]] * self.between, *others] if others else []
    return np.concatenate([[special["cls"]], first, *middle, [special["sep"]]]).astype(np.int32)

  def anchor(self, ids: np.ndarray) -> int:
    return 0


@register("bert_format")
@dataclasses.dataclass(frozen=True)
class BERTFormat(_Framed):
  """<cls> a <sep> b <sep> (Devlin et al. 2018, figure 4); types are 0 up to the first <sep>."""

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    types = np.zeros(sum(lengths) + self.overhead(len(lengths)), np.int32)
    types[lengths[0] + 2 :] = 1  # after <cls>, the first field and its <sep>
    return types


@register("roberta_format")
@dataclasses.dataclass(frozen=True)
class RoBERTaFormat(_Framed):
  """<cls> a <sep> <sep> b <sep>, without token types (Liu et al. 2019; fairseq,
  models/roberta/hub_interface.py).
  """

  between = 2
  head_transform = "dense"


@register("text_to_text")
@dataclasses.dataclass(frozen=True)
class TextToText(Format):
  """field … field <sep>: what a text-to-text model reads; it then writes the answer and <sep>."""

  special = (START, END)
  writes_answers = True

  def overhead(self, fields: int) -> int:
    return 1

  def truncate(self, lengths: np.ndarray, context: int) -> np.ndarray:
    return longest_first(lengths, context, self.overhead(lengths.shape[1]))

  def join(self, fields: Sequence[np.ndarray], special: Ids) -> np.ndarray:
    return np.concatenate([*fields, [special[END]]]).astype(np.int32)


# The defaults of what encodes examples, by how a task is answered.
GPT, T5 = GPTFormat(), TextToText()


def each_half(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates each field of a pair that does not fit to half the context, a single field to all.

  As OpenAI's code does (openai/train.py:377), which cuts a pair that fits, too, where one text has
  more than half.

  Args:
    lengths: int [S, F], tokens of each field of S sequences.
    context: the longest sequence, with its special tokens.
    overhead: the special tokens of a sequence.

  Returns:
    int [S, F], how many tokens of each field remain, from its head.
  """
  if lengths.shape[1] != 2:
    return longest_first(lengths, context, overhead)
  too_long = lengths.sum(axis=1, keepdims=True) > context - overhead
  # 254 for each text of a pair at 512: with three special tokens one position stays empty.
  return np.where(too_long, np.minimum(lengths, context // 2 - 2), lengths)


def longer_first(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Takes tokens from the end of the longer text of a pair until it fits; of equal ones, of a.

  As "longest_first" of the package `tokenizers` (src/utils/truncation.rs), and so of transformers;
  google-research/bert leaves an odd token to a. Where several fields are b, the last loses its
  tokens first. Arguments as each_half.
  """
  room = context - overhead
  first, others = lengths[:, :1], lengths[:, 1:]
  rest = others.sum(axis=1, keepdims=True)
  half = room // 2 + np.where(first > rest, room % 2, 0)  # the odd token stays in the longer one
  kept_first = np.minimum(first, np.maximum(room - rest, half))
  left = room - kept_first
  before = np.cumsum(others, axis=1) - others
  return np.concatenate([kept_first, np.clip(left - before, 0, others)], axis=1)


def first_field(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates the first field (an article) and keeps the others (question, option) whole.

  Neither the paper nor its code says how it truncated RACE. The other fields are truncated, to
  equal parts, only if they fill the context. Arguments as each_half.
  """
  room = context - overhead
  others = lengths[:, 1:]
  too_long = others.sum(axis=1, keepdims=True) > room
  others = np.where(too_long, np.minimum(others, room // others.shape[1]), others)
  first = np.minimum(lengths[:, :1], room - others.sum(axis=1, keepdims=True))
  return np.concatenate([first, others], axis=1)


def longest_first(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates the longest fields of a sequence, to equal lengths, until all fit, so that an article
  is cut and its question stays. Arguments as each_half.
  """
  room = context - overhead
  limit = np.full(len(lengths), room // lengths.shape[1])
  # Every turn either settles a field or finds the limit final.
  for _ in range(lengths.shape[1]):
    # What shorter fields leave is shared by those at the limit.
    short = lengths <= limit[:, None]
    left = room - np.where(short, lengths, 0).sum(axis=1)
    limit = np.where(short.all(axis=1), limit, left // np.maximum((~short).sum(axis=1), 1))
  too_long = lengths.sum(axis=1) > room
  return np.where(too_long[:, None], np.minimum(lengths, limit[:, None]), lengths)
