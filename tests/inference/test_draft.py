"""Speculative decoding gives the texts that decoding token by token gives, in fewer passes."""

import dataclasses

import jax
import numpy as np
import pytest

from gpt_jax.errors import InputError
from gpt_jax.inference.draft import GUESSES, count_right, find, guess
from gpt_jax.inference.stream import Sampling, Stream, Text
from gpt_jax.models.decoding_weights import keep_weights
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, generator
from gpt_jax.models.transformer import TransformerConfig

CONTEXT, END = 24, 61
TRUNKS = {
  "transformer": TransformerConfig(60, CONTEXT, layers=2, width=32, heads=4),
  "t5": T5Config(60, CONTEXT, 1, 16, 2, 6, 24, special_tokens=2),
}
PROMPTS = [[5, 9, 11, 5, 9, 11, 5], [7], list(range(20, 50)), [3] * 13]


@pytest.fixture(scope="module", params=TRUNKS)
def trained(request, make_run):
  spec = ModelConfig(TRUNKS[request.param])
  return generator(spec), jax.tree.map(lambda x: 2 * x, make_run.params_of(spec, 1))


def written(model, params, draft, temperature, steps=32, top_k=0, prompts=PROMPTS):
  """(id, log-probability, best) of each token of each text, and the passes that they took."""
  stream, texts = Stream(model, params, draft=draft), []
  for number, prompt in enumerate(prompts):
    sampling = Sampling(40 - 3 * number, temperature, top_k, seed=number)
    if model.config.trunk.reads_source:  # whose target does not outgrow the context
      sampling = dataclasses.replace(sampling, max_tokens=18 - number)
      texts.append(Text([60], sampling, best=True, source=prompt[:20], ends=(END,)))
    else:
      texts.append(Text(prompt, sampling, best=True))
  stream.add(*texts[:2])
  stream.advance(steps)
  stream.add(*texts[2:])  # while the others are being continued
  while stream.advance(steps):
    pass
  return [text.added for text in texts], stream.passes


@pytest.mark.parametrize("steps", [32, 3])
@pytest.mark.parametrize("settings", [(0.0, 0), (0.05, 0), (0.8, 0), (1.0, 3)])
def test_the_same_texts(trained, settings, steps):
  temperature, top_k = settings
  plain, passes = written(*trained, "none", temperature, steps, top_k)
  found, fewer = written(*trained, "ngram", temperature, steps, top_k)
  assert fewer <= passes
  for texts in zip(plain, found, strict=True):
    assert len(texts[0]) == len(texts[1])
    for one, other in zip(*texts, strict=True):
      assert one.id == other.id and [i for i, _ in one.best] == [i for i, _ in other.best]
      assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


@pytest.mark.parametrize("trained", ["transformer"], indirect=True)
def test_fewer_passes_where_a_text_repeats_itself(trained):
  """With a temperature near 0 these models end in a loop of few tokens."""
  (text,), fewer = written(*trained, "ngram", 0.0, prompts=PROMPTS[:1])
  assert len({token.id for token in text[20:]}) < 8
  assert len(text) == 40 and fewer <= 32


@pytest.mark.parametrize("trained", ["transformer"], indirect=True)
def test_of_kept_weights(trained):
  model, params = trained
  kept = keep_weights(model, params, "int8")
  plain, found = (written(model, kept, draft, 0.8)[0] for draft in ("none", "ngram"))
  assert [[x.id for x in text] for text in plain] == [[x.id for x in text] for text in found]


def test_guesses():
  """Beside a search in Python, on texts of few different tokens."""
  rng = np.random.default_rng(0)
  texts, lengths = rng.integers(0, 3, (200, 40)).astype(np.int32), rng.integers(1, 33, 200)
  begins, shared = map(np.asarray, find(texts, lengths))
  guesses = np.asarray(guess(texts, lengths, begins))

  for row, (text, length) in enumerate(zip(texts.tolist(), lengths, strict=True)):
    text, best = text[:length], (0, 0)
    for end in range(1, length):
      size = 0
      while size < min(4, end) and text[end - 1 - size] == text[length - 1 - size]:
        size += 1
      best = max(best, (size, end))
    assert shared[row] == best[0]
    if best[0]:
      follows = text[best[1] :] * GUESSES
      assert (begins[row], guesses[row].tolist()) == (best[1], follows[:GUESSES])


def test_right_guesses():
  guesses = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
  chosen = np.array([[1, 2, 3, 9], [1, 4, 3, 9], [0, 2, 3, 9]])
  assert count_right(guesses, chosen).tolist() == [3, 1, 0]


def test_an_lstm_is_refused(make_run):
  spec = ModelConfig(LSTMConfig(60, CONTEXT, 16, 24))
  with pytest.raises(InputError, match="draft=ngram: needs a trunk with attention; an LSTM"):
    Stream(generator(spec), make_run.params_of(spec, 1), draft="ngram")
