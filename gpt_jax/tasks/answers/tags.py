"""Token tagging: one tag per word, learned and predicted at the word's first token.

A text that exceeds the context is read in pieces of whole words, and a word without tokens as the
unknown one: there are as many tags as words, whatever the text is. In a causal model the state of a
token has read only what precedes it, and the token itself.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded, share_unknown
from gpt_jax.tasks.formats import GPT, Format
from gpt_jax.tasks.metrics import Metric, SpanMetric
from gpt_jax.tasks.readers import Row, of_form


class TaggedExample(NamedTuple):
  """One text, with the tag of each word as its label; None: untagged."""

  words: tuple[str, ...]
  label: tuple[str, ...] | None
  location: str

  @property
  def texts(self) -> list[str]:
    return [" ".join(self.words)]


@dataclasses.dataclass(frozen=True)
class TagTask(LabeledTask):
  """A task with one tag per word."""

  name: str
  labels: tuple[str, ...]  # the K tags
  read: Callable[[str, str], Iterable[TaggedExample]]  # (data_dir, split) -> examples
  metrics: Mapping[str, Metric]  # name -> metric(truth [n], predicted [n]) over all tagged words
  paper: str = ""
  # Name -> metric(truth, predicted) of the tags' names, a list for each text; they come first
  span_metrics: Mapping[str, SpanMetric] = dataclasses.field(default_factory=dict)
  # Whether a word is encoded with the space before it, as in a text; which vocabularies of byte-
  # level BPE tell from a word at the start of a text
  spaced: bool = False

  kind = "tagging"
  columns = ("text",)
  not_per_text = "labels every word; use predict.run"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "tag_head", "num_classes": len(self.labels)}

  @property
  def primary_metric(self) -> str:
    return next(iter({**self.span_metrics, **self.metrics}))

  def check_metrics(self) -> None:
    super().check_metrics()
    for metric in self.span_metrics.values():
      metric([["O"]], [["O"]])

  def examples(self, data_dir: str, split: str) -> list[TaggedExample]:
    return list(self.read(data_dir, split))

  def example(self, row: Row) -> TaggedExample:
    """The words of a text, see `split_words`."""
    words = split_words(row.texts[0])
    if not words:
      raise InputError(f"{row.location}: column 'text' is empty; fill it in or remove the row")
    return TaggedExample(words, None, row.location)

  def encode(
    self, examples: list[TaggedExample], tokenizer: Tokenizer, context: int, format: Format = GPT
  ) -> Encoded:
    """Each word by itself, in as few sequences as have room for all words of a text; of a word that
    exceeds the context the end is cut, and its tag stays.
    """
    if not examples:
      raise InputError("no examples to encode")
    room = context - format.overhead(1)
    pieces = [self._pieces(example, tokenizer, room) for example in examples]
    # A power of two, since each number of sequences is a shape to compile.
    most = 1 << (max(map(len, pieces)) - 1).bit_length()
    fields, kept = np.zeros((2, len(examples), most, 1), np.int32)  # [N, C, F]
    texts: list[np.ndarray] = []
    for n, of_text in enumerate(pieces):
      for c, (ids, _) in enumerate(of_text):
        fields[n, c], kept[n, c] = len(texts), min(len(ids), room)
        texts.append(ids)
    return Encoded(
      texts,
      fields,
      kept,
      np.zeros((len(examples), 1), np.float32),  # no label of the whole text
      [example.location for example in examples],
      context,
      tokenizer.special,
      share_unknown(texts, tokenizer),
      tags=[of_ids for _, of_ids in itertools.chain(*pieces)],
      format=format,
    )

  def unread(self, example: TaggedExample, tokenizer: Tokenizer) -> str:
    if any(map(len, tokenizer.encode_many(list(example.words)))):
      return ""
    return f"{example.location}: no word has a token: the tokenizer drops all of the text"

  def loss(self, predictions: Any, truth: Any) -> float:
    """The mean cross-entropy of the tagged tokens in nats; see `score`."""
    # Of all texts as one: [n, K] and [n].
    probabilities, tags = np.concatenate(predictions), np.concatenate(truth)
    # Where there is no tag, -1, tag 0 is read, and dropped by the mask after it.
    of_truth = np.take_along_axis(probabilities, np.maximum(tags, 0)[:, None], axis=1)[tags >= 0]
    return float(-np.log(np.maximum(of_truth, 1e-30)).mean())

  def score(self, predictions: Any, truth: Any) -> dict[str, float]:
    """See LabeledTask.score; of lists of probabilities [t, K] and of tags [t], -1 for none."""
    tags = np.concatenate(truth)
    expected = tags[tags >= 0]  # the first token of each word has its tag
    predicted = np.concatenate([p.argmax(-1) for p in predictions])[tags >= 0]
    named = [self._names(t[t >= 0]) for t in truth]
    guessed = [self._names(p[t >= 0].argmax(-1)) for p, t in zip(predictions, truth, strict=True)]
    scores = {name: float(metric(named, guessed)) for name, metric in self.span_metrics.items()}
    for name, metric in self.metrics.items():
      scores[name] = float(metric(expected, predicted))
    if np.ptp(predicted) == 0:
      scores["degenerate"] = 1.0
    return scores

  def result(self, prediction: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """The tag of each word, separated by spaces."""
    of_words = self._names(prediction[truth >= 0].argmax(-1))
    return {"prediction": " ".join(of_words), "probabilities": {}}

  def _names(self, tags: np.ndarray) -> list[str]:
    return [self.labels[i] for i in tags]

  def _pieces(
    self, example: TaggedExample, tokenizer: Tokenizer, room: int
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of a text, and the tag at the first of a word, -1 at the others; in pieces of whole
    words, of at most `room` ids or of one word.
    """
    # Tags also say where words begin, which predictions need: any tag does.
    label = example.label or (self.labels[0],) * len(example.words)
    for tag in label:
      if tag not in self.labels:
        known = f"{self.labels}{of_form(tag, self.labels)}"
        raise InputError(f"{example.location}: tag {tag!r}: should be one of {known}")
    space = " " if self.spaced else ""
    words = [example.words[0], *(f"{space}{word}" for word in example.words[1:])]
    pieces: list[tuple[list[int], list[int]]] = [([], [])]
    for ids, tag in zip(tokenizer.encode_many(words), label, strict=True):
      if not len(ids):
        ids = _unknown(tokenizer)
      if pieces[-1][0] and len(pieces[-1][0]) + len(ids) > room:
        pieces.append(([], []))
      pieces[-1][0].extend(ids)
      pieces[-1][1].extend([self.labels.index(tag)] + [-1] * (len(ids) - 1))
    return [(np.array(ids, np.int32), np.array(tags, np.int32)) for ids, tags in pieces]


def split_words(text: str) -> tuple[str, ...]:
  """The words between spaces, tabs and line ends; other space (U+00A0) is part of a word."""
  return tuple(filter(None, re.split(r"[ \t]|\r?\n", text)))


def _unknown(tokenizer: Tokenizer) -> np.ndarray:
  """The ids that stand for a word of which the tokenizer drops everything."""
  if tokenizer.unknown_id is not None:
    return np.array([tokenizer.unknown_id])
  # A vocabulary of bytes spells what stands for a character that cannot be read.
  ids = tokenizer.encode("\ufffd")
  return ids if len(ids) else tokenizer.encode("?")
