"""Samples at each temperature beside the real continuations in the held-out text: distinct n-grams
(Li et al. 2016), and n-grams that occurred before (Welleck et al. 2020).
"""

import itertools
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.apps.diagnose.gradients import trained_length
from gpt_jax.apps.diagnose.texts import Budget, Texts, held_out_rows
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.inference.scoring import text_log_probs
from gpt_jax.inference.stream import Sampling, Text, continue_texts

_PROMPT = 8  # tokens
_SAMPLE = 60  # words that are shown
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def measure_sampling(loaded: LoadedModel, texts: Texts, budget: Budget) -> dict[str, Any]:
  """JSON: tokens_per_second, and the measures of held-out text and of each temperature."""
  model, params = loaded.language_model(), jax.device_put(loaded.params)
  rows = held_out_rows(texts, _PROMPT + budget.text_tokens, budget.texts)
  read = min(rows.shape[1], trained_length(loaded))

  def measures(ids: np.ndarray) -> dict[str, Any]:
    written = []
    for row in ids.tolist():  # without their prompts
      given = loaded.tokenizer.decode(row[:_PROMPT])
      written.append(loaded.tokenizer.decode(row).removeprefix(given))
    nats = -np.asarray(text_log_probs(model, params, ids[:, :read]))[:, _PROMPT - 1 :]
    sample = " ".join(written[0].split()[:_SAMPLE])
    return diversity(written) | {"nats": float(nats.mean()), "sample": sample}

  result: dict[str, Any] = {"texts": len(rows), "tokens": budget.text_tokens}
  result["prompt"] = loaded.tokenizer.decode(rows[0, :_PROMPT].tolist()).strip()
  result["held_out"] = measures(rows)
  result["temperatures"], paces = [], []
  for temperature in budget.temperatures:
    began = time.monotonic()
    samples = []
    for seed, row in enumerate(rows[:, :_PROMPT].tolist()):
      samples.append(Text(row, Sampling(budget.text_tokens, temperature, seed=seed)))
    for _ in continue_texts(model, params, samples):
      pass
    ids = np.array([sample.ids for sample in samples], np.int32)
    paces.append(len(rows) * budget.text_tokens / (time.monotonic() - began))
    result["temperatures"].append({"temperature": temperature, **measures(ids)})
  # Without the first, during which the programs are compiled.
  result["tokens_per_second"] = statistics.median(paces[1:] or paces)
  return result


def words(text: str) -> list[str]:
  """Words and punctuation marks, case-folded, so that vocabularies can be compared."""
  return _WORD.findall(text.casefold())


def diversity(texts: Sequence[str]) -> dict[str, float]:
  """Measures of some texts. They depend on number and length: compare like with like.

  distinct_n is the share of different n-grams of words among those of all texts together,
  repeated_4 the share of 4-grams that occurred before in their text.
  """
  split, measures = list(map(words, texts)), {}
  for n in (1, 2, 3):
    grams = list(itertools.chain.from_iterable(_ngrams(text, n) for text in split))
    measures[f"distinct_{n}"] = len(set(grams)) / len(grams) if grams else 0.0
  long_grams = [_ngrams(text, 4) for text in split]
  repeated, total = sum(len(x) - len(set(x)) for x in long_grams), sum(map(len, long_grams))
  measures["repeated_4"] = repeated / total if total else 0.0
  return measures


def _ngrams(items: Sequence[str], n: int) -> list[tuple[str, ...]]:
  return [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
