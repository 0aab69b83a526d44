"""Beam search: the best of all continuations, and as transformers' without an end token."""

import itertools

import jax
import numpy as np
import pytest
from refused import refused
from sampled_texts import sample

from gpt_jax.inference.beam import beam_search
from gpt_jax.inference.scoring import text_log_probs
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

PROMPT, STEPS, VOCABULARY = [3, 1, 4], 3, 5


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def trained(request, make_run):
  trunks = {
    "transformer": TransformerConfig(VOCABULARY, context=16, layers=1, width=16, heads=2),
    "lstm": LSTMConfig(VOCABULARY, context=16, width=8, units=12),
  }
  spec = ModelConfig(trunks[request.param])
  return spec.build(), jax.tree.map(lambda x: 2 * x, make_run.params_of(spec, 3))


def log_probs(model, params, continuations):
  """Of each token of continuations of equal length: [N, T]."""
  rows = np.zeros((VOCABULARY**STEPS, 16), np.int64)  # of one shape, so that it compiles once
  for row, ids in zip(rows, continuations, strict=False):
    row[: len(PROMPT) + len(ids)] = [*PROMPT, *ids]
  last = len(PROMPT) + len(continuations[0]) - 1
  values = np.asarray(text_log_probs(model, params, rows))
  return values[: len(continuations), len(PROMPT) - 1 : last]


@pytest.mark.parametrize("end, length_penalty", [(None, 1.0), (2, 0.0), (2, 1.0), (2, 3.0)])
def test_with_enough_beams_it_finds_the_best_of_all(trained, end, length_penalty):
  every = list(itertools.product(range(VOCABULARY), repeat=STEPS))
  expected = {}
  for ids, values in zip(every, log_probs(*trained, every), strict=True):
    length = ids.index(end) + 1 if end in ids else STEPS
    expected[ids[:length]] = values[:length].sum() / length**length_penalty
  ranked = sorted(expected, key=lambda ids: -expected[ids])
  found = beam_search(
    *trained, PROMPT, VOCABULARY**2, STEPS, length_penalty, () if end is None else (end,)
  )
  assert [tuple(each.ids) for each in found[:10]] == ranked[:10]
  for each in found:
    np.testing.assert_allclose(each.score, expected[tuple(each.ids)], atol=1e-4)


def test_few_beams_keep_the_best_of_every_step(trained):
  """Against a search that reads everything again."""
  beams = [((), 0.0)]
  for _ in range(6):
    longer = [((*ids, token), total) for ids, total in beams for token in range(VOCABULARY)]
    last = log_probs(*trained, [ids for ids, _ in longer])[:, -1]
    scored = [(ids, total + value) for (ids, total), value in zip(longer, last, strict=True)]
    beams = sorted(scored, key=lambda pair: -pair[1])[:3]
  found = beam_search(*trained, PROMPT, 3, 6)
  assert [tuple(each.ids) for each in found] == [ids for ids, _ in beams]
  np.testing.assert_allclose([each.log_prob for each in found], [x for _, x in beams], atol=1e-4)


def test_one_beam_is_greedy(trained):
  (greedy,) = sample(*trained, [PROMPT], [0], 8, temperature=0.0)
  assert beam_search(*trained, PROMPT, 1, 8)[0].ids == greedy


def test_a_text_that_ends_at_once(trained):
  likeliest = beam_search(*trained, PROMPT, 1, 1)[0].ids[0]
  found = beam_search(*trained, PROMPT, 2, 6, ends=(likeliest,), length_penalty=-9.0)
  assert found[0].ids == [likeliest]


def test_what_does_not_fit_is_refused(trained):
  refused("context of 16", beam_search, *trained, PROMPT, 2, 14)
