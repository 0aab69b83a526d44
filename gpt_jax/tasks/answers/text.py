"""Tasks as text to text (T5, Raffel et al. 2020, section 2.4): examples and answers in words.

  mnli hypothesis: The cat slept. premise: The cat is awake.   ->   contradiction

The columns follow the name of the task, sorted by their own names, as in
text-to-text-transfer-transformer, data/glue_utils.py. The answer is the label. Of a task with
scores (STS-B) it is one of 26 words, the score rounded to a multiple of 0.2. The options of a
multiple-choice task are columns like all others, and its answer is the label of the right one as
the rows write it: "A", or for Story Cloze "1".
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpt_jax.config import register
from gpt_jax.data.tokenizers.base import SpecialTokens, Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.number import parse_number
from gpt_jax.tasks.encoding import Encoded, Example, encode
from gpt_jax.tasks.formats import Format
from gpt_jax.tasks.metrics import Metric, f1
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import LabeledTask, Task, most_likely
from gpt_jax.tasks.transforms import Sequences

START = "pad"  # the decoder's first token
END = "sep"  # ends inputs and answers
NO_NUMBER = -1.0  # T5's value of an output that is no number
Z_LOSS = 1e-4  # of T5, in fine-tuning too
_WORDS_PER_POINT = 5  # of scores: 0.0, 0.2, …


@register("text_to_text")
@dataclasses.dataclass(frozen=True)
class TextToText:
  """field … field <sep>: what a text-to-text model reads; it then writes the answer and <sep>."""

  special = (START, END)
  both_orders = False

  def overhead(self, fields: int) -> int:
    del fields
    return 1

  def truncate(self, lengths: np.ndarray, context: int) -> np.ndarray:
    return longest_first(lengths, context, self.overhead(lengths.shape[1]))

  def join(self, fields: Sequence[np.ndarray], special: SpecialTokens) -> np.ndarray:
    return np.concatenate([*fields, [special[END]]]).astype(np.int32)

  def spread(self, fields: Sequence[np.ndarray], fill: int) -> np.ndarray:
    return np.concatenate([*fields, [fill]]).astype(np.int32)

  def types(self, lengths: Sequence[int]) -> np.ndarray | None:
    del lengths
    return None

  def anchor(self, ids: np.ndarray) -> int:
    return len(ids) - 1


def longest_first(lengths: np.ndarray, context: int, overhead: int) -> np.ndarray:
  """Truncates the longest fields of a sequence, to equal lengths, until all of them fit.

  So an article is cut, and its question stays. The arguments are those of formats.each_half.
  """
  room = context - overhead
  limit = np.full(len(lengths), room // lengths.shape[1])
  for _ in range(lengths.shape[1]):
    # What shorter fields leave is shared by those at the limit.
    short = lengths <= limit[:, None]
    left = room - np.where(short, lengths, 0).sum(axis=1)
    limit = np.where(short.all(axis=1), limit, left // np.maximum((~short).sum(axis=1), 1))
  too_long = lengths.sum(axis=1) > room
  return np.where(too_long[:, None], np.minimum(lengths, limit[:, None]), lengths)


@dataclasses.dataclass(frozen=True)
class EncodedText(Encoded):
  """A data set as token ids; a sequence is an input with its answer, where it has one.

  Attributes:
    targets: the ids of each example's answer with its end, int32 [t]; empty if it is unlabeled.
    words: every answer of the task, as the tokenizer spells it.
    longest: tokens of the longest of them, with its end.
  """

  targets: tuple[np.ndarray, ...] = ()
  words: tuple[str, ...] = ()
  longest: int = 0

  @property
  def source_lengths(self) -> np.ndarray:
    """Tokens of each input with its end, int [N]."""
    return super().lengths[:, 0]

  @property
  def lengths(self) -> np.ndarray:
    """Tokens of each input and its answer, int [N, 1]."""
    targets = np.array([len(target) for target in self.targets])
    return (self.source_lengths + targets)[:, None]

  def source(self, n: int) -> np.ndarray:
    """The ids of an input with its end, int32 [t]."""
    return super().sequence(n, 0)

  def sequence(self, n: int, c: int) -> np.ndarray:
    """The ids of an input and its answer, int32 [t]."""
    return np.concatenate([super().sequence(n, c), self.targets[n]])


@dataclasses.dataclass(frozen=True)
class TextTask:
  """A task with one label per example, whose inputs and labels are texts.

  It has what a LabeledTask has, but for the loss. Its predictions are what the model wrote: a
  label, another text, or None for a text without an end.

  Attributes:
    task: the task that reads the rows and has the metrics.
    named: what its inputs begin with.
  """

  task: Task
  named: str

  kind = "text to text"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "language", "special_tokens": True, "z_loss": Z_LOSS}

  @property
  def name(self) -> str:
    return self.task.name

  @property
  def labels(self) -> tuple[str, ...]:
    """The words that answer."""
    if not self.has_scores:
      return self.task.labels
    low, high = float(self.task.labels[0]), float(self.task.labels[-1])
    count = round((high - low) * _WORDS_PER_POINT) + 1
    return tuple(f"{low + i / _WORDS_PER_POINT:.1f}" for i in range(count))

  @property
  def columns(self) -> tuple[str, ...]:
    return self.task.columns

  @property
  def pair(self) -> str:
    return self.task.pair

  @property
  def metrics(self) -> Mapping[str, Metric]:
    return self.task.metrics

  @property
  def primary_metric(self) -> str:
    return self.task.primary_metric

  @property
  def tfds(self) -> tuple[str, ...]:
    return self.task.tfds

  @property
  def paper(self) -> str:
    return ""  # GPT-1's results are of another method

  @property
  def has_scores(self) -> bool:
    """Whether the metrics compare numbers, as STS-B's."""
    return self.task.value is not most_likely

  def examples(self, data_dir: str, split: str) -> list[Example]:
    """See Task.examples."""
    return self._with_texts().examples(data_dir, split)

  def example(self, row: Row) -> Example:
    return self._with_texts().example(row)

  def encode(
    self,
    examples: list[Example],
    tokenizer: Tokenizer,
    context: int,
    format: Format = TextToText(),
  ) -> EncodedText:
    """Inputs and answers as token ids; together, and with any other answer, they fit the context.

    Raises:
      InputError: as encoding.encode, or an answer that the vocabulary does not have.
    """
    words = self.encode_words(tokenizer)
    longest = max(map(len, words))
    room = context - longest
    encoded = encode(examples, tokenizer, room, None, self.task.num_classes, format)
    answers = [self._answer(example) for example in examples]
    fields = {field.name: getattr(encoded, field.name) for field in dataclasses.fields(encoded)}
    return EncodedText(
      **{**fields, "context": context},
      targets=tuple(words[i] if i is not None else np.zeros(0, np.int32) for i in answers),
      words=tuple(tokenizer.decode(word[:-1]).strip() for word in words),
      longest=longest,
    )

  def encode_words(self, tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each label, with the end token after them.

    Raises:
      InputError: a label with pieces that the vocabulary does not know, or two that it spells
        alike.
    """
    encoded: list[np.ndarray] = []
    spellings: dict[str, str] = {}
    for label, ids in zip(self.labels, tokenizer.encode_many(list(self.labels)), strict=True):
      if not len(ids) or tokenizer.byte_fallback[ids].any():
        raise InputError(
          f"{self.name}: its answer {label!r} is no word of the vocabulary; use one that was "
          "prepared from text in which all its characters occur"
        )
      spelling = tokenizer.decode(ids).strip()
      if other := spellings.get(spelling):
        raise InputError(f"{self.name}: the vocabulary spells {other!r} and {label!r} alike")
      spellings[spelling] = label
      encoded.append(np.append(ids, tokenizer.special[END]).astype(np.int32))
    return encoded

  def describe_labels(self, labels: np.ndarray) -> str:
    return self.task.describe_labels(labels)

  def read(self, outputs: Sequence[str | None], words: Sequence[str]) -> list[str | None]:
    """Replaces each output that spells a label by that label; all others stay.

    Args:
      outputs: from decode_answer.
      words: see EncodedText.
    """
    labels = dict(zip(words, self.labels, strict=True))
    return [output if output is None else labels.get(output, output) for output in outputs]

  def score(self, predictions: Sequence[str | None], truth: np.ndarray) -> dict[str, float]:
    """The task's metrics, and "valid", the share of outputs that are a label.

    An output that is no label is wrong: a class of its own, or as a score NO_NUMBER.

    Args:
      predictions: N texts, from `read`.
      truth: float32 [N, K], see Encoded.labels.
    """
    expected = self.task.value(np.asarray(truth))
    predicted = np.array([self._value(prediction) for prediction in predictions])
    scores = {}
    for name, metric in self.metrics.items():
      # F1 is that of class 1: what is no label counts as not of this class.
      values = np.maximum(predicted, 0) if metric is f1 else predicted
      scores[name] = float(metric(expected, values))
    scores["valid"] = float(np.mean([prediction in self.labels for prediction in predictions]))
    if np.ptp(predicted) == 0:
      scores["degenerate"] = 1.0
    return scores

  def result(self, prediction: str | None, truth: np.ndarray) -> dict[str, Any]:
    """The reported result of one example: without probabilities, and with a problem if the output
    is no label.
    """
    del truth
    if prediction in self.labels:
      return {"prediction": prediction, "probabilities": {}}
    written = "an answer without an end" if prediction is None else f"{prediction!r}"
    problem = f"the model wrote {written}, which is no label"
    return {"prediction": None, "probabilities": {}, "problem": problem}

  def _value(self, prediction: str | None) -> float:
    if not self.has_scores:
      return self.labels.index(prediction) if prediction in self.labels else -1
    try:
      return parse_number(prediction or "")
    except ValueError:
      return NO_NUMBER

  def _answer(self, example: Example) -> int | None:
    """The index of an example's answer in `labels`; None: it is unlabeled."""
    if example.label is None:
      return None
    value = float(self.task.value(np.asarray([example.label]))[0])
    if not self.has_scores:
      return int(value)
    above = round(value - float(self.task.labels[0]), 6)  # exact again, so that ties are ties
    return int(np.rint(above * _WORDS_PER_POINT))

  def _with_texts(self) -> Task:
    """The task whose rows become one sequence of named columns."""
    names = sorted(self.columns)

    def named(*texts: str) -> Sequences:
      by_name = dict(zip(self.columns, texts, strict=True))
      fields = [f"{name}: {by_name[name]}" for name in names]
      # With the spaces that are between them in the whole text.
      return ((f"{self.named} {fields[0]}", *(f" {field}" for field in fields[1:])),)

    return dataclasses.replace(self.task, transform=named)


def as_text(task: LabeledTask[Any], named: str = "") -> TextTask:
  """A task as text to text.

  Args:
    named: what its inputs begin with, for another set of a task that a model was trained on (mnli
      for mnli-mismatched); "": its own name.

  Raises:
    InputError: a task without one label per example.
  """
  if type(task) is not Task:
    raise InputError(
      f"{task.name}: a text-to-text model writes one label per example; {task.kind} needs another "
      "checkpoint"
    )
  return TextTask(task, named or task.name)


def encode_prompt(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """The ids of an input that a user writes, with its end, int32 [t].

  "<sentinel_0>" in it is the special token, so that a model fills in what is missing there.

  Raises:
    InputError: a sentinel that the tokenizer does not have.
  """
  parts = re.split(r"<(sentinel_\d+)>", text)  # texts and names take turns
  ids: list[np.ndarray] = []
  for number, part in enumerate(parts):
    ids.append(np.array([tokenizer.special[part]]) if number % 2 else tokenizer.encode(part))
  return np.concatenate([*ids, [tokenizer.special[END]]]).astype(np.int32)


def decode_answer(ids: Sequence[int], tokenizer: Tokenizer) -> str | None:
  """The text up to the end, with special tokens as "<sentinel_0>"; None: it has no end."""
  ids = list(ids)
  if (end := tokenizer.special[END]) not in ids:
    return None
  return spell(ids[: ids.index(end)], tokenizer)


def spell(ids: Sequence[int], tokenizer: Tokenizer) -> str:
  """The text of ids, with special tokens as "<sentinel_0>"."""
  names = {i: name for name, i in tokenizer.special.items()}
  parts = []
  for name, group in itertools.groupby(ids, names.get):
    run = list(group)
    parts += [tokenizer.decode(run).strip()] if name is None else [f"<{name}>"] * len(run)
  return " ".join(parts)
