"""A trained model in Python: `gpt_jax.load(path)` generates, scores, embeds and classifies.

Letters: N texts, B of them at a time, T tokens of the longest, D width.
"""

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gpt_jax.checkpoints.load import AnyModel, LoadedModel
from gpt_jax.checkpoints.saved import Embedding
from gpt_jax.errors import InputError, counted
from gpt_jax.inference.calibration import scale
from gpt_jax.inference.dev_report import temperature_of
from gpt_jax.inference.generate import continuations
from gpt_jax.inference.linear_classifier import load_any
from gpt_jax.inference.masked_lm import Filling, MaskedLM
from gpt_jax.inference.scoring import bucket, check_length, embeddings, padded, text_log_probs
from gpt_jax.inference.stream import Sampling
from gpt_jax.tasks.encoding import Encoded, describe_truncation, window_begins
from gpt_jax.tasks.readers import Row

_BATCH = 16
_ROWS = (1, 4, _BATCH)


class Scored(NamedTuple):
  """The tokens of a text, as the tokenizer spells them, and log P of each in nats, float32; nan for
  a first token that has no context.
  """

  tokens: list[str]
  log_probs: np.ndarray

  @property
  def perplexity(self) -> float:
    """Perplexity per token, without one that has no context; nan if there is no other."""
    known = self.log_probs[~np.isnan(self.log_probs)]
    return float(np.exp(-known.mean(dtype=np.float64))) if len(known) else float("nan")


def load(path: str, warm_up: bool = False) -> "Model":
  """Implements gpt_jax.load; see there."""
  model = Model(load_any(path))
  if warm_up:
    model.warm_up()
  return model


class Model:
  """A trained model with, where it was fine-tuned, its task. TF-IDF only classifies.

  Attributes:
    loaded: the parameters, on the device, and everything else that was saved.
    labels, columns: classes of `classify` and the text columns it reads; empty without a task.
  """

  def __init__(self, loaded: AnyModel):
    # One copy for all methods, sent once.
    self.loaded: AnyModel = loaded.on_device()
    self._task = loaded.task
    self.labels: tuple[str, ...] = self._task.labels if self._task else ()
    self.columns: tuple[str, ...] = self._task.columns if self._task else ()

  def __repr__(self):
    kind = f"fine-tuned on {self._task.name}" if self._task else self.network.spec.kind
    return f"<{kind}, {self.loaded.size}, from {self.loaded.path}>"

  @property
  def network(self) -> LoadedModel:
    """The model that generates, scores and embeds. Raises InputError where there is none."""
    return self.loaded.network

  def generate(
    self,
    prompts: str | Sequence[str],
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    num_samples: int = 1,
    ignore_eos: bool = False,
  ) -> str | list[str]:
    """The prompt with its continuation, see generate.continuations and Sampling: a text for a text,
    a list for a list or for several samples.
    """
    batch = _text_list(prompts, "prompt")
    sampling = Sampling(max_tokens, temperature, top_k, top_p, seed, ignore_eos)
    texts = continuations(self.network, batch, sampling, num_samples)
    return texts[0] if isinstance(prompts, str) and num_samples == 1 else texts

  def log_probs(self, texts: str | Sequence[str]) -> Scored | list[Scored]:
    """The log-probability of every token given those before it, for a text or a list of texts."""
    model, params = self.network.language_model(), {"trunk": self.network.params["trunk"]}
    scored = []
    context = self.network.spec.trunk.context
    encoded = self._encode(texts, context)
    for batch, lengths in self._batches(encoded, context):
      log_probs = np.asarray(text_log_probs(model, params, batch))
      # The batch may have blank rows at its end.
      for ids, values, length in zip(batch.tolist(), log_probs, lengths, strict=False):
        tokens = [self.network.tokenizer.piece(i) for i in ids[:length]]
        scored.append(Scored(tokens, np.concatenate([[np.float32(np.nan)], values[: length - 1]])))
    return scored[0] if isinstance(texts, str) else scored

  def _encode(self, texts: str | Sequence[str], room: int) -> list[np.ndarray]:
    encoded = self.network.tokenizer.encode_many(_text_list(texts))
    for number, ids in enumerate(encoded, start=1):
      check_length(ids, f"text {number}", room, self.network.spec.trunk.context)
    return encoded

  def pseudo_log_probs(
    self, texts: str | Sequence[str], within_word: bool = True
  ) -> Scored | list[Scored]:
    """The log-probability of every token given all others of its text, by a masked language model;
    their sum is the text's pseudo-log-likelihood. within_word: see MaskedLM.score.
    """
    model, tokenizer = self.masked_lm, self.network.tokenizer
    encoded, scored = self._encode(texts, model.room), []
    for ids, (log_probs, _) in zip(encoded, model.score(encoded, within_word), strict=True):
      scored.append(Scored([tokenizer.piece(i) for i in ids.tolist()], log_probs))
    return scored[0] if isinstance(texts, str) else scored

  def fill_mask(self, texts: str | Sequence[str], top_k: int = 5) -> list[Any]:
    """The likeliest tokens at each [MASK], or <mask>, of a text, by a masked language model.

    Each mask is filled by itself, while the others stay: `top_k` pairs (piece, probability), the
    likeliest first. For a list of texts a list of that.
    """
    filled: list[list[list[Filling]]] = self.masked_lm.fill(_text_list(texts), top_k)
    return filled[0] if isinstance(texts, str) else filled

  def embed(
    self,
    texts: str | Sequence[str],
    truncate: bool = False,
    windows: Literal["", "mean", "max"] = "",
    stride: int = 0,
  ) -> np.ndarray:
    """A vector for each text: float32 [D], or [N, D] for a list. Compare them by the cosine.

    It is read as the checkpoint's contrastive training read it: from the last hidden states the
    mean over the text's tokens, that of the last token, or that of [CLS]; see ContrastiveHead. Of
    a folder of sentence-transformers it is what its modules.json says, of any other checkpoint the
    mean. In BERT's and RoBERTa's formats the text is between [CLS] and [SEP], and both count. Of T5
    it is the mean of the encoder's states, over the text's tokens and its end (Sentence-T5, Ni et
    al. 2021).

    Args:
      truncate: leave out what exceeds the model's context, with a warning.
      windows: read longer texts in windows of the context, of whose vectors each text has the mean
        or, of each feature, the max.
      stride: tokens from one window's beginning to the next one's; 0: windows do not overlap.
    """
    if windows not in ("", "mean", "max"):
      raise InputError(f"windows={windows!r}: must be mean or max, or empty for no windows")
    if stride < 0 or (stride and not windows):
      raise InputError(f"stride={stride}: must be 0 or more tokens, and needs windows=mean or max")
    embedding, reader = self.embedding, self.network.encoder_alone()
    model, params = reader.model, {"trunk": reader.params["trunk"]}
    context = min(self.network.spec.trunk.context, embedding.longest or sys.maxsize)
    pieces, ends = self._pieces(_text_list(texts), context, truncate, stride if windows else None)
    # No texts give [0, D].
    vectors = [np.zeros((0, self.network.spec.trunk.width), np.float32)]
    for batch, lengths in self._batches(pieces, context):
      row_lengths = np.ones(len(batch), lengths.dtype)
      row_lengths[: len(lengths)] = lengths
      # Blank rows have length 1, so that no mean divides by 0.
      rows = embeddings(model, params, batch, row_lengths, embedding.pooling)
      vectors.append(np.asarray(rows)[: len(lengths)])
    embedded = np.concatenate(vectors)
    if windows and ends:
      pool = np.max if windows == "max" else np.mean
      embedded = np.stack([pool(part, axis=0) for part in np.split(embedded, ends[:-1])])
    if embedding.normalize:
      # The floor of torch's `normalize`, which sentence-transformers calls.
      embedded /= np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12)
    return embedded[0] if isinstance(texts, str) else embedded

  def _pieces(
    self, texts: list[str], context: int, truncate: bool, stride: int | None
  ) -> tuple[list[np.ndarray], list[int]]:
    """The ids of every window of every text, and their number up to each text's end.

    stride: see embed; None: each text is one window.
    """
    before, after = self._ends
    room = context - len(before) - len(after)
    pieces, ends, lengths = [], [], []
    for number, ids in enumerate(self.network.tokenizer.encode_many(texts), start=1):
      lengths.append(len(ids))
      fits = truncate or stride is not None
      check_length(ids, f"text {number}", len(ids) if fits else room, context)
      for begin in [0] if stride is None else window_begins(len(ids), room, stride):
        pieces.append(np.concatenate([before, ids[begin : begin + room], after]))
      ends.append(len(pieces))
    read = np.minimum(lengths, room if stride is None else max(lengths, default=0))
    if truncation := describe_truncation(read, np.array(lengths), context):
      warnings.warn(truncation, stacklevel=3)
    return pieces, ends

  def classify(self, texts: str | Sequence[str | Sequence[str]], calibrated: bool = True) -> Any:
    """The probability of every label, {label: probability}, for a text or a list of texts; of a
    regression task the number.

    A text of a task with several columns is a tuple of their values; of an imported classifier it
    is a string, or a tuple of the two texts of a pair. Warns of texts longer than the context,
    which are cut unless the model was fine-tuned to read them in windows.

    calibrated: scale the probabilities by `temperature`.
    """
    task, examples = self._examples(texts)
    labeled: list[Any] = [None] * len(examples)
    # Encoded examples have equally many fields: an imported classifier reads texts and pairs.
    numbers: dict[int, list[int]] = {}
    for number, example in enumerate(examples):
      numbers.setdefault(len(example.sequences[0]), []).append(number)
    for alike in numbers.values():
      encoded = self.loaded.encode(task, [examples[number] for number in alike])
      if encoded.truncation:
        warnings.warn(encoded.truncation, stacklevel=2)
      # Shapes are rounded up: each new one would compile for seconds.
      probabilities = self._predictor(encoded, 2 * _BATCH, few_shapes=True)
      if calibrated:
        probabilities = scale(probabilities, self.temperature)
      for number, row in zip(alike, probabilities, strict=True):
        labeled[number] = task.answer(row)
    return labeled[0] if isinstance(texts, str) else labeled

  def truncated(self, texts: str | Sequence[str | Sequence[str]]) -> list[bool]:
    """Whether `classify` reads only a part of each text; the arguments are those of classify."""
    task, examples = self._examples(texts)
    return [bool(self.loaded.encode(task, [example]).truncated[0]) for example in examples]

  def _examples(self, texts: str | Sequence[str | Sequence[str]]) -> tuple[Any, list[Any]]:
    """The task, and an example of it for each text."""
    task, examples = self.loaded.label_task(), []
    for number, text in enumerate(_as_list(texts), start=1):
      cells = tuple(text) if isinstance(text, tuple | list) else (text,)
      for cell in cells:
        _check_text(cell, f"text {number}")
      if len(cells) != len(names := task.columns_of(len(cells))):
        columns = f"{task.name} reads {len(names)}: {', '.join(names)}"
        raise InputError(f"text {number}: {counted(len(cells), 'column')}; {columns}")
      examples.append(task.example(Row(cells, None, f"text {number}")))
    return task, examples

  @functools.cached_property
  def temperature(self) -> float:
    """Calibration temperature of `classify`, fitted on the dev set; 1 if none was fitted."""
    return temperature_of(self.loaded) or 1.0

  def warm_up(self) -> None:
    """Compiles what `classify` needs for one text of any length, and for a few."""
    if self.loaded.task is None:
      return
    task = self.loaded.label_task()
    row = Row(("a",) * len(task.columns), None, "warm-up")
    encoded = self.loaded.encode(task, [task.example(row)])
    context, length = encoded.context, 16
    while length < context:
      self._predictor(_stretched(encoded, length, 1), 2 * _BATCH, few_shapes=True)
      length *= 2
    for count in (1, 2, 3, 4):
      self._predictor(_stretched(encoded, context, count), 2 * _BATCH, few_shapes=True)

  @functools.cached_property
  def masked_lm(self) -> MaskedLM:
    return MaskedLM(self.network)

  @functools.cached_property
  def _predictor(self) -> Callable[..., np.ndarray]:
    return self.loaded.predictor()

  @functools.cached_property
  def _contrastive(self) -> Any:
    """The head that was trained to compare texts; None: there is none."""
    return next((head for head in self.network.spec.heads if head.scope == "contrastive"), None)

  @functools.cached_property
  def embedding(self) -> Embedding:
    """How `embed` reads the hidden states."""
    if self._contrastive:
      return Embedding(self._contrastive.pooling)
    if self.network.embedding.unsupported:
      raise InputError(f"{self.loaded.path}: {self.network.embedding.unsupported}")
    return self.network.embedding

  @functools.cached_property
  def _ends(self) -> tuple[list[int], list[int]]:
    """Ids of the special tokens that `embed` puts before and after a text."""
    special, spec = self.network.tokenizer.special, self.network.spec
    if spec.kind == "encoder-decoder" or "sources" in spec.trunk.gives:
      return [], [special["sep"]]  # as every source in training
    framed = "cls" in self.network.format.special and {"cls", "sep"} <= {*special}
    if self.embedding.pooling == "cls" or framed and not self._contrastive:
      return [special["cls"]], [special["sep"]]
    return [], []

  def _batches(
    self, encoded: list[np.ndarray], context: int
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Padded token ids int32 [B, T], with blank rows at the end, and the length of each text.

    B is 1, 4 or 16, so that few shapes need compiling.
    """
    for first in range(0, len(encoded), _BATCH):
      chunk = encoded[first : first + _BATCH]
      lengths = np.array([len(ids) for ids in chunk])
      rows = next(rows for rows in _ROWS if rows >= len(chunk))
      yield padded(chunk, (rows, bucket(int(lengths.max()), context))), lengths


def _as_list(values: Any) -> list[Any]:
  if isinstance(values, str):
    return [values]
  try:
    return list(values)
  except TypeError:
    raise InputError(f"{values!r} is not a text; give a string, or a list of strings") from None


def _text_list(values: Any, name: str = "text") -> list[str]:
  texts = _as_list(values)
  for number, text in enumerate(texts, start=1):
    _check_text(text, f"{name} {number}")
  return texts


def _check_text(text: Any, name: str) -> None:
  if not isinstance(text, str):
    raise InputError(f"{name}: {text!r} is not a text; give a string")
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise InputError(f"{name}: not Unicode: half of a surrogate pair at {error.start}") from error


def _stretched(encoded: Encoded, length: int, count: int) -> Encoded:
  """`count` copies of one example whose sequences, together, have `length` tokens each copy."""
  kept = np.ones_like(encoded.kept)
  per_sequence = max(length // kept.shape[1], int(encoded.lengths.max()))
  kept[..., -1] += per_sequence - (kept[0, 0].sum() + encoded.format.overhead(kept.shape[-1]))
  return dataclasses.replace(
    encoded,
    texts=[np.zeros(encoded.context, np.int32) for _ in encoded.texts],
    fields=np.repeat(encoded.fields, count, axis=0),
    kept=np.repeat(kept, count, axis=0),
    labels=np.repeat(encoded.labels, count, axis=0),
    locations=encoded.locations * count,
  )
