"""A trained model as a model of EleutherAI's lm-evaluation-harness, under the name `gpt_jax`.

The README beside this file says how a continuation and a text's first token are scored. A text
longer than the model's context is scored in windows: every token once, and the last window is full.
A context that leaves no room for its continuation loses its first tokens. Text is generated until a
stop string, greedily unless the task says otherwise. A masked language model scores each token
given all others of its text or window: the pseudo-log-likelihood.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gpt_jax import errors
from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.errors import InputError
from gpt_jax.inference.generate import find_stop
from gpt_jax.inference.masked_lm import MaskedLM
from gpt_jax.inference.scoring import Scorer
from gpt_jax.inference.stream import Sampling, Text, continue_texts

_BATCH = 16
_MAX_TOKENS = 256  # to generate where a task does not say; the harness's own default

Progress = Callable[[list[Any]], Iterable[Any]]  # batches -> batches, each of which it counts
Generation = tuple[tuple[str, ...], Sampling]  # a task's `generation_kwargs`: stop strings first


def load(checkpoint: str) -> Any:
  """The model to give to lm_eval.simple_evaluate; of a fine-tuned checkpoint its trunk."""
  return model_class()(checkpoint)


@functools.cache
def model_class() -> Any:
  """The subclass of the harness's LM, which lm_eval.simple_evaluate(model="gpt_jax",
  model_args="checkpoint=DIR") finds after this call.
  """
  errors.require("lm_eval", "the evaluation harness", "lm-eval", "lm-eval")
  from lm_eval.api.model import LM
  from lm_eval.api.registry import register_model
  from lm_eval.models.utils import normalize_gen_kwargs
  from tqdm import tqdm

  def progress_of(kind: str) -> Progress:
    return functools.partial(tqdm, desc=kind, unit="batch", disable=None)

  @register_model("gpt_jax")
  class HarnessModel(LM):
    """Scores and generates with one checkpoint, on one device."""

    def __init__(self, checkpoint: str, batch_size: int = _BATCH, **ignored):
      super().__init__()  # ignored: the device and maximal batch size that the harness may pass
      self._requests = Requests(
        load_model(checkpoint, check=LoadedModel.check_scores), int(batch_size)
      )

    def loglikelihood(self, requests):
      pairs = [request.args for request in requests]
      progress = progress_of("loglikelihood")
      return self._requests.log_likelihoods(pairs, _locations(requests), progress)

    def loglikelihood_rolling(self, requests):
      texts = [request.args[0] for request in requests]
      return self._requests.text_log_likelihoods(texts, progress_of("loglikelihood_rolling"))

    def generate_until(self, requests):
      where = _locations(requests)
      prompts, settings = [], []
      for request, location in zip(requests, where, strict=True):
        prompt, kwargs = request.args
        prompts.append(prompt)
        settings.append(_generation(normalize_gen_kwargs(kwargs, _MAX_TOKENS), location))
      return self._requests.generate(prompts, settings, where, progress_of("generate_until"))

  return HarnessModel


class Requests:
  """Answers the harness's requests with a causal model, or a masked one, which does not generate;
  needs no part of the harness itself. batch_size: windows or prompts at a time.
  """

  def __init__(self, loaded: LoadedModel, batch_size: int = _BATCH):
    self._masked = loaded.spec.attention == "bidirectional"
    self._scorer: Any = MaskedLM(loaded) if self._masked else Scorer(loaded, batch_size)
    self._tokenizer, self._batch_size = loaded.tokenizer, batch_size
    self._vocab_size = loaded.spec.trunk.vocab_size
    # Only released weights were trained with the mark between texts.
    end = loaded.tokenizer.end_id if loaded.config is None else None
    self._prefix: list[int] = [] if end is None else [end]

  def log_likelihoods(
    self, pairs: Sequence[tuple[str, str]], where: Sequence[str], progress: Progress = iter
  ) -> list[tuple[float, bool]]:
    """log P of each continuation in (context, continuation), in nats, and whether it is the greedy
    one; where: the task and document of each, for messages.
    """
    contexts = self._tokenizer.encode_many([context.rstrip() for context, _ in pairs])
    wholes = self._tokenizer.encode_many([context + added for context, added in pairs])
    texts = []
    for context, whole, (_, added), place in zip(contexts, wholes, pairs, where, strict=True):
      ids = whole.tolist()
      known = len(os.path.commonprefix([context.tolist(), ids]))
      if known == len(ids):
        raise InputError(f"{place}: the continuation {added!r} adds no token to its context")
      texts.append((ids, known))
    return self._score(texts, progress)

  def text_log_likelihoods(self, texts: Sequence[str], progress: Progress = iter) -> list[float]:
    """log P of each text, in nats; 0 for an empty one."""
    encoded = self._tokenizer.encode_many(list(texts))
    return [log_prob for log_prob, _ in self._score([(x.tolist(), 0) for x in encoded], progress)]

  def generate(
    self,
    prompts: Sequence[str],
    settings: Sequence[Generation],
    where: Sequence[str],
    progress: Progress = iter,
  ) -> list[str]:
    """The text that follows each prompt, up to the first stop string.

    A stop string also matches as the vocabulary spells it: in lower case, for most. Prompt number i
    samples with seed i. A prompt too long for the context loses its first tokens.
    """
    if self._masked:
      raise InputError(f"{where[0]}: a masked language model does not continue a text")
    stops = {given: self._as_spelled(given) for given in {given for given, _ in settings}}
    texts = []
    encoded = self._tokenizer.encode_many(list(prompts))
    for number, (ids, (_, own), place) in enumerate(zip(encoded, settings, where, strict=True)):
      prompt = ids.tolist() or self._prefix
      if not prompt:
        raise InputError(f"{place}: the prompt is empty; the model needs a token to begin with")
      texts.append(Text(prompt, dataclasses.replace(own, seed=number)))

    def alike(i: int) -> tuple[Any, ...]:
      given, own = settings[i]
      return given, dataclasses.astuple(own), len(texts[i].prompt)

    batches = _in_batches(sorted(range(len(texts)), key=alike), self._batch_size)
    written = [""] * len(texts)
    for numbers in progress(batches):
      batch = [texts[i] for i in numbers]
      for _ in continue_texts(self._scorer.model, self._scorer.params, batch):
        for i in numbers:
          before = self._tokenizer.decode(texts[i].prompt)
          whole = self._tokenizer.decode(texts[i].ids)
          added = whole[len(os.path.commonprefix([before, whole])) :]
          end = find_stop(added, stops[settings[i][0]])
          written[i], texts[i].stopped = added[:end], end is not None
    return written

  def _as_spelled(self, stops: Sequence[str]) -> set[str]:
    """The stop strings, also as the vocabulary spells them."""
    given = sorted(filter(None, stops))
    spelled = [self._tokenizer.decode(ids) for ids in self._tokenizer.encode_many(given)]
    return {*given, *filter(str.strip, spelled)}

  def _score(
    self, texts: Sequence[tuple[list[int], int]], progress: Progress
  ) -> list[tuple[float, bool]]:
    """log P of each text's ids from a number on, and whether they are the greedy ones."""
    totals, greedy = [0.0] * len(texts), [True] * len(texts)
    windows = []  # (ids, text, first id, id after the last, first id scored)
    limit = self._scorer.room - 1  # ids that the model reads: all of a window but the last
    for number, (ids, first) in enumerate(texts):
      if ids and not first and not self._masked:  # a causal model reads something before them
        ids, first = [*self._prefix, *ids], 1
        if not self._prefix:
          totals[number], greedy[number] = -math.log(self._vocab_size), False
      while first < len(ids):
        end = min(first + limit, len(ids))
        windows.append((ids, number, max(0, end - 1 - limit), end, first))
        first = end
    if not self._masked:  # which sorts by itself
      # The longest first, so that one that does not fit the memory is met at once.
      windows.sort(key=lambda window: window[2] - window[3])
    for batch in progress(_in_batches(windows, self._batch_size)):
      parts = [np.array(ids[start:end], np.int32) for ids, _, start, end, _ in batch]
      scored = self._scorer.score(parts, first=[first - start for *_, start, _, first in batch])
      for (_, number, *_), (log_probs, best) in zip(batch, scored, strict=True):
        totals[number] += float(log_probs.sum(dtype=np.float64))
        greedy[number] &= bool(best.all())
    return list(zip(totals, greedy, strict=True))


def _in_batches(items: list[Any], size: int) -> list[list[Any]]:
  return [items[first : first + size] for first in range(0, len(items), size)]


def _locations(requests: Sequence[Any]) -> list[str]:
  return [f"{request.task_name}, document {request.doc_id}" for request in requests]


def _generation(kwargs: Any, where: str) -> Generation:
  """The settings in a task's normalized generation_kwargs, which may have no others."""
  options = dict(kwargs)
  stops, temperature = tuple(options.pop("until")), float(options.pop("temperature", 1.0))
  settings: dict[str, Any] = {
    "max_tokens": options.pop("max_gen_toks"),
    "temperature": temperature if options.pop("do_sample") else 0.0,
    "top_k": int(options.pop("top_k", 0)),
    "top_p": float(options.pop("top_p", 1.0)),
  }
  if options:
    raise InputError(
      f"{where}: generation_kwargs.{min(options)}: not supported; should be among until, "
      "max_gen_toks, do_sample, temperature, top_k, top_p"
    )
  with errors.about(where):
    return stops, Sampling(**settings)
