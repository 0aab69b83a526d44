"""Translation: an answer is a text of its own, compared with a reference by BLEU and chrF."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.errors import InputError
from gpt_jax.tasks.answers.text import EncodedText, EncoderDecoderBatches, WritingTask, rounded
from gpt_jax.tasks.encoding import Example, encode
from gpt_jax.tasks.formats import END, T5, Format
from gpt_jax.tasks.metrics import translation_scores
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.task import SPLITS, make_examples, unusable_rows

_METRICS = ("bleu", "chrf")
_POOL = 16  # batches whose examples are sorted by length together
_PER_TOKEN, _FURTHER = 2, 10  # tokens of a translation: at most 2 of each of its source's, and 10


class Pair(NamedTuple):
  """A text and, as its label, the translation; None: unlabeled."""

  text: str
  label: str | None
  location: str

  @property
  def texts(self) -> list[str]:
    return [self.text]


@dataclasses.dataclass(frozen=True)
class EncodedPairs(EncodedText):
  """Pairs as token ids, with the translations as they were given."""

  references: tuple[str, ...] = ()

  @property
  def truth(self) -> list[str]:
    return list(self.references)

  @property
  def content(self) -> list[Any]:
    return [*super().content, list(self.targets)]

  def part(self, first: int, last: int) -> Any:
    of_part: Any = super().part(first, last)
    targets, references = self.targets[first:last], self.references[first:last]
    return dataclasses.replace(of_part, targets=targets, references=references)

  def room(self, n: int) -> int:
    wanted = _PER_TOKEN * int(self.source_lengths[n]) + _FURTHER
    return min(wanted, self.context - self.context // 2 - 1)

  def batches(self, batch_size: int, seed: int, epochs: int) -> "PairBatches":
    return PairBatches(self, batch_size, seed, epochs)


@dataclasses.dataclass(frozen=True)
class TranslationTask(WritingTask):
  """A task of text pairs."""

  # (data_dir, split) -> rows of one text, whose label is its translation
  rows: Callable[[str, str], Iterable[Row | InputError]]
  columns: tuple[str, ...]  # name of the source's column
  prompt: str = ""  # is put before each source
  lowercase: bool = False  # whether translations are compared in lower case
  # Words of a text of a training pair, at most; longer pairs are left out; 0: no limit
  longest: int = 0
  search: tuple[int, float] = (1, 1.0)

  name = "pairs"
  labels = ()
  metrics: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict.fromkeys(_METRICS))
  kind = "translation"
  not_per_text = "writes translations; predict.run asks for them, evaluate.run scores them"

  def with_search(self, beams: int, length_penalty: float) -> "TranslationTask":
    return dataclasses.replace(self, search=(beams, length_penalty))

  def examples(self, data_dir: str, split: str) -> list[Pair]:
    if split not in (*SPLITS, "unlabeled"):
      raise InputError(f"split {split!r} of {self.name}: should be one of {', '.join(SPLITS)}")
    missing = "no translation" if split != "test" else ""
    pairs, problems = make_examples(self.rows(data_dir, split), self.example, missing)
    if problems:
      raise unusable_rows(problems)
    if split == "train" and self.longest:
      most = self.longest
      pairs = [p for p in pairs if max(len(p.text.split()), len(p.label.split())) <= most]
    if not pairs:
      raise InputError(f"{self.name}: no pairs in the {split} split of {data_dir}")
    return pairs

  def example(self, row: Row) -> Pair:
    if not row.texts[0].strip():
      raise InputError(f"{row.location}: the text is empty; translate it or remove the pair")
    if row.label is not None and not row.label.strip():
      raise InputError(f"{row.location}: the translation is empty; fill it in or remove the pair")
    return Pair(row.texts[0], row.label, row.location)

  def encode(
    self, examples: list[Pair], tokenizer: Tokenizer, context: int, format: Format = T5
  ) -> EncodedPairs:
    """Token ids, each text cut to half the context: one row has room for both."""
    half = context // 2
    sources = [Example(((f"{self.prompt}{pair.text}",),), None, pair.location) for pair in examples]
    encoded = encode(sources, tokenizer, half, None, 1, format)
    references = tuple(pair.label or "" for pair in examples)
    targets = []
    for pair, ids in zip(examples, tokenizer.encode_many(list(references)), strict=True):
      if pair.label is None:
        targets.append(np.zeros(0, np.int32))
        continue
      if not len(ids):
        raise InputError(f"{pair.location}: the tokenizer drops all of the translation")
      targets.append(np.append(ids[: half - 1], tokenizer.special[END]).astype(np.int32))
    return EncodedPairs(
      **{**vars(encoded), "context": context},
      targets=tuple(targets),
      longest=max(map(len, targets)),
      references=references,
    )

  def read(self, outputs: Sequence[str | None], words: Sequence[str]) -> Sequence[Any]:
    return outputs

  def score(self, predictions: Sequence[str | None], truth: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF, from 0 to 100; a translation without an end counts as empty."""
    return {name: score for name, (score, _) in self._scores(predictions, truth).items()}

  def details(self, predictions: Any, truth: Any) -> dict[str, Any]:
    scores = self._scores(predictions, truth)
    return {f"{name}_signature": signature for name, (_, signature) in scores.items()}

  def _scores(self, predictions, truth) -> dict[str, tuple[float, str]]:
    written = [prediction or "" for prediction in predictions]
    return translation_scores(truth, written, self.lowercase)

  def check_metrics(self) -> None:
    self.score([""], ["a"])

  def result(self, prediction: str | None, truth: str) -> dict[str, Any]:
    problems = {None: "a translation without an end", "": "the model wrote nothing"}
    problem = {} if prediction else {"problem": problems[prediction]}
    return {"prediction": prediction, "probabilities": {}, **problem}


class PairBatches(EncoderDecoderBatches):
  """Batches of pairs of similar lengths, each padded to its own longest, a multiple of 8 tokens.

  An epoch is cut into pools of 16 batches, which are sorted by length, and shuffled again.
  """

  def __init__(self, encoded: EncodedPairs, batch_size: int, seed: int, epochs: int):
    super().__init__(encoded, batch_size, seed, epochs)
    targets = [len(target) for target in encoded.targets]
    self._longest = np.maximum(encoded.source_lengths, targets)
    for epoch, order in enumerate(self._order.reshape(epochs, -1)):
      for begin in range(0, len(order), _POOL * batch_size):
        pool = order[begin : begin + _POOL * batch_size]
        # Stable, so that pairs of one length stay in the order of the seed.
        pool[:] = pool[np.argsort(self._longest[pool], kind="stable")]
      batches = order.reshape(-1, batch_size)  # a view: what follows shuffles `order` itself
      batches[:] = np.random.default_rng([seed, epoch, 1]).permutation(batches)
    self.largest = int(self._longest[self._order].max(axis=1).argmax())

  def _lengths(self, examples: np.ndarray) -> tuple[int, int]:
    longest = rounded(int(self._longest[examples].max()))
    return longest, longest
