"""Samples at each temperature, compared with the real continuations in the held-out text."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.apps.diagnose.budget import Budget
from gpt_jax.apps.diagnose.gradients import trained_length
from gpt_jax.apps.diagnose.text_diversity import diversity
from gpt_jax.apps.diagnose.texts import Texts, held_out_rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.data.tokenizers.base import Tokenizer
from gpt_jax.inference.scoring import text_log_probs
from gpt_jax.inference.stream import Sampling, Text, continue_texts
from gpt_jax.models.model import Model

_PROMPT = 8  # tokens
_SAMPLE = 60  # words that are shown


def measure_sampling(loaded: LoadedModel, texts: Texts, budget: Budget) -> dict[str, Any]:
  """JSON: the measures of the held-out text and of each temperature, and tokens_per_second.

  The prompts are pieces of the held-out text, so that its own continuations are as many texts, of
  as many tokens, on the same subjects.
  """
  model, params = loaded.language_model(), jax.device_put(loaded.params)
  rows = held_out_rows(texts, _PROMPT + budget.text_tokens, budget.texts)
  read = min(rows.shape[1], trained_length(loaded))

  def measures(ids: np.ndarray) -> dict[str, Any]:
    written = [_continuation(loaded.tokenizer, row) for row in ids.tolist()]
    nats = -np.asarray(text_log_probs(model, params, ids[:, :read]))[:, _PROMPT - 1 :]
    sample = " ".join(written[0].split()[:_SAMPLE])
    return diversity(written) | {"nats": float(nats.mean()), "sample": sample}

  result: dict[str, Any] = {"texts": len(rows), "tokens": budget.text_tokens}
  result["prompt"] = loaded.tokenizer.decode(rows[0, :_PROMPT].tolist()).strip()
  result["held_out"] = measures(rows)
  result["temperatures"], paces = [], []
  for temperature in budget.temperatures:
    settings = Sampling(budget.text_tokens, temperature)
    began = time.monotonic()
    ids = _write(model, params, rows[:, :_PROMPT], settings)
    paces.append(len(rows) * budget.text_tokens / (time.monotonic() - began))
    result["temperatures"].append({"temperature": temperature, **measures(ids)})
  # Without the first, during which the programs are compiled.
  result["tokens_per_second"] = statistics.median(paces[1:] or paces)
  return result


def _write(model: Model, params: Any, prompts: np.ndarray, settings: Sampling) -> np.ndarray:
  """int32 [B, T]: prompts [B, P] with their continuations; text number i has the seed i."""
  texts = []
  for number, prompt in enumerate(prompts.tolist()):
    texts.append(Text(prompt, dataclasses.replace(settings, seed=number)))
  for _ in continue_texts(model, params, texts):
    pass
  return np.array([text.ids for text in texts], np.int32)


def _continuation(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
  """The text without its prompt."""
  given = tokenizer.decode(list(ids[:_PROMPT]))
  return tokenizer.decode(list(ids)).removeprefix(given)
