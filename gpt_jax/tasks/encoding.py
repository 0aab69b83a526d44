"""Labeled examples as token sequences with start, delimiter and extract, packed into batches of
one shape.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.errors import InputError


class Example(NamedTuple):
  """One example of a task.

  Attributes:
    sequences: C sequences of F text fields each; the last of several fields stands behind the
      delimiter.
    label: a distribution over the K outcomes; None where unlabeled.
    location: "file:line", for messages and for the output of predictions.
  """

  sequences: tuple[tuple[str, ...], ...]
  label: tuple[float, ...] | None
  location: str


def evenly(examples: list[Any], count: int) -> list[Any]:
  """So many of them, evenly from all, or all where count is 0: files may be sorted by source, as
  CoLA's and RACE's.
  """
  if not count or count >= len(examples):
    return examples
  return [examples[i * len(examples) // count] for i in range(count)]


def each_half(lengths: np.ndarray, context: int) -> np.ndarray:
  """Cuts each field of a pair to half the context, a single field to all of it (released
  train.py:377; head kept).

  Args:
    lengths: int [S, F], tokens of every field of S sequences.
    context: the longest sequence allowed, with its special tokens.

  Returns:
    int [S, F], how many tokens of every field remain, from its head.
  """
  return np.minimum(lengths, context - 2 if lengths.shape[1] == 1 else context // 2 - 2)


def first_field(lengths: np.ndarray, context: int) -> np.ndarray:
  """Cuts the first field (an article) and leaves the others (question, option) whole; arguments as
  for each_half.

  Neither the paper nor its code says how it cut RACE. Others are cut to equal parts only where they
  fill the context.
  """
  room = context - 3
  others = lengths[:, 1:]
  too_long = others.sum(axis=1, keepdims=True) > room
  others = np.where(too_long, np.minimum(others, room // others.shape[1]), others)
  first = np.minimum(lengths[:, :1], room - others.sum(axis=1, keepdims=True))
  return np.concatenate([first, others], axis=1)


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A data set as token ids: N examples of C sequences of F fields, each distinct text kept once.

  Attributes:
    texts: int32 ids of every distinct text.
    fields: int32 [N, C, F], which text.
    kept: int32 [N, C, F], how many of its ids, from the head.
    labels: float32 [N, K]; zero where unlabeled.
    locations: N times "file:line".
    context: the longest sequence allowed.
    special: the ids start, delimiter, extract.
    unknown_share: share of pieces outside the vocabulary (unknown, or spelled in bytes), in the
      distinct texts.
    tags: int32, of every distinct text the tag of each id, -1 for none; None: a task without tags.
  """

  texts: list[np.ndarray]
  fields: np.ndarray
  kept: np.ndarray
  labels: np.ndarray
  locations: list[str]
  context: int
  special: Any
  unknown_share: float
  tags: list[np.ndarray] | None = None

  def __len__(self) -> int:
    return len(self.locations)

  @property
  def lengths(self) -> np.ndarray:
    """Tokens of every sequence with its special tokens, int [N, C]."""
    return self.kept.sum(axis=-1) + (2 if self.kept.shape[-1] == 1 else 3)

  def sequence(self, n: int, c: int) -> np.ndarray:
    """The ids of sequence c of example n: <start> field … [<delimiter> last field] <extract>."""
    parts = [
      self.texts[text][:kept] for text, kept in zip(self.fields[n, c], self.kept[n, c], strict=True)
    ]
    if len(parts) > 1:
      parts.insert(-1, [self.special.delimiter])
    return np.concatenate([[self.special.start], *parts, [self.special.extract]]).astype(np.int32)

  def sequence_tags(self, n: int, c: int) -> np.ndarray:
    """The tag of each id of `sequence`, int32; -1 where there is none, as on special tokens."""
    assert self.tags is not None, "a task without tags"
    none = np.array([-1], np.int32)
    parts = [
      self.tags[t][:kept] for t, kept in zip(self.fields[n, c], self.kept[n, c], strict=True)
    ]
    if len(parts) > 1:
      parts.insert(-1, none)
    return np.concatenate([none, *parts, none])

  def report(self, labels: tuple[str, ...] = ()) -> str:
    """What to look at before training: counts, lengths, label balance, unknown pieces, what was
    truncated.

    Args:
      labels: the names of the outcomes.
    """
    whole = np.array([len(text) for text in self.texts])[self.fields]  # [N, C, F]
    lengths, cut = self.lengths, self.kept < whole
    each = f" of {lengths.shape[1]} sequences" if lengths.shape[1] > 1 else ""
    lines = [
      f"{len(self)} examples{each}, in tokens: median {np.median(lengths):.0f}, longest {lengths.max()}"
    ]
    if labeled := self.labels.sum():
      names = labels or range(self.labels.shape[1])
      shares = self.labels.sum(axis=0) / labeled
      lines.append(
        "labels: "
        + ", ".join(f"{name} {share:.1%}" for name, share in zip(names, shares, strict=True))
      )
    lines.append(f"pieces outside the vocabulary: {self.unknown_share:.2%}")
    for f in range(self.fields.shape[-1]):
      if cut[..., f].any():
        tokens = 1 - self.kept[..., f].sum() / whole[..., f].sum()
        lines.append(
          f"field {f + 1}: truncated in {cut[..., f].mean():.1%} of sequences, {tokens:.1%} of its tokens"
        )
    if not cut.any():
      lines.append(f"nothing truncated to the context of {self.context}")
    return "\n".join(lines)


def encode(
  examples: list[Example],
  tokenizer: Any,
  context: int,
  truncate: Callable[[np.ndarray, int], np.ndarray],
  num_classes: int,
) -> Encoded:
  """Turns examples into token ids.

  Args:
    examples: all with the same number of sequences and of fields.
    tokenizer: has encode_many, special and spelled, the ids that stand for no piece.
    context: the longest sequence allowed, in tokens, specials included.
    truncate: (field lengths [S, F], context) -> kept lengths; each_half or first_field.
    outcomes: K.

  Raises:
    InputError: naming the example, for a field without tokens or another number of sequences,
      fields or outcomes.
  """
  if not examples:
    raise InputError("no examples to encode")
  if context < 8:
    raise InputError(
      f"a context of {context} tokens is too short for start, two texts, delimiter and extract; use 8 or more"
    )
  shape = (len(examples[0].sequences), len(examples[0].sequences[0]))
  index: dict[str, int] = {}
  for example in examples:
    _check(example, shape, num_classes)
    for sequence in example.sequences:
      for text in sequence:
        index.setdefault(text, len(index))
  nested = [
    [[index[text] for text in sequence] for sequence in example.sequences] for example in examples
  ]
  fields = np.array(nested, np.int32)  # [N, C, F]
  texts = [np.asarray(ids, np.int32) for ids in tokenizer.encode_many(list(index))]
  lengths = np.array([len(ids) for ids in texts], np.int32)
  if not lengths.all():
    n, _, f = np.argwhere(lengths[fields] == 0)[0]
    raise InputError(
      f"{examples[n].location}: text field {f + 1} holds nothing that the tokenizer keeps"
    )
  kept = (
    truncate(lengths[fields].reshape(-1, shape[1]), context).reshape(fields.shape).astype(np.int32)
  )
  labels = np.array([example.label or (0.0,) * num_classes for example in examples], np.float32)
  unknown = sum(np.count_nonzero(tokenizer.byte_fallback[ids]) for ids in texts)
  locations = [example.location for example in examples]
  return Encoded(
    texts, fields, kept, labels, locations, context, tokenizer.special, unknown / lengths.sum()
  )


def _check(example: Example, shape: tuple[int, int], num_classes: int) -> None:
  if len(example.sequences) != shape[0] or any(
    len(sequence) != shape[1] for sequence in example.sequences
  ):
    raise InputError(
      f"{example.location}: should have {shape[0]} sequences of {shape[1]} text fields, as the first example"
    )
  if example.label is not None and len(example.label) != num_classes:
    raise InputError(
      f"{example.location}: a label over {len(example.label)} outcomes where the task has {num_classes}"
    )
