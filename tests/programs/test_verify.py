"""verify: the differences of two models in any formats."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from refused import refused

import gpt_jax
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.lstm_stack import LSTMStackConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export, verify

pytestmark = pytest.mark.e2e
TEXT = ["the cat sat on the mat and the dog ran to the old red barn by the sea", "the sea"]


@pytest.fixture(scope="module")
def world(tmp_path_factory, make_run, tiny_tokenizer):
  """A run, and functions that write others like it."""
  folder = tmp_path_factory.mktemp("verify")
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=12, layers=1, width=16, heads=2)
  spec = ModelConfig(trunk)
  run = make_run(folder / "run", spec)

  def write(name, spec=spec, change=lambda params: None, tokenizer=tiny_tokenizer):
    params = jax.tree.map(np.copy, make_run.params_of(spec, 7))
    change(params)
    meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
    npz.save(str(folder / name), params, meta, 7, tokenizer)
    return str(folder / name)

  write.run, write.spec, write.folder = run, spec, folder
  return write


def add(params, path, index, amount):
  """Adds to the numbers at an index of an array of the trunk, or of what is given without one."""
  array = params.get("trunk", params)
  for name in path.split("/"):
    array = array[name]
  array[index] += amount


@pytest.mark.parity("released")
def test_openais_arrays(release, tmp_path):
  export.run(str(release.folder), str(tmp_path / "npz"), "npz")
  comparison = verify.run(str(tmp_path / "npz"), str(release.folder), ["the sea, the end."])
  assert comparison["equal"] and comparison["perplexities"][0] > 1


def test_the_perplexity_is_that_of_the_loss(world):
  """Over windows of the context, each text by itself."""
  model = load_model(world.run)
  total, weight, loss = 0, 0, jax.jit(model_loss(language_model(model.spec.trunk)))
  assert len(model.tokenizer.encode(TEXT[0])) > 12  # so that there are several windows
  for text in TEXT:
    ids = model.tokenizer.encode(text)
    for window in (ids[i : i + 12] for i in range(0, len(ids), 12)):
      places = np.arange(len(window) - 1, dtype=np.int32)[None]
      weights = np.ones((1, len(window) - 1), np.float32)
      batch = Batch(
        Rows(window[None, :-1], places), predictions=Predictions(window[None, 1:], weights)
      )
      if len(window) > 1:
        mean = loss(model.params, batch, None)[1]["loss"]
        total, weight = total + float(mean.total), weight + float(mean.weight)
  comparison = verify.run(world.run, world.run, TEXT)
  np.testing.assert_allclose(comparison["perplexities"], math.exp(total / weight), rtol=1e-5)


def test_the_first_array_that_differs(world, capsys, monkeypatch):
  """Block 2 comes before block 10, however large their differences."""
  # Compiling eleven layers takes long, and the next test compares logits.
  monkeypatch.setattr(verify, "_compare_logits", lambda *_: {"logits": 0.25})

  def change(params):
    add(params, "block_10/mlp/in/bias", 3, 2)
    add(params, "block_2/mlp/in/bias", 3, 0.5)

  deep = ModelConfig(dataclasses.replace(world.spec.trunk, layers=11))
  a, b = world("deep", deep), world("changed", deep, change)
  comparison = verify.run(a, b, TEXT)
  assert not comparison["equal"] and comparison["differing"] == 2
  *place, difference = comparison["array"]
  assert place == ["trunk/block_2/mlp/in/bias", (64,), (64,)]
  assert math.isclose(difference, 0.5, rel_tol=1e-5)
  printed = capsys.readouterr().out
  line = "arrays that differ: 2, the first trunk/block_2/mlp/in/bias, max |difference| 0.5 of [64]"
  assert line in printed
  assert printed.endswith("max |difference| of logits: 0.25\nnot equal within 0.0001\n")


def test_differences_within_the_tolerance_are_equal(world):
  changed = world("biased", change=lambda params: add(params, "block_0/mlp/in/bias", ..., 0.5))
  comparison = verify.run(world.run, changed, TEXT)
  assert not comparison["equal"] and comparison["logits"] > 1e-3 and comparison["differing"] == 1
  assert verify.run(world.run, changed, TEXT, tolerance=1e6)["equal"]


def test_differences_that_the_texts_do_not_show_count(world):
  """A position that no text reaches is still a difference; rows that no id has are none."""
  moved = world("position", change=lambda params: add(params, "positions", 11, 1))
  comparison = verify.run(world.run, moved, ["the sea"])
  assert comparison["logits"] == 0 and not comparison["equal"]
  assert comparison["array"][0] == "trunk/positions"
  unused = slice(world.spec.trunk.vocab_size, None)
  rows = world("rows", change=lambda params: add(params, "tokens", unused, 1))
  assert verify.run(world.run, rows, TEXT)["equal"]


def test_special_rows_and_the_head_of_a_fine_tuned_model_are_compared(world):
  spec, row = ModelConfig(world.spec.trunk, (ClassifyHead(),)), world.spec.trunk.vocab_size + 2
  tuned = world("tuned", spec)
  rows = world("tuned_rows", spec, lambda params: add(params, "tokens", row, 1))
  head = world("tuned_head", spec, lambda params: add(params["head"], "bias", ..., 1))
  assert verify.run(tuned, rows, TEXT)["array"][0] == "trunk/tokens"
  assert verify.run(tuned, head, TEXT)["array"][0] == "head/bias"
  comparison = verify.run(world.run, tuned, TEXT)
  assert not comparison["equal"] and comparison["array"][:2] == ("head/bias", None)


def test_nan_is_not_equal(world):
  def change(params):  # finite, and their product is not
    add(params, "block_0/mlp/in/bias", 0, 3e38)
    add(params, "block_0/mlp/out/kernel", 0, 3e38)

  comparison = verify.run(world.run, world("nan", change=change), TEXT, tolerance=1e9)
  assert not comparison["equal"] and math.isnan(comparison["logits"])


def test_models_of_different_shapes_are_not_equal(world, capsys):
  more = world("more", ModelConfig(dataclasses.replace(world.spec.trunk, layers=2, context=8)))
  comparison = verify.run(more, world.run, TEXT)
  assert not comparison["equal"] and comparison["logits"] > 0
  assert comparison["array"] == ("trunk/block_1/attention/out/bias", (16,), None, math.inf)
  assert "trunk/block_1/attention/out/bias, [16] and absent" in capsys.readouterr().out
  lstm = ModelConfig(LSTMConfig(world.spec.trunk.vocab_size, context=16, width=8, units=8))
  assert not verify.run(world.run, world("lstm", lstm), TEXT)["equal"]


def test_compute_is_float32_whatever_the_config_says(world):
  half = world("half", ModelConfig(dataclasses.replace(world.spec.trunk, dtype="bfloat16")))
  assert verify.run(world.run, half, TEXT)["logits"] == 0


def test_different_vocabularies_are_not_equal(world, capsys, tiny_tokenizer):
  other = SentencePieceTokenizer.train(
    ["another text with the same number of ids, or so it is to be hoped by all"] * 3, 290
  )
  assert other.vocab_size == tiny_tokenizer.vocab_size
  comparison = verify.run(world.run, world("other", tokenizer=other), TEXT)
  assert comparison["logits"] == 0 and not comparison["equal"]
  assert "different vocabularies, of b: " in capsys.readouterr().out
  smaller = SentencePieceTokenizer.train(["another text"], 270)
  spec = ModelConfig(dataclasses.replace(world.spec.trunk, vocab_size=270))
  comparison = verify.run(world.run, world("smaller", spec, tokenizer=smaller), TEXT)
  assert comparison.items() >= {"equal": False, "logits": None, "perplexities": None}.items()


@pytest.mark.parametrize(
  "texts, tolerance, message",
  [([""], 0, "no text of two tokens"), (TEXT, math.nan, "--tolerance=")],
)
def test_what_compares_nothing_is_refused(world, texts, tolerance, message):
  """No text, and a number below 0: tests/test_cli.py."""
  refused(message, verify.run, world.run, world.run, texts, tolerance)


def test_a_bidirectional_model_has_no_perplexity(world):
  spec = dataclasses.replace(world.spec, attention="bidirectional")
  path = world("bidirectional", spec)
  comparison = verify.run(path, path, TEXT)
  assert comparison["equal"] and comparison["perplexities"] is None


def test_the_bias_of_a_table_is_in_the_logits(world, tiny_tokenizer):
  """As that of AWD-LSTM, which is no table of ALBERT's."""
  trunk = LSTMStackConfig(tiny_tokenizer.vocab_size, context=12, embedding_width=16, units=(16,))
  path = world("stack", ModelConfig(trunk))
  comparison = verify.run(path, path, [TEXT[1]])
  expected = gpt_jax.load(path).log_probs(TEXT[1]).perplexity
  assert comparison["perplexities"][0] == pytest.approx(expected, rel=1e-4)


def test_encoder_decoders_are_compared_by_their_arrays(world, tiny_tokenizer):
  sizes = {"layers": 1, "width": 16, "heads": 2, "head_width": 8, "units": 16}
  spec = ModelConfig(T5Config(tiny_tokenizer.vocab_size, context=12, **sizes))
  first, second = (
    world("t5", spec),
    world("t5_other", spec, lambda params: add(params, "tokens", 3, 1)),
  )
  assert verify.run(first, first, TEXT)["equal"]
  comparison = verify.run(first, second, TEXT)
  assert not comparison["equal"] and comparison["differing"] == 1
