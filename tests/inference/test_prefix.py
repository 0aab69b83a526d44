"""Prefix attention: what moves what, and generation that equals the whole forward pass."""

import functools

import jax
import numpy as np
import pytest
from refused import refused
from sampled_texts import sample

import gpt_jax
from gpt_jax.apps.paper import zero_shot
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.draws import Draw
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.beam import beam_search
from gpt_jax.inference.stream import Sampling, Stream, Text
from gpt_jax.models.alibi import Alibi
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.model import ModelConfig, generator
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.programs import evaluate, finetune, generate, pretrain
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.task import BuiltinTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

TEXT = "the cat sat on the mat"
PROMPTS = [[5], [7, 3, 9, 4], list(range(20, 37)), [6] * 25]  # of four lengths


@pytest.fixture(scope="module", params=["learned", "alibi"])
def model(request, make_run):
  """A prefix model with a language head that predicts special tokens, and its parameters."""
  bias = Alibi() if request.param == "alibi" else None
  trunk = TransformerConfig(
    60, context=64, layers=1, width=32, heads=4, special_tokens=6, attention_bias=bias
  )
  spec = ModelConfig(trunk, (LanguageHead(special_tokens=True),), "prefix")
  params = jax.tree.map(lambda x: 3 * x, make_run.params_of(spec, 0))  # far from uniform
  return generator(spec), params


def next_scores(model, params, ids, prefix):
  """The logits of the token after `ids`, of which the first `prefix` are one, uncached."""
  padded = np.zeros((1, 64), np.int32)  # of one length, so that it compiles once
  padded[0, : len(ids)] = ids
  return np.asarray(_scores(model, params, padded, prefix))[len(ids) - 1]


@functools.partial(jax.jit, static_argnums=0)
def _scores(model, params, ids, prefix):
  positions = np.arange(64)[None]
  rows = Rows(ids, positions, prefix=positions < prefix)
  hidden, table, *_ = model.apply({"params": params}, rows, method="states")
  return logits(hidden[0], table, model.num_tokens)[:, : model.num_tokens]


def greedy(model, params, prompt, count):
  ids = list(prompt)
  for _ in range(count):
    ids.append(int(next_scores(model, params, ids, len(prompt)).argmax()))
  return ids[len(prompt) :]


@pytest.mark.parametrize("few_shapes", [False, True])
def test_a_prompt_is_read_as_the_whole_pass_reads_it(model, few_shapes):
  """Also among others: the log-probabilities of every token that is added."""
  module, params = model
  stream = Stream(module, params, few_shapes)
  texts = [Text(prompt, Sampling(6, temperature=0), log_probs=True) for prompt in PROMPTS]
  stream.add(texts[0], texts[1])
  stream.advance(3)
  stream.add(*texts[2:])
  while stream.texts:
    stream.advance()
  for text in texts:
    for number, token in enumerate(text.added):
      ids = [*text.prompt, *text.added_ids[:number]]
      scores = next_scores(module, params, ids, len(text.prompt))
      assert token.id == scores.argmax()
      expected = np.asarray(jax.nn.log_softmax(scores))[token.id]
      assert token.log_prob == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("model", ["learned"], indirect=True)
def test_special_tokens_are_written(model):
  """Six of 66 ids, so that some of 4 x 20 random tokens are among them."""
  module, params = model
  added = sample(module, params, PROMPTS, range(4), 20, temperature=50.0)
  assert 60 <= max(map(max, added)) < 66


def test_beam_search_reads_the_prompt_alike(model):
  module, params = model
  prompt = PROMPTS[2]
  best = beam_search(module, params, prompt, 1, 5)[0]
  assert best.ids == greedy(module, params, prompt, 5)
  total = 0.0
  for number, i in enumerate(best.ids):
    scores = next_scores(module, params, [*prompt, *best.ids[:number]], len(prompt))
    total += float(jax.nn.log_softmax(scores)[i])
  assert best.log_prob == pytest.approx(total, abs=1e-3)


def test_a_full_context_becomes_the_prefix(model):
  """Its second half is read again as a prompt."""
  module, params = model
  prompt = list(range(1, 61))
  added = sample(module, params, [prompt], [0], 6, temperature=0)[0]
  first = greedy(module, params, prompt, 4)  # 60 + 4 fill the context
  assert added[:4] == first
  assert added[4:] == greedy(module, params, [*prompt, *first][-32:], 2)


def test_what_moves_what(model):
  """A position of the prefix moves all outputs, one of the target none before it."""
  module, params = model
  ids = np.random.default_rng(0).integers(60, size=(1, 16))
  positions = np.arange(16)[None]

  @jax.jit
  def hidden(ids):
    rows = Rows(ids, positions, prefix=positions < 9)
    return module.apply({"params": params}, rows, method="states").hidden[0]

  before = hidden(ids)
  for changed in range(16):
    other = ids.copy()
    other[0, changed] = (other[0, changed] + 1) % 60
    moved = np.abs(np.asarray(hidden(other) - before)).max(axis=-1) > 1e-6
    assert moved.tolist() == [changed < 9 or t >= changed for t in range(16)]


def test_the_objectives_rows_leak_no_target(tiny_tokenizer):
  """In a row of span corruption: the loss at a position depends on no later token of the target."""
  objective = SpanCorruption(sentinels=4)
  tokenizer = tiny_tokenizer.with_special(*objective.special)
  trunk = TransformerConfig(
    tokenizer.vocab_size, context=32, layers=1, width=32, heads=4, special_tokens=9
  )
  module = ModelConfig(trunk, (LanguageHead(special_tokens=True),), "prefix").build()
  bound = objective.bind(tokenizer, 32)
  rows = np.arange(objective.text_length(32), dtype=np.int32)[None]
  batch = bound(rows, Draw(0, 0, np.arange(1)))
  params = jax.jit(module.init)(jax.random.key(1), batch)["params"]
  at = batch.predictions.at[0][batch.predictions.weights[0] > 0]

  @jax.jit
  def hidden(inputs):
    rows = jax.tree.map(jax.numpy.asarray, batch.rows)._replace(inputs=inputs)
    return module.apply({"params": params}, rows, method="states").hidden[0]

  before = hidden(batch.rows.inputs)
  for position in at[1:]:
    inputs = batch.rows.inputs.copy()
    inputs[0, position] += 1
    moved = np.abs(np.asarray(hidden(inputs) - before)).max(axis=-1) > 1e-6
    assert not moved[:position].any() and moved[position]


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
  """A short run of span corruption in the prefix layout."""
  folder = str(tmp_path_factory.mktemp("span") / "run")
  config = PretrainConfig(
    trunk=TransformerConfig(context=32, layers=1, width=32, heads=2, norm="pre"),
    objective=SpanCorruption(sentinels=6),
    data=WindowsConfig(batch_size=8, length=32),
    optim=OptimConfig(learning_rate=1e-2, warmup_steps=20),
    train=TrainConfig(steps=60, log_every=20),
  )
  return folder, pretrain.run(config, prepared, folder)


@pytest.mark.e2e
def test_a_run_learns_and_is_evaluated_and_writes(run, prepared):
  folder, results = run
  loaded = load_model(folder)
  assert loaded.spec.attention == "prefix" and loaded.spec.heads[0].special_tokens
  assert loaded.meta["sequence_format"] == {"type": "text_to_text"}
  again = evaluate.run(folder, prepared)
  assert again["loss"] == pytest.approx(results["valid_loss"], rel=1e-5)
  assert again["loss"] < np.log(loaded.tokenizer.vocab_size) - 2
  assert "bits_per_byte" not in again
  prompts = ["the cat <sentinel_0> the mat and the <sentinel_1>", TEXT]
  texts = generate.run(folder, prompts, max_tokens=12, temperature=0)
  assert texts[0].startswith("<sentinel_0>")
  pieces = ["", ""]
  for number, piece in generate.stream(folder, prompts, max_tokens=12, temperature=0):
    pieces[number] += piece
  assert pieces == texts
  assert len(generate.run(folder, [TEXT], max_tokens=8, beams=2)) == 1


@pytest.mark.parametrize(
  "read, message",
  [
    (lambda run, folder: gpt_jax.load(run).log_probs(TEXT), "prefix attention does not"),
    (lambda run, folder: zero_shot.run(run, str(folder)), "prefix attention does not"),
    (
      lambda run, folder: generate.run(run, ["a <sentinel_9>"], max_tokens=2),
      "no special token 'sentinel_9'",
    ),
    (
      lambda run, folder: finetune.run(
        finetune.FinetuneConfig(task=BuiltinTask("story-ending")), "", run, str(folder / "run")
      ),
      "its answer 'well' is no word of the vocabulary",
    ),
  ],
  ids=["log_probs", "zero_shot", "sentinel", "finetune"],
)
def test_what_a_prefix_model_does_not_do_is_refused(run, tmp_path, read, message):
  refused(message, read, run[0], tmp_path)


def test_embeddings_read_the_whole_text(run):
  """Without a continuation the text is a prefix: every position attends to all of it."""
  loaded = load_model(run[0])
  ids = loaded.tokenizer.encode(TEXT)[None]
  positions = np.arange(ids.shape[1], dtype=np.int32)[None]
  rows = Rows(ids, positions, prefix=np.ones_like(ids, bool))
  states = jax.jit(functools.partial(loaded.model.apply, method="states"))
  hidden = np.asarray(states({"params": loaded.params}, rows).hidden)
  np.testing.assert_allclose(gpt_jax.load(run[0]).embed(TEXT), hidden[0].mean(0), atol=1e-5)


def test_a_prefix_language_model_continues_its_prompt(make_run, tiny_tokenizer, tmp_path):
  """Without a format of its own, as prefix_lm trains it; no auxiliary loss can be added to it."""
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  folder = make_run(tmp_path / "lm", ModelConfig(trunk, attention="prefix"))
  (text,) = generate.run(folder, [TEXT], max_tokens=3)
  assert text.startswith(TEXT)
  config = finetune.FinetuneConfig(task=BuiltinTask("story-ending"), lm_weight=0.5)
  with pytest.raises(InputError, match="lm_weight=0.5: .* prefix attention.* set lm_weight=0"):
    finetune.run(config, "", folder, str(tmp_path / "run"))
