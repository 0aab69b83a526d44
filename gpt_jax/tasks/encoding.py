"""Labeled examples as token sequences: N examples of C sequences of F fields, and K classes."""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.batch import Batch
from gpt_jax.data.tokenizers.base import SpecialTokens, Tokenizer
from gpt_jax.errors import InputError, agree, counted
from gpt_jax.tasks.formats import GPT, Format

_MIN_CONTEXT = 8
Truncate = Callable[[np.ndarray, int, int], np.ndarray]  # see formats.each_half


class Example(NamedTuple):
  """One example of a task."""

  sequences: tuple[tuple[str, ...], ...]  # C sequences of F text fields each
  label: tuple[float, ...] | None  # a distribution over the K classes; None: unlabeled
  location: str  # "file:line"

  @property
  def texts(self) -> list[str]:
    """The distinct fields."""
    return list(dict.fromkeys(itertools.chain(*self.sequences)))


def subset(
  examples: list[Any],
  count: int,
  by_label: bool = False,
  as_hashed: Callable[[Any], Any] = lambda example: example,
) -> list[Any]:
  """`count` examples in their order, chosen by a hash of each; all if count is 0.

  Not by the place in the file, which may be sorted; most stay chosen when rows are added.

  Args:
    by_label: each label has its share of them, and one example if there are enough.
    as_hashed: the example whose hash counts, for programs that hold it in another form.
  """
  if count < 0:
    raise InputError(f"{count} examples: should be at least 1, or 0 for all")
  if not count or count >= len(examples):
    return examples
  digests = [_digest(as_hashed(example)) for example in examples]
  order = sorted(range(len(examples)), key=digests.__getitem__)
  if by_label:
    sizes = collections.Counter(example.label for example in examples)
    ranks: dict[int, float] = {}  # how far along its label an example is; 0: its first
    seen: collections.Counter[Any] = collections.Counter()
    for n in order:
      label = examples[n].label
      ranks[n] = (seen[label] + 0.5) / sizes[label] if seen[label] else 0.0
      seen[label] += 1
    order.sort(key=ranks.__getitem__)
  return [examples[n] for n in sorted(order[:count])]


def _digest(example: Any) -> bytes:
  # Of the texts alone: further rows change the unit of numbers, and may bring further labels.
  content = repr(example._replace(label=None, location="")).encode(errors="surrogatepass")
  return hashlib.blake2b(content, digest_size=8).digest()


def without_labels(examples: list[Any], labeled: list[Any]) -> list[Any]:
  """The examples that are not among the labeled ones, without their labels."""
  chosen = set(map(id, labeled))  # the same objects: several examples may have one location
  return [example._replace(label=None) for example in examples if id(example) not in chosen]


def count_repeated(examples: list[Any], training: list[Any]) -> int:
  """How many examples have the texts of a training example, whatever their labels."""
  unlabeled = {example._replace(label=None, location="") for example in training}
  return sum(example._replace(label=None, location="") in unlabeled for example in examples)


def window_begins(length: int, room: int, stride: int = 0) -> list[int]:
  """Where the windows of a text of `length` tokens begin; each has `room`, the last one too.

  They are `stride` tokens apart, at most `room`, so that no token is left out; 0: no overlap.
  """
  if length <= room:
    return [0]
  step = min(stride or room, room)
  return [min(begin, length - room) for begin in range(0, length - room + step, step)]


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A data set as token ids; each distinct text is kept once."""

  texts: list[np.ndarray]  # int32 ids of each distinct text
  fields: np.ndarray  # int32 [N, C, F], indices into texts
  # int32 [N, C, F], how many ids of each field are kept, from its head; all 0: the example has no
  # such sequence, as a text of few windows
  kept: np.ndarray
  labels: np.ndarray  # float32 [N, K]; zero for unlabeled examples
  locations: list[str]  # N times "file:line"
  context: int  # the longest sequence allowed, in tokens
  special: SpecialTokens
  unknown_share: float  # see share_unknown
  # int32, for each distinct text the tag of each id, -1 for none; None: a task without tags
  tags: list[np.ndarray] | None = None
  format: Format = GPT  # how fields become a sequence; windows are sequences already
  strings: tuple[str, ...] = ()  # each distinct text as it was given; empty if they were not kept
  # Examples at the end that are trained on without a label: their loss weights are 0
  unlabeled: int = 0

  def __len__(self) -> int:
    return len(self.locations)

  def whole_batches(self, size: int) -> int:
    """The batches in an epoch, without a partial last one. Raises InputError if none is whole."""
    if len(self) < size:
      raise InputError(
        f"{counted(len(self), 'example')}: fewer than one batch; batch_size is {size}"
      )
    return len(self) // size

  @property
  def lengths(self) -> np.ndarray:
    """Tokens of each sequence with its special tokens, int [N, C]."""
    kept = self.kept.sum(axis=-1)
    return np.where(kept, kept + self.format.overhead(self.kept.shape[-1]), 0)

  def sequence(self, n: int, c: int) -> np.ndarray:
    """The ids of sequence c of example n, int32 [t]."""
    return self.format.join(self._kept(self.texts, n, c), self.special)

  def sequence_tags(self, n: int, c: int) -> np.ndarray:
    """The tag of each id of `sequence`, int32 [t]; -1 for none, as for special tokens."""
    assert self.tags is not None, "a task without tags"
    return self.format.spread(self._kept(self.tags, n, c), fill=-1)

  def sequence_types(self, n: int, c: int) -> np.ndarray | None:
    """The token type of each id of `sequence`, int32 [t]; None: the format has none."""
    return self.format.types(self.kept[n, c].tolist())

  @property
  def truncated(self) -> np.ndarray:
    """Whether tokens of each example are left out, bool [N]."""
    return np.any(self.kept < self._whole, axis=(1, 2))

  @property
  def truncation(self) -> str:
    """See describe_truncation."""
    kept, lengths = self.kept.sum(axis=(1, 2)), self._whole.sum(axis=(1, 2))
    return describe_truncation(kept, lengths, self.context)

  @property
  def _whole(self) -> np.ndarray:
    """Tokens of each field before truncation, int [N, C, F]; 0 where there is no sequence."""
    lengths = np.array(list(map(len, self.texts)))[self.fields]
    return lengths * self.kept.any(-1, keepdims=True)

  @property
  def truth(self) -> Any:
    """The targets of the predictions: `labels`, or a list of the tags [t] of each example."""
    if self.tags is None:
      return self.labels
    present: np.ndarray = np.any(self.kept, axis=-1)  # [N, C]
    return [
      np.concatenate([self.sequence_tags(n, c) for c in np.flatnonzero(present[n]).tolist()])
      for n in range(len(self))
    ]

  @property
  def content(self) -> list[Any]:
    """The arrays that make two data sets the same one, for a run that resumes."""
    return [self.texts, self.fields, self.kept, self.labels, self.tags]

  def _kept(self, values: list[np.ndarray], n: int, c: int) -> list[np.ndarray]:
    fields = zip(self.fields[n, c], self.kept[n, c], strict=True)
    return [values[text][:count] for text, count in fields]

  def finish(self, batch: Batch, examples: np.ndarray) -> Batch:
    """A packed batch with what its examples need besides; segment 1 + n is of examples[n]."""
    return batch

  @property
  def of_one_sequence(self) -> "Encoded":
    """Each sequence as an example of its own; the labels are those of the examples."""
    present: np.ndarray = np.any(self.kept, axis=-1)  # [N, C]
    owners = np.nonzero(present)[0]
    return dataclasses.replace(
      self,
      fields=self.fields[present][:, None],
      kept=self.kept[present][:, None],
      labels=self.labels[owners],
      locations=[self.locations[n] for n in owners.tolist()],
      unlabeled=int((owners >= len(self) - self.unlabeled).sum()),
    )

  @property
  def streams(self) -> "tuple[Sequence[Encoded], Encoded | None]":
    """The examples with labels, of each task, and those without."""
    labeled = len(self) - self.unlabeled
    rest = self.part(labeled, len(self)) if self.unlabeled else None
    return (self.part(0, labeled),), rest

  def part(self, first: int, last: int) -> "Encoded":
    """Examples first to last - 1, as a data set of their own in which all count."""
    return dataclasses.replace(
      self,
      fields=self.fields[first:last],
      kept=self.kept[first:last],
      labels=self.labels[first:last],
      locations=self.locations[first:last],
      unlabeled=0,
    )

  def report(self, balance: str = "") -> str:
    """Lines to read before training: counts, lengths, `balance` of labels, unknown ids, cuts."""
    text_lengths, lengths = self._whole, self.lengths  # [N, C, F] and [N, C]
    truncated = self.kept < text_lengths
    present = lengths > 0
    count = present.sum(axis=1)
    least = f"{count.min()} to " if count.min() < count.max() else ""
    sequences = f" of {least}{count.max()} sequences" if count.max() > 1 else ""
    lines = [
      f"{counted(len(self), 'example')}{sequences}, in tokens: median "
      f"{np.median(lengths[present]):.0f}, longest {lengths.max()}",
      *([balance] if balance else []),
      f"unknown or byte-fallback tokens: {self.unknown_share:.2%}",
    ]
    for f in range(self.fields.shape[-1]):
      if truncated[..., f].any():
        lost = 1 - self.kept[..., f].sum() / text_lengths[..., f].sum()
        lines.append(
          f"field {f + 1}: truncated in {truncated[present, f].mean():.1%} of sequences, "
          f"{lost:.1%} of its tokens"
        )
    if not truncated.any():
      lines.append(f"nothing truncated to the context of {self.context}")
    return "\n".join(lines)


def describe_truncation(kept: np.ndarray, lengths: np.ndarray, context: int) -> str:
  """How many rows are truncated, and by how much, "" if none is, by the tokens that are read of
  each row and all of its tokens, int [N].
  """
  cut = kept < lengths
  if not (count := int(cut.sum())):
    return ""
  lost = 1 - kept[cut].sum() / lengths[cut].sum()
  return (
    f"{count:,} of {len(cut):,} rows {agree(count)} longer than the context of {context} tokens: "
    f"{lost:.1%} of {agree(count, 'its', 'their')} tokens are not read"
  )


def encode(
  examples: list[Example],
  tokenizer: Tokenizer,
  context: int,
  truncate: Truncate | None,
  num_classes: int,
  format: Format = GPT,
  partial: bool = False,
) -> Encoded:
  """Encodes examples as token ids.

  Args:
    tokenizer: has the format's special tokens.
    context: the longest sequence allowed, in tokens, special tokens included.
    truncate: see formats.each_half; None: as the format does.
    num_classes: K.
    partial: fields of a sequence may have no token, but for one of them.
  """
  if not examples:
    raise InputError("no examples to encode")
  if context < _MIN_CONTEXT:
    raise InputError(
      f"a context of {context} tokens is too short for two texts and their special tokens; "
      f"use {_MIN_CONTEXT} or more"
    )
  unlabeled = (0.0,) * num_classes  # a distribution of no weight: it adds nothing to a loss
  labels = [example.label or unlabeled for example in examples]
  C, F = len(examples[0].sequences), len(examples[0].sequences[0])
  index: dict[str, int] = {}
  numbers = []
  for example, label in zip(examples, labels, strict=True):
    if [*map(len, example.sequences)] != [F] * C or len(label) != num_classes:
      raise InputError(
        f"{example.location}: should have {C} sequences of {F} text fields, as the first example, "
        f"and a label over {num_classes} classes"
      )
    for sequence in example.sequences:
      # Equal texts, such as the article of four options, get one number and are encoded once.
      numbers += [index.setdefault(text, len(index)) for text in sequence]
  fields = np.array(numbers, np.int32).reshape(-1, C, F)
  distinct = list(index)
  texts = [np.asarray(ids, np.int32) for ids in tokenizer.encode_many(distinct)]
  lengths = np.array(list(map(len, texts)), np.int32)
  is_empty = lengths[fields] == 0  # [N, C, F]
  if partial:
    is_empty &= is_empty.all(axis=-1, keepdims=True)
  if is_empty.any():
    n, c, f = np.argwhere(is_empty)[0]
    where, text = f"{examples[n].location}: text field {f + 1}", distinct[fields[n, c, f]]
    raise InputError(f"{where} has no token: the tokenizer drops all of it, {text[:80]!r}")
  window = format.of_window
  # [N C, F]: the rules of truncation look at one sequence at a time.
  flat = lengths[fields].reshape(-1, F)
  if truncate is None:
    kept = window.truncate(flat, context)
  else:
    kept = truncate(flat, context, window.overhead(F))
  encoded = Encoded(
    texts,
    fields,
    kept.reshape(fields.shape).astype(np.int32),  # [N, C, F]
    np.array(labels, np.float32),
    [example.location for example in examples],
    context,
    tokenizer.special,
    share_unknown(texts, tokenizer),
    format=window,
    strings=tuple(distinct),
  )
  return format.windowed(encoded)


def share_unknown(texts: Sequence[np.ndarray], tokenizer: Tokenizer) -> float:
  """The share of unknown and byte-fallback ids in distinct texts, of which each counts once."""
  unknown = sum(np.count_nonzero(tokenizer.byte_fallback[ids]) for ids in texts)
  return float(unknown / sum(map(len, texts)))
