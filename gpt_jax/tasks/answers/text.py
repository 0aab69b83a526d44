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
from typing import Any, cast

import numpy as np

from gpt_jax.batch import Batch, Predictions, encoder_decoder_batch
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.number import parse_number
from gpt_jax.tasks.encoding import Encoded, Example, encode, subset
from gpt_jax.tasks.formats import END, START, T5, Format
from gpt_jax.tasks.metrics import Metric, f1
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import Sequences

NO_NUMBER = -1.0  # T5's value of an output that is no number
Z_LOSS = 1e-4  # of T5, in fine-tuning too
_WORDS_PER_POINT = 5  # of scores: 0.0, 0.2, …
_MULTIPLE = 8  # of a row's length


@dataclasses.dataclass(frozen=True)
class EncodedText(Encoded):
  """A data set as token ids; a sequence is an input with its answer, where it has one."""

  # The ids of each example's answer with its end, int32 [t]; empty if it is unlabeled
  targets: tuple[np.ndarray, ...] = ()
  words: tuple[str, ...] = ()  # every answer of the task, as the tokenizer spells it
  longest: int = 0  # tokens of the longest of them, with its end

  @property
  def source_lengths(self) -> np.ndarray:
    """Tokens of each input with its end, int [N]."""
    return super().lengths[:, 0]

  @property
  def lengths(self) -> np.ndarray:
    return (self.source_lengths + [len(target) for target in self.targets])[:, None]

  def source(self, n: int) -> np.ndarray:
    """The ids of an input with its end, int32 [t]."""
    return super().sequence(n, 0)

  def sequence(self, n: int, c: int) -> np.ndarray:
    return np.concatenate([super().sequence(n, c), self.targets[n]])

  def room(self, n: int) -> int:
    """How many tokens an answer to example n may have; none of the task's is longer."""
    return self.longest

  def batches(self, batch_size: int, seed: int, epochs: int) -> "EncoderDecoderBatches":
    """The batches of a run of an encoder-decoder; see PackedBatches."""
    return EncoderDecoderBatches(self, batch_size, seed, epochs)

  def finish(self, batch: Batch, examples: np.ndarray) -> Batch:
    """Packed rows of inputs, each with its answer after it, for prefix attention.

    Every token of an answer has weight 1, as in T5: the summed loss is -log P(answer).
    """
    rows, predictions = batch.rows, batch.predictions
    assert predictions is not None and rows.segments is not None
    real = rows.segments > 0  # 0 is padding
    example = examples[np.maximum(rows.segments - 1, 0)]
    sources, lengths = self.source_lengths[example], self.lengths[example, 0]
    # The end of the input predicts the first token of the answer.
    predicted = real & (rows.positions >= sources - 1) & (rows.positions < lengths - 1)
    return Batch(
      rows._replace(prefix=real & (rows.positions < sources)),
      predictions=Predictions(predictions.targets, predicted.astype(np.float32)),
    )


class WritingTask(LabeledTask):
  """A task whose answers the model writes; a prediction is a text, or None for one without end."""

  search: tuple[int, float] = (1, 1.0)  # beams (1: greedy) and length penalty

  writes_text = True
  predictor = "text_predictor"

  @property
  def head(self) -> dict[str, Any]:
    return {"type": "language", "special_tokens": True, "z_loss": Z_LOSS}

  def measures(self, predictions: Any, truth: Any) -> dict[str, float]:
    """The metrics; there is no loss."""
    return self.score(predictions, truth)

  def unlabeled(
    self, data_dir: str, examples: list[Any], labeled: list[Any], file: str
  ) -> list[Any]:
    """The texts of a file that has a teacher's answers."""
    return self.examples(data_dir, "unlabeled")


@dataclasses.dataclass(frozen=True)
class TextTask(WritingTask):
  """A task with one label per example, whose inputs and labels are texts."""

  task: Task  # the task that reads the rows and has the metrics
  named: str  # what its inputs begin with
  labels: tuple[str, ...]  # the words that answer
  name: str
  columns: tuple[str, ...]
  metrics: Mapping[str, Metric]
  pair: str

  kind = "text to text"
  not_per_text = "writes its labels as text; predict.run asks for them, evaluate.run scores them"

  def examples(self, data_dir: str, split: str) -> list[Example]:
    return self._with_texts().examples(data_dir, split)

  def example(self, row: Row) -> Example:
    return self._with_texts().example(row)

  def subset(self, examples: list[Example], count: int) -> list[Example]:
    return subset(examples, count, self.task.has_classes, self._as_in_task)

  def encode(
    self, examples: list[Example], tokenizer: Tokenizer, context: int, format: Format = T5
  ) -> EncodedText:
    """Inputs and answers as token ids; both, with any other answer, fit the context."""
    words = self.encode_words(tokenizer)
    longest = max(map(len, words))
    # In packed rows the answer follows its input, whichever label it is.
    room = context - longest
    encoded = encode(examples, tokenizer, room, None, self.task.num_classes, format)
    answers = [self._answer(example) for example in examples]
    return EncodedText(
      **{**vars(encoded), "context": context},
      targets=tuple(words[i] if i is not None else np.zeros(0, np.int32) for i in answers),
      # As the model's output will be decoded: the vocabulary may fold case, or spaces.
      words=tuple(tokenizer.decode(word[:-1]).strip() for word in words),
      longest=longest,
    )

  def encode_words(self, tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each label, with the end token after them."""
    encoded: list[np.ndarray] = []
    spellings: dict[str, str] = {}
    for label, ids in zip(self.labels, tokenizer.encode_many(list(self.labels)), strict=True):
      if not len(ids) or tokenizer.byte_fallback[ids].any():
        raise InputError(
          f"{self.name}: its answer {label!r} is no word of the vocabulary; use one that was "
          "prepared from text in which all its characters occur"
        )
      other = spellings.setdefault(tokenizer.decode(ids).strip(), label)
      if other != label:
        raise InputError(f"{self.name}: the vocabulary spells {other!r} and {label!r} alike")
      encoded.append(np.append(ids, tokenizer.special[END]).astype(np.int32))
    return encoded

  def describe_labels(self, labels: np.ndarray) -> str:
    return self.task.describe_labels(labels)

  def read(self, outputs: Sequence[str | None], words: Sequence[str]) -> list[str | None]:
    """The outputs, with labels in place of EncodedText.words that spell one."""
    labels = dict(zip(words, self.labels, strict=True))
    return [output if output is None else labels.get(output, output) for output in outputs]

  def score(self, predictions: Sequence[str | None], truth: np.ndarray) -> dict[str, float]:
    """The task's metrics, and "valid", the share of outputs that are a label.

    An output that is no label is wrong: a class of its own, or as a score NO_NUMBER.
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
    if prediction in self.labels:
      return {"prediction": prediction, "probabilities": {}}
    written = "an answer without an end" if prediction is None else f"{prediction!r}"
    problem = f"the model wrote {written}, which is no label"
    return {"prediction": None, "probabilities": {}, "problem": problem}

  def _value(self, prediction: str | None) -> float:
    if self.task.is_classification:
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
    if self.task.is_classification:
      return int(value)
    above = round(value - float(self.task.labels[0]), 6)  # exact again, so that ties are ties
    # Ties to the even number, as TensorFlow's round in T5's code.
    return int(np.rint(above * _WORDS_PER_POINT))

  def _with_texts(self) -> Task:
    """The task whose rows become one sequence of named columns."""

    def named(*texts: str) -> Sequences:
      by_name = dict(zip(self.columns, texts, strict=True))
      return (tuple(beginning + by_name[name] for name, beginning in self._beginnings.items()),)

    return dataclasses.replace(self.task, transform=named)

  def _as_in_task(self, example: Example) -> Example:
    """The example as the task has it, of one of this task."""
    fields = zip(self._beginnings.items(), example.sequences[0], strict=True)
    by_name = {name: field.removeprefix(beginning) for (name, beginning), field in fields}
    texts = [by_name[name] for name in self.columns]
    return example._replace(sequences=self.task.transform(*texts))

  @property
  def _beginnings(self) -> dict[str, str]:
    """The columns in the order of the input -> what stands before their texts."""
    first, *others = sorted(self.columns)
    return {first: f"{self.named} {first}: ", **{name: f" {name}: " for name in others}}


def as_text(task: LabeledTask, named: str = "") -> LabeledTask:
  """A task as text to text; one whose answers are texts as it is. `named` is what inputs begin with
  where the model was trained on another set of the task (mnli for mnli-mismatched).
  """
  if task.writes_text:
    return task
  if len(task.parts) > 1 or task.head["type"] != "classify":
    message = "a text-to-text model writes one label per example"
    raise InputError(f"{task.name}: {message}; {task.kind} needs another checkpoint")
  words = task.labels
  if not task.is_classification:  # the scores that answer
    low, high = float(task.labels[0]), float(task.labels[-1])
    count = round((high - low) * _WORDS_PER_POINT) + 1
    words = tuple(f"{low + i / _WORDS_PER_POINT:.1f}" for i in range(count))
  fields = task.name, task.columns, task.metrics, task.pair
  return TextTask(cast(Task, task), named or task.name, words, *fields)


def encode_prompt(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """The ids of an input that a user writes, with its end, int32 [t]; "<sentinel_0>" in it, or
  transformers' "<extra_id_0>", is the special token.
  """
  parts = re.split(r"<(?:sentinel|extra_id)_(\d+)>", text)  # texts and numbers take turns
  ids: list[Any] = list(map(tokenizer.encode, parts))
  ids[1::2] = [[tokenizer.special[f"sentinel_{number}"]] for number in parts[1::2]]
  return np.concatenate([*ids, [tokenizer.special[END]]]).astype(np.int32)


def decode_answer(ids: Sequence[int], tokenizer: Tokenizer) -> str | None:
  """The text up to the end, with special tokens as "<sentinel_0>"; None: it has no end."""
  ids = list(ids)
  # The decoder ran out of tokens, so the text may be cut off in a word.
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


class EncoderDecoderBatches:
  """An example per row: the input for the encoder, the answer shifted right for the decoder.

  The last partial batch of an epoch is dropped. `shape`: of the encoder's rows, (B, S).
  """

  def __init__(self, encoded: EncodedText, batch_size: int, seed: int, epochs: int):
    self.steps_per_epoch = encoded.whole_batches(batch_size)
    self._encoded = encoded
    count = self.steps_per_epoch * batch_size
    orders = []
    for epoch in range(epochs):
      orders.append(np.random.default_rng([seed, epoch]).permutation(len(encoded))[:count])
    self._order = np.concatenate(orders).reshape(-1, batch_size)
    self.shape = (batch_size, rounded(int(encoded.source_lengths.max())))
    self.largest = 0  # the step with the longest rows: they are all of one length

  def __call__(self, step: int) -> Batch:
    examples = self._order[step]
    source_length, target_length = self._lengths(examples)
    source = np.full((len(examples), source_length), -1, np.int32)
    targets = np.full((len(examples), target_length), -1, np.int32)
    for row, n in enumerate(examples):
      ids, answer = self._encoded.source(n), self._encoded.targets[n]
      source[row, : len(ids)], targets[row, : len(answer)] = ids, answer
    return encoder_decoder_batch(source, targets, source_length, self._encoded.special[START])

  def _lengths(self, examples: np.ndarray) -> tuple[int, int]:
    """Tokens in a row of sources, and of targets."""
    return self.shape[1], rounded(self._encoded.longest)


def rounded(length: int) -> int:
  """The length of a row that has room for so many tokens."""
  return -(-length // _MULTIPLE) * _MULTIPLE
