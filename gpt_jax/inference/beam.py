"""Beam search: the likeliest continuation among several candidates. K beams, V vocabulary."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.errors import InputError
from gpt_jax.inference.decoding import read_prompts, take_rows
from gpt_jax.inference.scoring import bucket
from gpt_jax.inference.stream import (
  Text,
  Token,
  check_fits,
  continue_texts,
  read_before,
  source_slots_for,
)
from gpt_jax.models.decoding_weights import variables
from gpt_jax.models.model import Model
from gpt_jax.ops.cross_entropy import logits

_MAX_BEAMS = 256
_repeat = jax.jit(take_rows, static_argnums=2)


class Hypothesis(NamedTuple):
  """A continuation."""

  ids: list[int]  # with the end token if it has one
  log_prob: float  # of all of them, in nats
  score: float  # log_prob / number of tokens ^ length penalty


def beam_search(
  model: Model,
  params: Any,
  prompt: Sequence[int],
  beams: int,
  max_tokens: int,
  length_penalty: float = 1.0,
  ends: Collection[int] = (),
  source: Sequence[int] = (),
) -> list[Hypothesis]:
  """The best continuations of a prompt that were found, at most `beams`, the best first.

  Every step keeps the `beams` likeliest continuations that have not ended.

  Args:
    model, params: see Stream.
    max_tokens: tokens to add, fewer where a continuation ends.
    length_penalty: above 0 favors long continuations, 0 compares their probabilities. Without an
      end token all have the same length.
    ends, source: see Text.
  """
  check_fits(model, len(prompt), max_tokens)
  collections = variables(params)
  state = read_prompts(
    model,
    collections,
    [prompt[: read_before(model, len(prompt))]],
    [source],
    rows=1,
    slots=bucket(len(prompt) + max_tokens, model.config.trunk.context),
    source_slots=source_slots_for(len(source)),
  )
  state = _repeat(state, np.zeros(beams, np.int32), 1)
  ended: list[Hypothesis] = []
  running: list[list[int]] = [[] for _ in range(beams)]
  # All beams are equal before the first token: one of them is enough.
  totals = np.array([0.0] + [-np.inf] * (beams - 1), np.float32)
  parents, last = np.arange(beams), np.full(beams, prompt[-1], np.int32)
  for number in range(max_tokens):
    position = np.int32(len(prompt) - 1 + number)
    state, best = _step(model, collections, state, parents, last, position, totals)
    values, origins, ids = (x.tolist() for x in jax.device_get(best))
    kept: list[tuple[float, int, int]] = []
    for value, parent, token in zip(values, origins, ids, strict=True):
      if value == -np.inf:  # there is no such beam: at first, or where fewer than K went on
        continue
      if token in ends:
        ended.append(_hypothesis([*running[parent], token], value, length_penalty))
      elif len(kept) < beams:
        kept.append((value, parent, token))
    if not kept:
      return _best(ended, beams)
    if len(ended) >= beams and length_penalty >= 0:
      # A total only falls, so this is more than what goes on can reach.
      reachable = kept[0][0] / max_tokens**length_penalty
      ended = _best(ended, beams)
      if ended[-1].score >= reachable:
        return ended
    alive = len(kept)
    # Always `beams` rows, for one compiled shape; -inf keeps the copies from being chosen.
    kept += [(-np.inf, *kept[0][1:])] * (beams - alive)
    running = [[*running[parent], token] for _, parent, token in kept]
    totals = np.array([value for value, _, _ in kept], np.float32)
    parents = np.array([parent for _, parent, _ in kept])
    last = np.array([token for _, _, token in kept], np.int32)
  pairs = zip(running[:alive], totals[:alive].tolist(), strict=True)
  ended += [_hypothesis(ids, total, length_penalty) for ids, total in pairs]
  return _best(ended, beams)


def complete(
  model: Model,
  params: Any,
  texts: Sequence[Text],
  beams: int = 1,
  length_penalty: float = 1.0,
  done: Callable[[int], None] = lambda _: None,
) -> None:
  """Adds all tokens to each text: as its sampling says or, with several beams, the likeliest.

  beams, length_penalty: see beam_search; 1: each is sampled. done: is called with the number of
    finished texts as it grows.
  """
  finished = 0
  if beams == 1:
    by_length = sorted(  # for less padding
      texts, key=lambda text: (len(text.prompt), len(text.source), text.sampling.max_tokens)
    )
    for continued in continue_texts(model, params, by_length):
      finished += sum(text.done for text in continued)
      done(finished)
    return
  for finished, text in enumerate(texts, start=1):
    options = beams, text.missing, length_penalty, text.ends, text.source
    best = beam_search(model, params, text.prompt, *options)[0]
    text.added = [Token(i, 0.0, []) for i in best.ids]
    done(finished)


def _hypothesis(ids: list[int], log_prob: float, length_penalty: float) -> Hypothesis:
  return Hypothesis(ids, log_prob, log_prob / len(ids) ** length_penalty)


def check_search(beams: int, length_penalty: float) -> None:
  """Raises InputError for settings that are out of range."""
  if not 1 <= beams <= _MAX_BEAMS:
    raise InputError(f"beams={beams}: must be from 1 to {_MAX_BEAMS}")
  if not abs(length_penalty) <= 10:
    raise InputError(f"length_penalty={length_penalty}: must be from -10 to 10")


def _best(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
  return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(model, collections, state, parents, last, position, totals):
  """The state of beams that continue `parents` [K] with `last` [K], and the next candidates.

  Candidates are the 2 K best, so that K go on even if K end: total log-probability, beam and token.
  """
  beams = len(parents)
  positions = jnp.broadcast_to(position, (beams, 1))
  about = positions, jnp.ones((beams, 1), bool), take_rows(state, parents, beams)
  hidden, table, state = model.apply(collections, last[:, None], *about, method="extend")
  scores = logits(hidden[:, 0], table, model.num_tokens)[:, : model.num_tokens]
  # [K, V]: log-probability of each continuation as a whole.
  sums = totals[:, None] + jax.nn.log_softmax(scores)
  values, indices = jax.lax.top_k(sums.reshape(-1), min(2 * beams, sums.size))
  return state, (values, indices // model.num_tokens, indices % model.num_tokens)
