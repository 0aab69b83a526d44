"""The prepared text of a pre-training run: its batches, what is measured on it and warned of."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from gpt_jax.batch import Batch
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.windows import Windows
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import make_text_measure
from gpt_jax.models.model import ModelConfig
from gpt_jax.objectives.objective import Bound, example_batch
from gpt_jax.parallel.placement import anchors_of_parts, local_rows
from gpt_jax.programs.pretrain_config import PretrainConfig, model_spec
from gpt_jax.training import hooks


class Text(NamedTuple):
  """A prepared folder: training and held-out text, and the tokenizer of both."""

  train: TokenFile
  held_out: TokenFile
  tokenizer: Tokenizer

  def windows(self, config: PretrainConfig, tokens: TokenFile, seed: int = 0) -> Windows:
    """The rows of its training or held-out text."""
    if config.data.weights:
      raise InputError("data.weights: are of several prepared folders, and there is one")
    return config.objective.windows(tokens, config.data, seed)


def load_text(config: PretrainConfig, data: str) -> Text:
  """The text of a prepared folder; its tokenizer has the objective's special tokens."""
  text, held_out = TokenFile(data, "train"), TokenFile(data, "valid")
  tokenizer = load_tokenizer(f"{data}/tokenizer")
  try:
    tokenizer = tokenizer.with_special(*config.objective.special)
  except InputError as error:
    raise InputError(f"{data}/tokenizer: {error}") from error
  text.check_vocabulary(tokenizer)
  held_out.check_vocabulary(tokenizer)
  return Text(text, held_out, tokenizer)


class TextBatches:
  """The batches of a text under an objective; see recipe.Batches."""

  def __init__(
    self,
    config: PretrainConfig,
    objective: Bound,
    mesh: Mesh,
    windows: Windows | None,
    microbatches: int,
  ):
    self.shape = config.data.batch_size, config.data.length
    self._config, self._objective, self._windows = config, objective, windows
    self._mesh, self._microbatches = mesh, microbatches

  @functools.cached_property
  def _rows(self) -> np.ndarray:
    return local_rows(self.shape[0], self._mesh, self._microbatches)

  def at(self, step: int) -> Batch:
    rows, windows = self._rows, self._windows
    assert windows is not None
    batch = self._objective(windows(step, rows), windows.draw(step, rows))
    pmap = self._config.mesh.backend == "pmap"
    # Anchors are relative to the rows that are computed together: a microbatch, on pmap's device.
    parts = self._microbatches * (self._mesh.shape["data"] if pmap else 1)
    return anchors_of_parts(batch, rows, self.shape[0] // parts)

  def example(self) -> Batch:
    size, length = self.shape
    return example_batch(self._config.objective, self._objective, length, size)


def data_identity(text: TokenFile, held_out: TokenFile) -> dict[str, Any]:
  """Identifies the text, so that a run resumes only with the same one."""
  return {
    "train_tokens": text.n_tokens,
    "train_digest": text.digest,
    "valid_tokens": held_out.n_tokens,
    "valid_digest": held_out.digest,
  }


def make_measure(config: PretrainConfig, text: Text, mesh: Mesh) -> Callable[..., dict[str, float]]:
  """The function from parameters to the measures of the held-out text, valid_loss among them."""
  # With seed 0, not the run's: all runs are measured on the same rows and masks.
  windows = text.windows(config, text.held_out)
  objective = config.objective.bind(text.tokenizer, config.data.length)
  model = model_spec(config).build()
  text_measure = make_text_measure(model, objective, windows, mesh, config.evaluation_batches)

  def measure(params, *other: Windows) -> dict[str, float]:  # held-out text in place of `text`
    return {f"valid_{name}": value for name, value in text_measure(params, *other).items()}

  return measure


def warn_when_stuck(
  config: PretrainConfig,
  spec: ModelConfig,
  text: TokenFile,
  total_steps: int,
  new_heads: Sequence[str] = (),
) -> list[hooks.Hook]:
  """The warning that after twice the warm-up a loss is no better than with nothing learned.

  A head that is new beside a trunk that is not begins above the loss of word frequencies.
  """
  after = max(1, 2 * config.optim.warmup_length(total_steps))  # one update shows nothing yet
  due = hooks.every(config.train.log_every)
  if spec.predicts_tokens:
    first, reason = spec.heads[0].scope, {}
    if first in new_heads:
      reason["meaning"] = f"the {first} head is new"
      reason["advice"] = "train longer (train.steps or train.epochs)"
    entropy = config.objective.word_share(config.data.length) * text.unigram_entropy
    return [hooks.warn_when_stuck(entropy, after, due, spec.token_metric, **reason)]
  return [
    hooks.warn_when_stuck(
      chance, after, due, name="chance", meaning="the vectors of all texts are alike so far"
    )
    for head in spec.heads
    if (chance := head.chance(config.data.batch_size)) is not None
  ]
