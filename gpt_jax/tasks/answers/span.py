"""Question answering by a span: the answer is a part of the context, or that it has none.

A model scores each token of the context as the first and as the last of the answer (BERT, Devlin et
al. 2018, section 4.2). The question comes first, since a causal model reads it before the context.
A context that is too long loses its end: answers there count as none in training, and are wrong.

Letters: N examples, t positions of a sequence, m tokens of a context.
"""

import collections
import dataclasses
import functools
import re
import string
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer, nonempty
from gpt_jax.errors import InputError, agree
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded, share_unknown
from gpt_jax.tasks.formats import GPT, Format
from gpt_jax.tasks.metrics import Metric
from gpt_jax.tasks.readers import Row

MAX_ANSWER = 30  # tokens, as in google-research/bert, run_squad.py


class Answer(NamedTuple):
  """A part of a context, from the character `start` on."""

  text: str
  start: int


class SpanExample(NamedTuple):
  """A question on a context."""

  question: str
  context: str
  # Answers that are right, the first is learned; (): the context has none; None: unlabeled
  label: tuple[Answer, ...] | None
  location: str

  @property
  def texts(self) -> list[str]:
    return [self.question, self.context]


class SpanTruth(NamedTuple):
  """One example as it was encoded, with what reads an answer off its scores."""

  context: str
  # int [m, 2], the characters of each token of the context that is read, from and to
  spans: np.ndarray
  # int [t], the number in `spans` of the token at each position; -1: not of the context
  numbers: np.ndarray
  anchor: int  # the position that stands for no answer
  target: tuple[int, int]  # first and last token of the answer; -1: none in what is read
  answers: tuple[str, ...]  # texts that are right


@dataclasses.dataclass(frozen=True)
class EncodedSpans(Encoded):
  """A data set as token ids; `tags` number the tokens of a context, `labels` are targets [N, 2],
  `spans` the characters [m, 2] of each id of each distinct text; a question has none.
  """

  examples: tuple[SpanExample, ...] = ()
  spans: tuple[np.ndarray, ...] = ()

  @functools.cached_property
  def truth(self) -> list[SpanTruth]:
    truth = []
    for n in range(len(self)):
      example = self.examples[n]
      spans, numbers = self.spans[self.fields[n, 0, 1]], self.sequence_tags(n, 0)
      anchor = self.format.anchor(self.sequence(n, 0))
      first, last = self.labels[n].astype(int).tolist()
      texts = tuple(answer.text for answer in example.label or ())
      truth.append(SpanTruth(example.context, spans, numbers, anchor, (first, last), texts))
    return truth


@dataclasses.dataclass(frozen=True)
class SpanTask(LabeledTask):
  """A task whose answers are parts of a context; "" for none where it `may_refuse`."""

  name: str
  read: Callable[[str, str], Iterable[SpanExample]]
  metrics: Mapping[str, Metric]
  may_refuse: bool = False

  kind = "answer span"
  labels = ()
  columns = ("question", "context")
  not_per_text = "answers by a part of the text; use predict.run"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "span_head"}

  def examples(self, data_dir: str, split: str) -> list[SpanExample]:
    return list(self.read(data_dir, split))

  def example(self, row: Row) -> SpanExample:
    question, context = row.texts
    return make_example(question, context, None, row.location)

  def encode(
    self, examples: list[SpanExample], tokenizer: Tokenizer, context: int, format: Format = GPT
  ) -> EncodedSpans:
    """Cuts contexts that are too long, and warns of answers that are cut off."""
    if not examples:
      raise InputError("no examples to encode")
    questions = list(dict.fromkeys(example.question for example in examples))
    contexts = list(dict.fromkeys(example.context for example in examples))
    texts = list(tokenizer.encode_many(questions))
    spans = [np.zeros((0, 2), int)] * len(questions)
    tags = [np.full(len(ids), -1) for ids in texts]
    for ids, characters in locate_tokens(contexts, tokenizer):
      texts.append(ids)
      spans.append(characters)
      tags.append(np.arange(len(ids)))
    question_at = {text: n for n, text in enumerate(questions)}
    context_at = {text: n for n, text in enumerate(contexts, start=len(questions))}
    pairs = [(question_at[example.question], context_at[example.context]) for example in examples]
    fields = np.array(pairs, np.int32)
    lengths = np.array([len(ids) for ids in texts])[fields]
    if not lengths.all():
      n, f = np.argwhere(lengths == 0)[0]
      raise InputError(f"{examples[n].location}: the tokenizer drops all of its {self.columns[f]}")
    room = context - format.overhead(2)
    # The question has half of the room or what a short context leaves, the context the rest.
    kept = lengths.copy()
    kept[:, 0] = np.minimum(kept[:, 0], np.maximum(room // 2, room - lengths[:, 1]))
    kept[:, 1] = np.minimum(kept[:, 1], room - kept[:, 0])
    # float32 as the labels of other tasks: exact for token numbers below 2^24.
    labels = np.full((len(examples), 2), -1, np.float32)
    cut = 0
    for n, example in enumerate(examples):
      if example.label:
        target = find_tokens(example.label[0], spans[fields[n, 1]])
        if target[1] < kept[n, 1]:
          labels[n] = target
        else:
          cut += 1
    if cut:
      warnings.warn(
        f"{self.name}: {cut:,} of {len(examples):,} answers {agree(cut)} cut off, with the end of "
        f"the text: the model reads {context:,} tokens",
        stacklevel=2,
      )
    return EncodedSpans(
      texts,
      fields[:, None],
      kept[:, None].astype(np.int32),
      labels,
      [example.location for example in examples],
      context,
      tokenizer.special,
      share_unknown(texts, tokenizer),
      tags=tags,
      format=format,
      strings=(*questions, *contexts),
      examples=tuple(examples),
      spans=tuple(spans),
    )

  def describe_labels(self, labels: np.ndarray) -> str:
    answered = labels[labels[:, 0] >= 0]
    if not len(answered):
      return ""
    length = (answered[:, 1] - answered[:, 0] + 1).mean()
    return f"answers: {length:.1f} tokens on average, in {len(answered) / len(labels):.1%} of texts"

  def check_metrics(self) -> None:
    """They need no package."""

  def loss(self, predictions: Sequence[np.ndarray], truth: Sequence[SpanTruth]) -> float:
    """The mean over examples, and over first and last token, of the cross-entropy in nats."""
    losses = []
    for scores, example in zip(predictions, truth, strict=True):
      # The softmax of the head's loss: over the tokens of the context and the anchor.
      allowed = example.numbers >= 0
      allowed[example.anchor] = True
      masked = np.where(allowed[:, None], np.asarray(scores, np.float64), -np.inf)
      # [2]: of the first and of the last token.
      log_z = np.logaddexp.reduce(masked, axis=0)
      positions = []  # of the first and the last token; those of no answer are the anchor
      for i in example.target:
        positions.append(int(np.argmax(example.numbers == i)) if i >= 0 else example.anchor)
      losses.append((log_z - masked[positions, [0, 1]]).mean())
    return float(np.mean(losses))

  def score(
    self, predictions: Sequence[np.ndarray], truth: Sequence[SpanTruth]
  ) -> dict[str, float]:
    """See LabeledTask.score; predictions are scores [t, 2] of each example."""
    texts: Any = list(map(self._text, predictions, truth))
    answers: Any = [example.answers for example in truth]
    scores = {name: float(metric(answers, texts)) for name, metric in self.metrics.items()}
    if len(texts) > 1 and len({*texts}) == 1:
      scores["degenerate"] = 1.0
    return scores

  def result(self, prediction: np.ndarray, truth: SpanTruth) -> dict[str, Any]:
    return {"prediction": self._text(prediction, truth), "probabilities": {}}

  def _text(self, scores: np.ndarray, truth: SpanTruth) -> str:
    """The span with the highest sum of the scores of its ends, among those of MAX_ANSWER tokens."""
    first, last = np.asarray(scores, np.float64)[truth.numbers >= 0].T
    # [m, m]: first token by last token.
    sums = first[:, None] + last
    number = np.arange(len(first))
    length = number - number[:, None] + 1
    sums = np.where((length > 0) & (length <= MAX_ANSWER), sums, -np.inf)
    begin, end = np.unravel_index(np.argmax(sums), sums.shape)
    if self.may_refuse and scores[truth.anchor].sum() > sums[begin, end]:
      return ""
    return truth.context[truth.spans[begin, 0] : truth.spans[end, 1]]


def make_example(
  question: str, context: str, label: tuple[Answer, ...] | None, location: str
) -> SpanExample:
  """An example with answers where their texts are: files may be off by a character or two."""
  for name, text in (("question", question), ("context", context)):
    if not text.strip():
      raise InputError(f"{location}: {name} is empty; fill it in or remove it")
  if label is None:
    return SpanExample(question, context, None, location)
  answers = []
  for text, start in label:
    starts = [match.start() for match in re.finditer(re.escape(text), context)]
    if not text.strip() or not starts:
      raise InputError(f"{location}: the answer {text[:80]!r} is no part of its context")
    answers.append(Answer(text, min(starts, key=lambda i: abs(i - start))))
  return SpanExample(question, context, tuple(answers), location)


def locate_tokens(
  texts: Sequence[str], tokenizer: Tokenizer
) -> list[tuple[np.ndarray, np.ndarray]]:
  """The ids of each text, int32 [m], and the characters of each id, from and to, int [m, 2]."""
  # With its space in front a word should get the ids that it has within a text.
  pair = tokenizer.encode_many(["a a", "a", " a"])
  space = " " if np.array_equal(pair[0], np.concatenate(pair[1:])) else ""
  words_of_texts = []  # (word, character at which it begins)
  for text in texts:
    matches = enumerate(re.finditer(r"\S+", text))
    words_of_texts.append([(f"{space if n else ''}{m[0]}", m.start()) for n, m in matches])
  distinct = list(dict.fromkeys(word for words in words_of_texts for word, _ in words))
  ids = dict(zip(distinct, tokenizer.encode_many(distinct), strict=True))
  within = {word: _without_space(tokenizer.offsets(word), word) for word in distinct}
  located = []
  for words in words_of_texts:
    tokens = np.concatenate([ids[word] for word, _ in words]).astype(np.int32)
    located.append((tokens, np.concatenate([within[word] + start for word, start in words])))
  return located


def _without_space(spans: np.ndarray, word: str) -> np.ndarray:
  """The characters of tokens behind the word's space; of a space those that follow."""
  moved = np.maximum(spans - word.startswith(" "), 0)
  return nonempty([(begin, end) for begin, end in moved.tolist()], len(word))


def find_tokens(answer: Answer, spans: np.ndarray) -> tuple[int, int]:
  """The first and last token with characters of an answer; both m if none has; spans int [m, 2]."""
  inside = (spans[:, 1] > answer.start) & (spans[:, 0] < answer.start + len(answer.text))
  numbers = np.flatnonzero(inside) if inside.any() else [len(spans)]
  return int(numbers[0]), int(numbers[-1])


# ------------------------------------------------------------------ Metrics (Rajpurkar et al. 2016)


def normalize(text: str) -> str:
  """Lower case, without punctuation, articles and further spaces, as SQuAD's evaluation script."""
  # In the script's order: punctuation goes before articles, so that "the" in quotes is one.
  text = "".join(c for c in text.lower() if c not in string.punctuation)
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(truth: Any, predicted: Any) -> float:
  """The share of predictions [N] that equal one of their answers [N, …] after `normalize`."""
  return _mean_of_best(lambda answer, text: float(answer == text), truth, predicted)


def token_f1(truth: Any, predicted: Any) -> float:
  """The mean over examples of the F1 of words, of the answer that gives the highest."""
  return _mean_of_best(_word_f1, truth, predicted)


def _mean_of_best(
  measure: Callable[[str, str], float], truth: Sequence[Sequence[str]], predicted: Sequence[str]
) -> float:
  best = []
  for answers, text in zip(truth, predicted, strict=True):
    # Without an answer, "" is right.
    wanted = [normal for normal in map(normalize, answers) if normal] or [""]
    best.append(max(measure(answer, normalize(text)) for answer in wanted))
  return float(np.mean(best))


def _word_f1(answer: str, text: str) -> float:
  wanted, given = answer.split(), text.split()
  # As evaluate-v2.0.py: F1 is 1 if both have no words, 0 if one of them.
  if not wanted or not given:
    return float(wanted == given)
  same = (collections.Counter(wanted) & collections.Counter(given)).total()
  return 2 * same / (len(wanted) + len(given))


SPAN_METRICS: dict[str, Metric] = {"f1": token_f1, "exact_match": exact_match}
