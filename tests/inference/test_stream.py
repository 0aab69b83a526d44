"""Generation a few tokens at a time gives what generation at once gives."""

import numpy as np
import pytest

import gpt_jax
from gpt_jax.errors import InputError
from gpt_jax.inference.generate import sample
from gpt_jax.inference.stream import Sampling, Stream, Text
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

PROMPTS = ["the cat", "the dog ran to the old red barn by", "a", "sat on the"]
SETTINGS = [
  Sampling(11, 0.7, 0, 1.0, 3),
  Sampling(6, 1.0, 5, 1.0, 4),
  Sampling(1, 1.3, 0, 0.6, 5),
  Sampling(9, 0.0, 7, 0.9, 6),
]


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def model(request, tmp_path_factory, make_run, tiny_tokenizer):
  size = tiny_tokenizer.vocab_size
  trunks = {
    "transformer": TransformerConfig(size, context=48, layers=2, width=16, heads=2),
    "lstm": LSTMConfig(size, context=48, width=16, units=24),
  }
  spec = ModelConfig(trunks[request.param])
  return gpt_jax.load(make_run(tmp_path_factory.mktemp("stream"), spec))


def stream_of(model):
  return Stream(model.loaded.language_model(), model.loaded.params)


def texts_of(model, count):
  texts = []
  for i in range(count):
    ids = model.loaded.tokenizer.encode(PROMPTS[i % 4]).tolist()
    texts.append(Text(ids, SETTINGS[(i * 3) % 4], best=i % 2 == 0))
  return texts


def alone(model, text):
  """What generation at once adds to the prompt."""
  s = text.sampling
  language = model.loaded.language_model()
  options = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p}
  prompt, seeds = [text.prompt], [s.seed]
  return sample(language, model.loaded.params, prompt, seeds, s.max_tokens, **options)[0]


def test_texts_that_come_and_go_are_continued_as_alone(model):
  stream, texts = stream_of(model), texts_of(model, 8)
  for number, text in enumerate(texts):
    stream.add(text)
    if number % 3:
      stream.advance()
  while stream.advance():
    pass
  for text in texts:
    assert [token.id for token in text.added] == alone(model, text)


def test_a_text_that_is_removed_leaves_the_others_as_they_are(model):
  stream, texts = stream_of(model), texts_of(model, 6)
  for text in texts:
    stream.add(text)
  stream.advance()
  stream.remove(texts[0])
  while stream.advance():
    pass
  assert len(texts[0].added) == 4 < texts[0].sampling.max_tokens
  for text in texts[1:]:
    assert [token.id for token in text.added] == alone(model, text)


def test_log_probs_are_those_of_the_text(model):
  text = texts_of(model, 1)[0]
  stream = stream_of(model)
  stream.add(text)
  while stream.advance():
    pass
  ids = [*text.prompt, *(token.id for token in text.added)]
  from gpt_jax.inference.scoring import text_log_probs

  params = {"trunk": model.loaded.params["trunk"]}
  expected = text_log_probs(model.loaded.language_model(), params, np.array([ids]))[0]
  found = [token.log_prob for token in text.added]
  np.testing.assert_allclose(found, expected[len(text.prompt) - 1 :], atol=1e-4)
  for token in text.added:
    values = [log_prob for _, log_prob in token.best]
    assert len(values) == 5 and values == sorted(values, reverse=True)
    assert values[0] >= token.log_prob - 1e-6
    assert dict(token.best).get(token.id, token.log_prob) == token.log_prob


def test_what_does_not_fit_is_refused(model):
  stream = stream_of(model)
  with pytest.raises(InputError, match="40 tokens of the prompt and max_tokens=9 are more than th"):
    stream.add(Text([3] * 40, Sampling(9)))
  with pytest.raises(InputError, match="the prompt is empty"):
    stream.add(Text([], Sampling(9)))
  assert not stream.texts
