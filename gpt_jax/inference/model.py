"""A trained model in a notebook: `gpt_jax.load(path)` gives an object that generates, scores,
embeds and classifies.

Letters: N texts, B of them at once, T tokens of the longest, D width, R rows of the table.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gpt_jax.batch import TextBatch
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.config import from_json
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import make_predictor
from gpt_jax.inference.generate import continuations
from gpt_jax.models.model import LanguageModel
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.tasks.readers import Row

_BATCH = 16
_SHORTEST = 16  # widths are powers of two from here, so that few shapes need compiling


class Scored(NamedTuple):
  """How expected each token of a text was.

  Attributes:
    tokens: as the vocabulary spells them.
    log_probs: float32 [tokens], in nats; nan for the first, which has nothing before it.
  """

  tokens: list[str]
  log_probs: np.ndarray

  @property
  def perplexity(self) -> float:
    """Per token, of all but the first; nan of a text of one token."""
    return (
      float(np.exp(-self.log_probs[1:].mean(dtype=np.float64)))
      if len(self.tokens) > 1
      else float("nan")
    )


def load(path: str) -> "Model":
  """What gpt_jax.load calls; see there."""
  return Model(load_model(path))


class Model:
  """A trained model with its vocabulary and, where it was fine-tuned, its task.

  Attributes:
    found: the parameters, the config, and all else that was saved; see pretrained.Pretrained.
    labels: the outcomes that `classify` tells apart; empty for a language model.
    columns: the texts that it reads for each; empty for a language model.
  """

  def __init__(self, found: LoadedModel):
    self.found = found
    self._task = from_json(found.meta["task"]).build("") if found.spec.head else None
    self.labels: tuple[str, ...] = self._task.labels if self._task else ()
    self.columns: tuple[str, ...] = self._task.columns if self._task else ()
    self._params = jax.device_put(found.params)
    self._language_model = LanguageModel(found.spec.trunk)

  def __repr__(self):
    what = f"fine-tuned on {self._task.name}" if self._task else "language model"
    trunk = self.found.spec.trunk
    return f"<{what}, {trunk.parameter_count():,} parameters, context {trunk.context}, from {self.found.path}>"

  def generate(
    self,
    prompts: str | Sequence[str],
    max_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
  ) -> str | list[str]:
    """Each prompt with its continuation: a text for a text, a list for a list; see generate.run for
    the arguments.

    Raises:
      InputError: an empty prompt, or a value that is not allowed.
    """
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    texts = continuations(self.found, given, max_tokens, temperature, top_k, top_p, seed)
    return texts[0] if isinstance(prompts, str) else texts

  def log_probs(self, texts: str | Sequence[str]) -> Scored | list[Scored]:
    """The log-probability of every token given those before it: of a text, or of each text of a
    list.

    Raises:
      InputError: an empty text, or one that is longer than the model's context.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    scored = []
    for batch, lengths in self._batches(given):
      found = np.asarray(_log_probs(self._language_model, self._trunk, batch))
      for ids, values, length in zip(batch.tolist(), found, lengths, strict=True):
        tokens = [self.found.tokenizer.piece(i) for i in ids[:length]]
        scored.append(Scored(tokens, np.concatenate([[np.float32(np.nan)], values[: length - 1]])))
    return scored[0] if isinstance(texts, str) else scored

  def embed(self, texts: str | Sequence[str]) -> np.ndarray:
    """The mean of the trunk's last hidden states over a text's tokens: float32 [D] of a text, [N,
    D] of a list.

    Raises:
      InputError: an empty text, or one that is longer than the model's context.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    found = [
      np.asarray(_mean_hidden(self._language_model, self._trunk, *each))
      for each in self._batches(given)
    ]
    vectors = (
      np.concatenate(found) if found else np.zeros((0, self.found.spec.trunk.width), np.float32)
    )
    return vectors[0] if isinstance(texts, str) else vectors

  def classify(
    self, texts: str | Sequence[str | Sequence[str]]
  ) -> dict[str, float] | list[dict[str, float]]:
    """The probability of every label: of a text, or of each text, or tuple of the task's columns,
    of a list.

    Raises:
      InputError: a language model, another number of columns, or an empty text.
    """
    task = self._task
    if task is None:
      raise InputError(f"{self.found.path}: a language model without a head; fine-tune it first")
    examples = []
    for number, text in enumerate([texts] if isinstance(texts, str) else texts, start=1):
      cells = (text,) if isinstance(text, str) else tuple(text)
      if len(cells) != len(task.columns):
        wanted = f"{task.name} reads {len(task.columns)}: {', '.join(task.columns)}"
        raise InputError(f"text {number}: {len(cells)} columns; {wanted}")
      examples.append(task.example(Row(cells, None, f"text {number}")))
    if not examples:
      return []
    encoded = task.encode(examples, self.found.tokenizer, self.found.spec.trunk.context)
    mesh, predictor = self._predictor
    probabilities = predictor(replicate(self.found.params, mesh), encoded, 2 * _BATCH)
    found = [dict(zip(task.labels, map(float, each), strict=True)) for each in probabilities]
    return found[0] if isinstance(texts, str) else found

  @functools.cached_property
  def _predictor(self) -> tuple[Mesh, Callable[..., np.ndarray]]:
    """Kept, since each one made compiles anew."""
    mesh = make_mesh(MeshConfig())
    return mesh, make_predictor(self.found.model, mesh)

  @property
  def _trunk(self) -> dict[str, Any]:
    return {"trunk": self._params["trunk"]}

  def _batches(self, texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids [B, T], filled up with 0, and how many of each row are the text's."""
    context = self.found.spec.trunk.context
    encoded = self.found.tokenizer.encode_many(texts)
    for number, ids in enumerate(encoded, start=1):
      if not 0 < len(ids) <= context:
        problem = (
          f"{len(ids)} tokens, and the model's context is {context}" if len(ids) else "empty"
        )
        raise InputError(
          f"text {number}: {problem}; give {'a part of it' if len(ids) else 'at least one word'}"
        )
    for first in range(0, len(encoded), _BATCH):
      some = encoded[first : first + _BATCH]
      lengths = np.array([len(ids) for ids in some])
      width = min(context, max(_SHORTEST, 1 << (int(lengths.max()) - 1).bit_length()))
      batch = np.zeros((len(some), width), np.int32)
      for row, ids in zip(batch, some, strict=True):
        row[: len(ids)] = ids
      yield batch, lengths


def _hidden(model: LanguageModel, params: Any, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
  places = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
  return model.apply({"params": params}, TextBatch(ids, None, None, places, None))


@functools.partial(jax.jit, static_argnames="model")
def _log_probs(model: LanguageModel, params: Any, ids: jax.Array) -> jax.Array:
  """[B, T] -> [B, T - 1]."""
  hidden, table = _hidden(model, params, ids)

  def of_row(both):  # one text's logits at a time are in memory
    hidden, ids = both
    scores = logits(hidden[:-1], table, model.num_tokens)
    right = jnp.take_along_axis(scores, ids[1:, None], axis=-1)[:, 0]
    return right - jax.nn.logsumexp(scores, axis=-1)

  return jax.lax.map(of_row, (hidden, ids))


@functools.partial(jax.jit, static_argnames="model")
def _mean_hidden(
  model: LanguageModel, params: Any, ids: jax.Array, lengths: jax.Array
) -> jax.Array:
  """[B, T] -> [B, D]."""
  hidden, _ = _hidden(model, params, ids)
  inside = (jnp.arange(ids.shape[1])[None] < lengths[:, None])[..., None]
  return jnp.where(inside, hidden.astype(jnp.float32), 0).sum(1) / lengths[:, None]
