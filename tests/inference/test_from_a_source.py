"""What an encoder-decoder writes for a source: with a cache as without one, and by search."""

import functools
import itertools

import jax
import numpy as np
import pytest
from refused import refused

import gpt_jax
from gpt_jax.apps.paper import zero_shot
from gpt_jax.batch import Batch, Rows
from gpt_jax.errors import InputError
from gpt_jax.inference.beam import beam_search
from gpt_jax.inference.stream import Sampling, Stream, Text, continue_texts
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.lstm_encoder_decoder import LSTMEncoderDecoderConfig
from gpt_jax.models.model import ModelConfig, generator
from gpt_jax.ops.cross_entropy import logits, token_log_probs
from gpt_jax.programs import generate

V, START, END = 5, 5, 6
TRUNKS = {
  "t5": T5Config(V, 24, 1, 16, 2, 6, 24, "1.1", special_tokens=2),
  "lstm": LSTMEncoderDecoderConfig(V, 24, 8, 1, 8, special_tokens=2),
}
SOURCES = ([3, 1, 4, END], [1, 2, 0, 2, 2, 3, 1, 4, 0, 3, 2, END], [2, END])


@pytest.fixture(scope="module", params=TRUNKS)
def model(request, make_run):
  """(generator, parameters), every parameter perturbed and large."""
  spec = ModelConfig(TRUNKS[request.param])
  params = jax.tree.map(lambda x: 6 * x, make_run.params_of(spec, 1))
  return generator(spec), params


@functools.partial(jax.jit, static_argnums=0)
def all_logits(model, params, target, source, valid):
  def rows(ids, segments=None):
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    return Rows(ids, positions, segments)

  batch = Batch(rows(target), source=rows(source, valid))
  hidden, table, *_ = model.apply({"params": params}, batch).states
  return logits(hidden, table, model.num_tokens)[..., : model.num_tokens]


def log_probs(model, params, source, targets):
  """log P of every token of targets [N, T], without a cache, float32 [N, T]."""
  given = np.asarray(targets, np.int32)
  count = (V + 2) ** 3
  targets = np.zeros((count, 9), np.int32)  # of one shape, so that it compiles once
  targets[: len(given), : given.shape[1]] = given
  padded = np.zeros((count, 16), np.int32)
  padded[:, : len(source)] = source
  valid = np.broadcast_to((np.arange(16) < len(source)).astype(np.int32), padded.shape)
  inputs = np.concatenate([np.full((count, 1), START, np.int32), targets[:, :-1]], axis=1)
  scores = all_logits(model, params, inputs, padded, valid)
  return np.asarray(token_log_probs(scores, targets))[: len(given), : given.shape[1]]


def write(model, params, sources, sampling, ends=()):
  texts = [Text([START], sampling, True, source=source, ends=ends) for source in sources]
  for _ in continue_texts(model, params, texts):
    pass
  return texts


def test_greedy_equals_scoring_without_a_cache(model):
  for text in write(*model, SOURCES, Sampling(9, 0.0)):
    ids = text.added_ids
    assert len(ids) == 9
    expected = log_probs(*model, text.source, [ids])[0]
    np.testing.assert_allclose([token.log_prob for token in text.added], expected, atol=1e-4)
    # At every position the likeliest token was taken: no other has a higher log-probability.
    others = [[*ids[:n], token, *ids[n + 1 :]] for n in range(9) for token in range(V + 2)]
    found = log_probs(*model, text.source, others).reshape(9, V + 2, 9)
    best = found[np.arange(9), :, np.arange(9)].max(axis=1)
    np.testing.assert_allclose(best, expected, atol=1e-4)
  assert len({tuple(text.ids) for text in write(*model, SOURCES, Sampling(9, 0.0))}) > 1


def test_a_text_does_not_depend_on_the_others(model):
  together = write(*model, SOURCES, Sampling(9, 1.0, seed=4))
  for source, text in zip(SOURCES, together, strict=True):
    assert write(*model, [source], Sampling(9, 1.0, seed=4))[0].ids == text.ids


def test_texts_that_come_later_with_a_longer_source(model):
  """The cache grows, of the target and of the source."""
  long = [*SOURCES[1], *SOURCES[1]]
  first = Text([START], Sampling(9, 1.0, seed=4), source=SOURCES[0])
  second = Text([START], Sampling(20, 1.0, seed=5), source=long)
  stream = Stream(*model)
  stream.add(first)
  stream.advance(3)
  stream.add(second)
  while stream.texts:
    stream.advance(4)
  for text, source, count, seed in ((first, SOURCES[0], 9, 4), (second, long, 20, 5)):
    assert write(*model, [source], Sampling(count, 1.0, seed=seed))[0].ids == text.ids


def test_a_text_ends_with_its_end(model):
  whole = write(*model, SOURCES, Sampling(20, 1.0, seed=1))
  end = whole[1].added[4].id
  ended = write(*model, SOURCES, Sampling(20, 1.0, seed=1), ends=(end,))
  assert len(ended[1].added) <= 5
  for text, other in zip(ended, whole, strict=True):
    ids = other.added_ids
    stop = ids.index(end) + 1 if end in ids else len(ids)
    assert text.added_ids == ids[:stop] and text.done


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_many_beams_find_the_best_of_all(model, penalty):
  """Every target of up to three tokens, scored without a cache."""
  source, scored = SOURCES[1], {}
  for ids in itertools.product(range(V + 2), repeat=3):
    stop = ids.index(END) + 1 if END in ids else 3
    scored[ids[:stop]] = None
  targets = [ids + (0,) * (3 - len(ids)) for ids in scored]
  found = log_probs(*model, source, targets)
  for ids, row in zip(scored, found, strict=True):
    scored[ids] = row[: len(ids)].sum() / len(ids) ** penalty
  best = sorted(scored, key=lambda ids: -scored[ids])[:4]
  beams = beam_search(*model, [START], 100, 3, penalty, (END,), source)
  assert [tuple(beam.ids) for beam in beams[:4]] == best
  np.testing.assert_allclose(
    [beam.score for beam in beams[:4]], [scored[ids] for ids in best], atol=1e-4
  )


@pytest.fixture(scope="module")
def folder(make_run, tiny_tokenizer, tmp_path_factory):
  tokenizer = tiny_tokenizer.with_special("pad", "sep", "sentinel_0")
  trunk = T5Config(tokenizer.vocab_size, 24, 1, 16, 2, 6, 24, special_tokens=6)
  return make_run(tmp_path_factory.mktemp("t5") / "run", ModelConfig(trunk), tokenizer=tokenizer)


def test_the_program_writes_for_each_prompt(folder):
  prompts = ["the cat sat", "the dog ran to the old red barn"]
  options = {"max_tokens": 12, "seed": 3}
  texts = generate.run(folder, prompts, **options)
  assert len(texts) == 2 and not any(text.startswith("the cat sat") for text in texts)
  assert gpt_jax.load(folder).generate(prompts, **options) == texts
  pieces = ["", ""]
  for number, piece in generate.stream(folder, prompts, **options):
    pieces[number] += piece
  assert pieces == texts
  assert len(generate.run(folder, prompts, max_tokens=5, beams=2)) == 2


@pytest.mark.parametrize(
  "prompt, max_tokens, message",
  [
    ("the cat " * 20, 5, "prompt 1: .* tokens with the one that ends it, and the encoder's con"),
    ("the cat", 24, "max_tokens=24: the decoder's context is 24, so it writes at most 23"),
    ("", 5, "prompt 1 is empty"),
  ],
)
def test_what_does_not_fit(folder, prompt, max_tokens, message):
  for beams in (1, 2):
    refused(message, generate.run, folder, [prompt], max_tokens=max_tokens, beams=beams)


def test_a_vocabulary_without_an_end(make_run, tmp_path, tiny_tokenizer):
  spec = ModelConfig(T5Config(tiny_tokenizer.vocab_size, 24, 1, 16, 2, 6, 24))
  with pytest.raises(InputError, match="no special token 'sep'; the tokenizer has start"):
    generate.run(make_run(tmp_path, spec), ["the cat"], max_tokens=5)


def test_a_text_has_no_probability(folder, tmp_path):
  model = gpt_jax.load(folder)
  message = "an encoder-decoder gives a text no probability: it writes a target for a source"
  refused(message, model.log_probs, "the cat")
  refused(message, zero_shot.run, folder, str(tmp_path), ["sst2"])
