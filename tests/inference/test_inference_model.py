"""gpt_jax.load: a trained model in a notebook, and that importing the package takes no time."""

import dataclasses
import functools
import subprocess
import sys

import jax
import numpy as np
import pytest
from refused import refused
from tiny_runs import TEXTS

import gpt_jax
from gpt_jax.batch import Rows
from gpt_jax.inference.calibration import scale
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs import generate, predict


@pytest.fixture(scope="module")
def model(language_model):
  return gpt_jax.load(language_model)


def alone(model, text):
  """Ids, and from one text by itself: log-softmax of the logits [n, V], hidden states [n, D]."""
  ids = model.loaded.tokenizer.encode(text)[None]
  length = ids.shape[1]
  padded = np.pad(ids, ((0, 0), (0, 48 - length)))  # of one length, so that it compiles once
  hidden, scores = (
    np.asarray(x)[0, :length] for x in _states(model.loaded.model, model.loaded.params, padded)
  )
  scores = np.float64(scores)[:, : model.loaded.tokenizer.vocab_size]
  return ids[0], scores - np.log(np.exp(scores).sum(-1, keepdims=True)), hidden


@functools.partial(jax.jit, static_argnums=0)
def _states(module, params, ids):
  rows = Rows(ids, np.arange(ids.shape[1], dtype=np.int32)[None])
  hidden, table, *_ = module.apply({"params": params}, rows, method="states")
  return hidden, hidden @ table.T


def test_log_probs(model):
  scored = model.log_probs(TEXTS)
  for text, each in zip(TEXTS, scored, strict=True):
    ids, scores, _ = alone(model, text)
    assert np.isnan(each.log_probs[0]) and len(each.tokens) == len(ids) == len(each.log_probs)
    expected = scores[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(each.log_probs[1:], expected, atol=1e-4)
    np.testing.assert_allclose(each.perplexity, np.exp(-expected.mean()), rtol=1e-4)
    assert "".join(each.tokens).replace("▁", " ").strip() == text
  one = model.log_probs(TEXTS[0])
  np.testing.assert_allclose(one.log_probs[1:], scored[0].log_probs[1:], atol=1e-5)


def test_embed(model):
  found = model.embed(TEXTS * 7)  # more than a batch
  assert (found.shape, found.dtype) == ((21, 16), np.float32)
  for text, vector in zip(TEXTS * 7, found, strict=True):
    np.testing.assert_allclose(vector, alone(model, text)[2].mean(0), atol=1e-4)
  assert model.embed([]).shape == (0, 16)
  np.testing.assert_allclose(model.embed("dog"), found[1], atol=1e-5)  # and not one of each letter


@pytest.mark.parametrize("windows, stride", [("mean", 0), ("max", 20)])
def test_a_long_text_is_embedded_in_windows(model, windows, stride):
  tokenizer, long = model.loaded.tokenizer, " and ".join(TEXTS * 4)
  ids = tokenizer.encode(long)
  begins = [*range(0, len(ids) - 48, stride or 48), len(ids) - 48]  # the last window is full, too
  assert len(begins) > 3
  vectors = []
  for begin in begins:
    window = ids[begin : begin + 48][None]
    hidden, _ = _states(model.loaded.model, model.loaded.params, window)
    vectors.append(np.asarray(hidden)[0].mean(0))
  pooled = np.max(vectors, 0) if windows == "max" else np.mean(vectors, 0)
  found = model.embed([TEXTS[0], long, "dog"], windows=windows, stride=stride)
  np.testing.assert_allclose(found[1], pooled, atol=1e-4)
  np.testing.assert_allclose(found[::2], model.embed([TEXTS[0], "dog"]), atol=1e-5)
  assert model.embed([], windows=windows).shape == (0, 16)
  refused("windows='median': must be mean or max", model.embed, long, windows="median")
  for settings in ({"windows": windows, "stride": -5}, {"stride": 5}):
    refused(r"stride=-?5: must be 0 or more tokens, and needs", model.embed, long, **settings)


@functools.partial(jax.jit, static_argnums=0)
def _states_of_encoder(encoder, params, ids):
  rows = Rows(ids, np.arange(ids.shape[1])[None])
  return encoder.apply({"params": params}, rows, method="states").hidden


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5_embeds_with_its_encoder(version, make_run, tiny_tokenizer, tmp_path):
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  sizes = {"layers": 1, "width": 16, "heads": 2, "units": 24, "version": version}
  special = tokenizer.special.count
  trunk = T5Config(tokenizer.vocab_size, 40, special_tokens=special, **sizes)
  alone = ModelConfig(dataclasses.replace(trunk, decoder=False), (), "bidirectional")
  for name, spec in (("encoder", alone), ("both", ModelConfig(trunk))):
    model = gpt_jax.load(make_run(tmp_path / name, spec, tokenizer=tokenizer))
    assert repr(model).startswith(f"<encoder{'-decoder' * (name == 'both')}, ")
    params = {"trunk": dict(model.loaded.params["trunk"])}
    for part in ("decoder", "output"):
      params["trunk"].pop(part, None)
    found = model.embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
      ids = np.append(tokenizer.encode(text), tokenizer.special["sep"])[None]
      expected = _states_of_encoder(alone.build(), params, ids)[0].mean(0)
      np.testing.assert_allclose(vector, expected, atol=1e-4)
  assert not np.allclose(found[0], found[1], atol=0.01)
  refused("tokens, and the model's context is 40", model.embed, TEXTS[0] * 9)
  assert model.embed(TEXTS[0] * 9, truncate=True).shape == (16,)


def test_generate(model):
  texts = model.generate(TEXTS[:2], max_tokens=5, temperature=0.7, seed=3)
  assert texts == generate.run(model.loaded.path, TEXTS[:2], 5, 0.7, seed=3)
  assert model.generate(TEXTS[0], max_tokens=5, temperature=0.7, seed=3) == texts[0]


def test_classify(finetuned):
  model = gpt_jax.load(f"{finetuned.workdir}/seed_0")
  assert (model.labels, model.columns) == (("barks", "meows"), ("text",))
  found = model.classify(["the cat sat", ("dog ran",)])
  assert [max(each, key=each.get) for each in found] == ["meows", "barks"]
  assert all(sum(each.values()) == pytest.approx(1) for each in found)
  assert model.classify([]) == []
  assert model.classify("the") == model.classify(["the"])[0]  # and not one of each letter
  assert "fine-tuned on table" in repr(model)


def test_what_is_cut_is_told(finetuned):
  model = gpt_jax.load(f"{finetuned.workdir}/seed_0")
  long = "the cat sat on the mat " * 20
  with pytest.warns(UserWarning, match="1 of 2 rows is longer than the context of 64 tokens: 6"):
    model.classify([long, "the dog"])
  assert model.truncated([long, "the dog"]) == [True, False]


def test_classify_equals_the_program_for_any_number_of_texts(tempered, tmp_path):
  """Shapes are rounded up; predict's are not."""
  texts = [f"the {'cat' if i % 3 else 'dog'}{' sat on the mat' * (i % 7)}" for i in range(70)]
  (tmp_path / "rows.tsv").write_text("\n".join(["text", *texts]) + "\n")
  expected = predict.run(tempered, str(tmp_path / "rows.tsv"), str(tmp_path / "out.tsv"))
  model = gpt_jax.load(tempered)
  raw = np.array([[*row.values()] for row in model.classify(texts, calibrated=False)])
  calibrated = [[*row["probabilities"].values()] for row in expected]
  np.testing.assert_allclose(scale(raw, 1.7), calibrated, atol=1e-5)
  first = 0
  for count in (1, 2, 5, 11, 51):
    for row in model.classify(texts[first : first + count]):
      assert row == pytest.approx(expected[first]["probabilities"], abs=1e-5)
      first += 1
  assert first == len(texts)


def test_after_warming_up_nothing_is_compiled_or_sent(finetuned, caplog):
  model = gpt_jax.load(f"{finetuned.workdir}/seed_0", warm_up=True)
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    for words in (1, 6, 13, 29, 90):
      model.classify("the " * words)
    model.classify(["the cat sat", "the dog", "the"])
  assert "XLA compilation" not in caplog.text
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(model.loaded.params))


def test_few_shapes_are_compiled(model, caplog):
  model.embed(["the cat"] * 3)
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    model.embed(["the cat"] * 2)
    model.embed(["the dog sat"] * 4)
  assert "XLA compilation" not in caplog.text


def test_what_is_refused(model, finetuned):
  refused("text 2: empty; give at least one word", model.log_probs, ["the cat", ""])
  message = "text 1: [0-9]+ tokens, and the model's context is 48; give a part"
  refused(message, model.embed, ["the cat " * 40])
  refused("a language model without a head; fine-tune it first", model.classify, ["the cat"])
  classifier = gpt_jax.load(f"{finetuned.workdir}/seed_0")
  refused("text 1: 2 columns; table reads 1: text", classifier.classify, [("the cat", "sat")])
  refused("text 2: None is not a text; give a string", classifier.classify, ["the cat", None])
  refused("text 1: 3 is not a text; give a string", classifier.classify, [[3]])
  for call in (model.classify, model.embed, model.log_probs, model.generate):
    if call != model.classify:
      refused("[a-z]+ 1: None is not a text; give a string", call, [None])
      refused("[a-z]+ 1: not Unicode: half of a surrogate pair at 4", call, "the \ud800")
      refused("None is not a text; give a string, or a list", call, None)
  refused("no checkpoint in", gpt_jax.load, "nothing")


def test_importing_the_package_imports_nothing_else():
  code = "import sys; before = {*sys.modules}; import gpt_jax; print({*sys.modules} - before)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "{'gpt_jax'}"
