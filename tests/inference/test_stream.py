"""Generation a few tokens at a time gives what generation at once gives."""

import dataclasses

import jax
import numpy as np
import pytest
from refused import refused

import gpt_jax
from gpt_jax.errors import InputError
from gpt_jax.inference.model import Model
from gpt_jax.inference.scoring import text_log_probs
from gpt_jax.inference.stream import Sampling, Stream, Text, check_fits, continue_texts

PROMPTS = ["the cat", "the dog ran to the old red barn by", "a", "sat on the"]
SETTINGS = [
  Sampling(11, 0.7, 0, 1.0, 3),
  Sampling(6, 1.0, 5, 1.0, 4),
  Sampling(1, 1.3, 0, 0.6, 5),
  Sampling(9, 0.0, 7, 0.9, 6),
]


@pytest.fixture(scope="module")
def model(language_model):
  loaded = gpt_jax.load(language_model).loaded
  # Larger parameters, so that a token depends on more than the one before it.
  return Model(dataclasses.replace(loaded, params=jax.tree.map(lambda x: 6 * x, loaded.params)))


@pytest.fixture(params=[False, True], ids=["fitting shapes", "few shapes"])
def stream(request, model):
  return Stream(model.loaded.language_model(), model.loaded.params, request.param)


def texts_of(model, count):
  texts = []
  for i in range(count):
    ids = model.loaded.tokenizer.encode(PROMPTS[i % 4]).tolist()
    texts.append(Text(ids, SETTINGS[(i * 3) % 4], log_probs=True, best=i % 2 == 0))
  return texts


def test_after_warming_up_texts_move_without_compiling(model, monkeypatch, caplog):
  monkeypatch.setattr(gpt_jax.inference.stream, "_FEW_SLOTS", (16, 2**30))
  monkeypatch.setattr(gpt_jax.inference.stream, "_SIZES", (1, 2, 4))
  stream = Stream(model.loaded.language_model(), model.loaded.params, few_shapes=True)
  stream.warm_up()
  short, long = [Text([5] * 3, Sampling(9)) for _ in range(3)], Text([5] * 30, Sampling(9))
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    stream.add(short[0])
    stream.add(*short[1:])
    stream.add(long)  # of more slots: all of them move
    stream.advance()
    stream.remove(long)
    stream.remove(short[1])
    while stream.texts:
      stream.advance()  # to fewer slots, and fewer rows
  assert "XLA compilation" not in caplog.text
  assert [len(text.added) for text in short] == [9, 4, 9]


def alone(model, text):
  """What generation at once adds to the prompt."""
  other = Text(text.prompt, text.sampling)
  for _ in continue_texts(model.loaded.language_model(), model.loaded.params, [other]):
    pass
  return other.added_ids


def finish(stream):
  while stream.advance():
    pass


def test_texts_that_come_and_go_are_continued_as_alone(model, stream):
  texts = texts_of(model, 8)
  for number, text in enumerate(texts):
    stream.add(text)
    if number % 3:
      stream.advance()
  finish(stream)
  for text in texts:
    assert text.added_ids == alone(model, text)


def test_a_text_that_is_removed_leaves_the_others_as_they_are(model, stream):
  texts = texts_of(model, 6)
  for text in texts:
    stream.add(text)
  stream.advance()
  added = len(texts[0].added)
  stream.remove(texts[0])
  finish(stream)
  assert len(texts[0].added) == added < texts[0].sampling.max_tokens
  for text in texts[1:]:
    assert text.added_ids == alone(model, text)


def test_log_probs_are_those_of_the_text(model, stream):
  text = texts_of(model, 1)[0]
  stream.add(text)
  finish(stream)
  params = {"trunk": model.loaded.params["trunk"]}
  expected = text_log_probs(model.loaded.language_model(), params, np.array([text.ids]))[0]
  found = [token.log_prob for token in text.added]
  np.testing.assert_allclose(found, expected[len(text.prompt) - 1 :], atol=1e-4)
  for token in text.added:
    values = [log_prob for _, log_prob in token.best]
    assert len(values) == 5 and values == sorted(values, reverse=True)
    assert values[0] >= token.log_prob - 1e-6
    assert dict(token.best).get(token.id, token.log_prob) == token.log_prob


def test_a_full_context_goes_on_from_its_second_half(model, stream):
  """Beside a short text that comes and goes."""
  texts = [Text([5, 6, 7] * 20, Sampling(40, seed=1)), Text([4, 9], Sampling(70, seed=2))]
  stream.add(*texts, *texts_of(model, 2))
  while stream.advance(7):
    pass
  for text in texts:
    assert text.added_ids == alone(model, text)


def test_what_does_not_fit_is_refused(model, stream):
  with pytest.raises(InputError, match="40 tokens of the prompt and max_tokens=9 are more than th"):
    check_fits(model.loaded.model, 40, 9)
  refused("the prompt is empty", check_fits, model.loaded.model, 0, 9)
  refused("the prompt is empty", stream.add, Text([], Sampling(9)))
  assert not stream.texts
