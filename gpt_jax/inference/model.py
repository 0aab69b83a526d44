"""A trained model in Python: `gpt_jax.load(path)` generates, scores, embeds and classifies.

Letters: N texts, B of them at a time, T tokens of the longest, D width.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.calibration import scale
from gpt_jax.inference.dev_report import read_dev_set
from gpt_jax.inference.generate import continuations
from gpt_jax.inference.scoring import bucket, mean_hidden, text_log_probs
from gpt_jax.tasks.readers import Row

_BATCH = 16


class Scored(NamedTuple):
  """The log-probability of each token of a text.

  Attributes:
    tokens: as the tokenizer spells them.
    log_probs: float32 [tokens], in nats; nan for the first, which has no context.
  """

  tokens: list[str]
  log_probs: np.ndarray

  @property
  def perplexity(self) -> float:
    """Per token, without the first; nan for a text of one token."""
    if len(self.tokens) < 2:
      return float("nan")
    return float(np.exp(-self.log_probs[1:].mean(dtype=np.float64)))


def load(path: str) -> "Model":
  """What gpt_jax.load calls; see there."""
  return Model(load_model(path))


class Model:
  """A trained model with its tokenizer and, where it was fine-tuned, its task.

  Attributes:
    loaded: the parameters, the config, and all else that was saved; see checkpoints.load.
    labels: the classes of `classify`; empty for a language model.
    columns: the text columns that `classify` reads; empty for a language model.
  """

  def __init__(self, loaded: LoadedModel):
    self.loaded = loaded
    self._task = loaded.task
    self.labels: tuple[str, ...] = self._task.labels if self._task else ()
    self.columns: tuple[str, ...] = self._task.columns if self._task else ()
    self._params = jax.device_put(loaded.params)

  def __repr__(self):
    kind = f"fine-tuned on {self._task.name}" if self._task else "language model"
    trunk = self.loaded.spec.trunk
    sizes = f"{trunk.parameter_count():,} parameters, context {trunk.context}"
    return f"<{kind}, {sizes}, from {self.loaded.path}>"

  def generate(
    self,
    prompts: str | Sequence[str],
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
  ) -> str | list[str]:
    """The prompt with its continuation: a text for a text, a list for a list.

    The arguments are those of inference.generate.continuations.

    Raises:
      InputError: an empty prompt, a value that is not allowed, or a model that is not causal.
    """
    batch = [prompts] if isinstance(prompts, str) else list(prompts)
    texts = continuations(self.loaded, batch, max_tokens, temperature, top_k, top_p, seed)
    return texts[0] if isinstance(prompts, str) else texts

  def log_probs(self, texts: str | Sequence[str]) -> Scored | list[Scored]:
    """The log-probability of every token given those before it, for a text or a list of texts.

    Raises:
      InputError: an empty text, one longer than the model's context, or a model that is not causal.
    """
    model = self._language_model
    scored = []
    for batch, lengths in self._batches([texts] if isinstance(texts, str) else list(texts)):
      log_probs = np.asarray(text_log_probs(model, self._trunk, batch))
      for ids, values, length in zip(batch.tolist(), log_probs, lengths, strict=True):
        tokens = [self.loaded.tokenizer.piece(i) for i in ids[:length]]
        scored.append(Scored(tokens, np.concatenate([[np.float32(np.nan)], values[: length - 1]])))
    return scored[0] if isinstance(texts, str) else scored

  def embed(self, texts: str | Sequence[str]) -> np.ndarray:
    """The mean of the last hidden states over a text's tokens: float32 [D], or [N, D] for a list.

    Raises:
      InputError: an empty text, or one longer than the model's context.
    """
    model = self.loaded.model
    vectors = [np.zeros((0, self.loaded.spec.trunk.width), np.float32)]
    for batch, lengths in self._batches([texts] if isinstance(texts, str) else list(texts)):
      vectors.append(np.asarray(mean_hidden(model, self._trunk, batch, lengths)))
    embedded = np.concatenate(vectors)
    return embedded[0] if isinstance(texts, str) else embedded

  def classify(
    self, texts: str | Sequence[str | Sequence[str]], calibrated: bool = False
  ) -> dict[str, float] | list[dict[str, float]]:
    """The probability of every label, for a text or a list of texts.

    A text of a task with several columns is a tuple of their values.

    Args:
      calibrated: scale the probabilities by the temperature that fine-tuning found on the dev set,
        as launch/predict.py does.

    Raises:
      InputError: a language model, a task that labels words, a wrong number of columns, an empty
        text, or a checkpoint without a temperature.
    """
    task = self.loaded.label_task()
    if task is None:
      raise InputError(f"{self.loaded.path}: a language model without a head; fine-tune it first")
    examples = []
    for number, text in enumerate([texts] if isinstance(texts, str) else texts, start=1):
      cells = (text,) if isinstance(text, str) else tuple(text)
      if len(cells) != len(task.columns):
        columns = f"{task.name} reads {len(task.columns)}: {', '.join(task.columns)}"
        raise InputError(f"text {number}: {len(cells)} columns; {columns}")
      examples.append(task.example(Row(cells, None, f"text {number}")))
    if not examples:
      return []
    encoded = task.encode(examples, self.loaded.tokenizer, self.loaded.spec.trunk.context)
    probabilities = self._predictor(encoded, 2 * _BATCH)
    if calibrated:
      probabilities = scale(probabilities, self._temperature)
    labeled = [dict(zip(task.labels, map(float, row), strict=True)) for row in probabilities]
    return labeled[0] if isinstance(texts, str) else labeled

  @functools.cached_property
  def _language_model(self):
    return self.loaded.language_model()

  @functools.cached_property
  def _predictor(self) -> Callable[..., np.ndarray]:
    return self.loaded.predictor()

  @functools.cached_property
  def _temperature(self) -> float:
    return read_dev_set(self.loaded.folder, self.labels, self.loaded.step).temperature

  @property
  def _trunk(self) -> dict[str, Any]:
    return {"trunk": self._params["trunk"]}

  def _batches(self, texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Padded token ids int32 [B, T], and the length of each text [B]."""
    context = self.loaded.spec.trunk.context
    encoded = self.loaded.tokenizer.encode_many(texts)
    for number, ids in enumerate(encoded, start=1):
      if not len(ids):
        raise InputError(f"text {number}: empty; give at least one word")
      if len(ids) > context:
        raise InputError(
          f"text {number}: {len(ids)} tokens, and the model's context is {context}; "
          "give a part of it"
        )
    for first in range(0, len(encoded), _BATCH):
      chunk = encoded[first : first + _BATCH]
      lengths = np.array([len(ids) for ids in chunk])
      batch = np.zeros((len(chunk), bucket(int(lengths.max()), context)), np.int32)
      for row, ids in zip(batch, chunk, strict=True):
        row[: len(ids)] = ids
      yield batch, lengths
